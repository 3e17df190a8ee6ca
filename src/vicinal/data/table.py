"""A dataset is a table: one row an image, whatever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.console import log
from vicinal.data.columns import SPLITS, checked_frame
from vicinal.data.folders import folder_frame
from vicinal.data.splits import shared_classes, splits_by_list, splits_by_share, warn_of_shared_classes
from vicinal.data.statistics import Statistics, statistics_of
from vicinal.data.table_files import read_csv, read_parquet, renamed, write_table
from vicinal.errors import InputError


class Table:
    """Images and what is known of them, one row an image.

    Known columns, none of them compulsory until it is used: `path`, `label` (text or integer), `coarse`, `coarse_2`,
    ... (labels of ever larger groups), `split` (`train`, `val` or `test`), `is_query` and `is_gallery` (protocols with
    separate sides), `group` (camera or sequence: matches within it are ignored), `noisy_label`, `noisy_image` and
    `label_clean` (what was altered by :func:`~vicinal.data.add_noise`, and what the labels were before). Other columns
    are carried along. A table is not changed once made; every method that alters it gives a new one.

    Args:
        frame: the columns; its index names rows in errors and is then replaced by 0, 1, 2, ...
        root: folder that relative paths start from; the current folder by default.

    Raises:
        InputError: a missing or impossible value, with its row.

    Warns:
        UserWarning: two splits share a class.

    Attributes:
        frame: the data, with rows numbered from 0 and absolute paths.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png"], "label": ["cat", "dog", "cat"]}))
        >>> table.classes, table.labels.tolist()
        (['cat', 'dog'], [0, 1, 0])
        >>> len(table.take([0, 2]))
        2
    """

    frame: pd.DataFrame

    def __init__(self, frame: pd.DataFrame, root: str | Path | None = None) -> None:
        self.frame = checked_frame(frame, root)
        warn_of_shared_classes(self.frame, stacklevel=2)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Table:
        """Read a folder of class folders.

        `folder/cat/1.jpg` has the label `cat`; `folder/animal/cat/1.jpg` the label `animal/cat` and the coarse label
        `animal`, and so on; images right in `folder` have no label. Folders `train`, `val` and `test` at the top give
        the split. Hidden files and files that are no images are passed over.

        Raises:
            InputError: no such folder, no image in it, or images at different depths.
        """
        return cls(folder_frame(folder))

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Read a CSV file (UTF-8, commas) whose first line names the columns.

        CSV knows no types: names (labels and the like) that are all whole numbers become integers, though they may have
        been text, as after :meth:`from_folder` on folders `7`, `8`, ...; `007` stays text. Parquet keeps types.

        Args:
            path: the file.
            root: folder that relative paths start from; that of the file by default.
            path_column: the column with the paths; None where there need be none.
            label_column: the column with the labels; None where there need be none.

        Raises:
            InputError: no such file or column, a line with too few or too many fields or a missing value (with the
                line's number).
        """
        return cls._from_file(Path(path), read_csv(Path(path)), root, path_column, label_column)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Read a Parquet file; arguments and errors as in :meth:`from_csv`. A column of embeddings is passed over."""
        return cls._from_file(Path(path), read_parquet(Path(path)), root, path_column, label_column)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Take a data frame; the rest is as in :meth:`from_csv`, but `root` is by default the current folder."""
        return cls(renamed(frame, path_column, label_column, "data frame"), root)

    @classmethod
    def _from_file(
        cls,
        path: Path,
        frame: pd.DataFrame,
        root: str | Path | None,
        path_column: str | None,
        label_column: str | None,
    ) -> Table:
        frame = renamed(frame, path_column, label_column, path)
        try:
            return cls(frame, path.parent if root is None else root)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def load(
        cls,
        source: str | Path,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Read a table from wherever it is.

        Args:
            source: a folder, a .csv or .parquet file, or the name of a benchmark (`digits`, `glyphs`, `omniglot`,
                `in_shop`, `vehicle_id` with `_medium` or `_small`, `roxford`, `rparis`; write `./digits` for a folder
                of that name).
            root: for a file, the folder that relative paths start from; for a benchmark, the folder that keeps it.
            path_column: the column with the paths, in a file.
            label_column: the column with the labels, in a file.

        Raises:
            InputError: nothing of the kind is there, or it does not make a table.
        """
        # Benchmarks make tables, so this module cannot import them before it is there itself.
        from vicinal.data.benchmarks import BENCHMARKS

        path = Path(source)
        if isinstance(source, str) and source in BENCHMARKS:
            return BENCHMARKS[source](root)
        suffix = path.suffix.lower()
        if suffix in (".csv", ".parquet") and not path.is_dir():
            read = cls.from_csv if suffix == ".csv" else cls.from_parquet
            return read(path, root, path_column, label_column)
        if not path.is_dir():
            raise InputError(
                f"{source}: no such folder, no .csv or .parquet file and no benchmark ({', '.join(BENCHMARKS)})"
            )
        if root is not None:
            raise InputError(f"{source}: a folder of images takes no root ({root}); its paths start from itself")
        return cls.from_folder(path)

    @classmethod
    def _of(cls, frame: pd.DataFrame) -> Table:
        """A table of rows that have been checked before."""
        table = cls.__new__(cls)
        table.frame = frame.reset_index(drop=True)
        return table

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.frame.columns)})"

    def __str__(self) -> str:
        return str(self.statistics())

    def has(self, column: str) -> bool:
        """Whether the table has the column."""
        return column in self.frame

    @cached_property
    def paths(self) -> list[str]:
        """The images' absolute paths.

        Raises:
            InputError: the table has no paths.
        """
        self._require("path", "the images' files")
        return self.frame["path"].tolist()

    @cached_property
    def classes(self) -> list[str] | list[int]:
        """The names of the classes, sorted; a code in :attr:`labels` is a position here.

        Raises:
            InputError: the table has no labels.
        """
        self._require("label", "the images' classes")
        return sorted(self.frame["label"].unique().tolist())

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The classes as codes 0 to C - 1, `[rows]`, in the order of :attr:`classes`.

        Raises:
            InputError: the table has no labels.
        """
        self._require("label", "the images' classes")
        return self.codes("label")

    @cached_property
    def class_counts(self) -> npt.NDArray[np.int64]:
        """Images of each class, `[C]`, in the order of :attr:`classes`.

        Raises:
            InputError: the table has no labels.
        """
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    @cached_property
    def splits(self) -> list[str]:
        """The splits that are there, in the order train, val, test; none without a column `split`."""
        there = set(self.frame["split"]) if self.has("split") else set()
        return [split for split in SPLITS if split in there]

    def codes(self, column: str) -> npt.NDArray[np.int64]:
        """The values of a column as codes 0, 1, ... in sorted order, `[rows]`.

        Raises:
            InputError: no such column.
        """
        self._require(column, "values to number")
        return pd.factorize(self.frame[column], sort=True)[0].astype(np.int64)

    def _require(self, column: str, what: str) -> None:
        if column not in self.frame:
            have = ", ".join(self.frame.columns) or "none"
            raise InputError(f"the table has no column {column!r} ({what}); its columns are {have}")

    def statistics(self) -> Statistics:
        """Count images and classes, whole and by split, and the wrong labels and foreign images put in on purpose."""
        return statistics_of(self.frame)

    def take(self, rows: npt.ArrayLike) -> Table:
        """The given rows, in the given order.

        Args:
            rows: row numbers `[n]`, or a mask `[rows]` of truths.

        Raises:
            InputError: a row number that is not there.
        """
        positions = np.asarray(rows)
        if positions.dtype == bool and positions.shape == (len(self),):
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64) if positions.size == 0 else positions
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise InputError(f"rows are {positions.dtype} {list(positions.shape)}; give a list of row numbers")
        wrong = positions[(positions < 0) | (positions >= len(self))]
        if len(wrong):
            raise InputError(f"no row {wrong[0]}; the table has {len(self)}, numbered from 0")
        return self._of(self.frame.iloc[positions])

    def subset(self, split: str) -> Table:
        """The rows of one split.

        Raises:
            InputError: no rows are of that split.
        """
        if split not in self.splits:
            have = f"its splits are {', '.join(self.splits)}" if self.splits else "it has no column 'split'"
            raise InputError(f"the table has no split {split!r}; {have}")
        return self._of(self.frame[self.frame["split"] == split])

    def split_classes(
        self,
        shares: Mapping[str, float] | None = None,
        classes: Mapping[str, Sequence[str | int]] | None = None,
        column: str | None = None,
        seed: int = 0,
    ) -> Table:
        """Give each class to one split; rows of classes given to none are left out, and their number is logged.

        Args:
            shares: split -> share of the classes, drawn with `seed`.
            classes: split -> names of its classes, in the place of shares.
            column: what is dealt out: the names in this column (`coarse`: whole groups of classes) instead of `label`.
                Without shares and classes, the column itself holds the splits' names.
            seed: for shares.

        Raises:
            InputError: unknown class, column or split, impossible shares, or a class in two splits.

        Example:
            >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d"]}))
            >>> table.split_classes(shares={"train": 0.5, "test": 0.5}, seed=1).splits
            ['train', 'test']
            >>> table.split_classes(classes={"train": ["a", "b"], "test": ["c"]}).frame["split"].tolist()
            ['train', 'train', 'test']
        """
        if (shares is not None) + (classes is not None) > 1 or (shares, classes, column) == (None, None, None):
            raise InputError("split_classes takes either shares or classes, or a column that holds the splits")
        self._require(column or "label", "to be split")
        values = self.frame[column or "label"]
        names = sorted(values.dropna().unique().tolist(), key=str)
        if shares is not None:
            assigned = splits_by_share(names, shares, seed)
        elif classes is not None:
            assigned = splits_by_list(names, classes)
        else:
            assigned = {name: name for name in names}
        return self._with_splits(values.map(assigned.get))

    def _with_splits(self, splits: pd.Series) -> Table:
        chosen = splits.notna()
        if not chosen.all():
            log(f"left out {(~chosen).sum():,} images of classes that were given to no split")
        with_splits = checked_frame(self.frame.assign(split=splits)[chosen], None)
        shared = shared_classes(with_splits)
        if shared:
            name, where = next(iter(shared.items()))
            raise InputError(f"class {str(name)!r} would be in {' and '.join(where)}; one class belongs in one split")
        return self._of(with_splits)

    def save(self, path: str | Path) -> None:
        """Write the table to a .csv or .parquet file, atomically; paths are absolute.

        Text labels that are all whole numbers come back from CSV as integers; Parquet keeps types.

        Raises:
            InputError: the file's name ends otherwise, or Parquet cannot hold a column, as when it mixes types.
            OSError: it cannot be written.
        """
        write_table(Path(path), self.frame)
