"""The table that describes a dataset: one row per image, independent of where the images come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.columns import SPLITS, image_keys, validate_frame, warn_of_repeated_images
from vicinal.data.conditions import matching_rows
from vicinal.data.folders import read_folder
from vicinal.data.splits import Order, divide_classes, warn_of_shared_classes
from vicinal.data.statistics import Statistics, compute_statistics
from vicinal.data.table_files import read_csv, write_table
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError, prefixed_errors


class Table:
    """A dataset of images, with one row per image.

    These columns have a meaning; each is needed only where it is used. Other columns are kept unchanged.

    - `path`: the file of the image.
    - `label`: the class, text or integer.
    - `coarse`, `coarse_2`, ...: coarse labels, of ever larger groups of classes.
    - `split`: `train`, `val` or `test`.
    - `is_query`, `is_gallery`: booleans, for protocols with separate queries and gallery.
    - `group`: camera or sequence; matches within a group are ignored.
    - `x_1`, `y_1`, `x_2`, `y_2`: the upper left and the lower right corner of a bounding box, in pixels of the upright
      image; empty in rows without a box. The row is this part of the image: images are cropped when they are read, and
      several rows of one path are several objects.
    - `noisy_label`, `noisy_image`, `label_clean`: what :func:`~vicinal.data.add_noise` altered, and the label before.

    A table is immutable: methods that change rows or columns return a new one.

    Args:
        frame: The columns. Errors name rows by its index, which is then replaced by 0, 1, 2, ...
        root: The folder that relative paths start from; by default the working directory.

    Raises:
        InputError: A value is missing or invalid; the message names the row.

    Warns:
        UserWarning: A class is in two splits.

    Attributes:
        frame: The data, with rows numbered from 0 and absolute paths.
        other_files: Of a table that was read from a folder, the number of files that are not images or of formats that
            are not read, by suffix.
        unlisted: Folders below that folder whose content could not be listed.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png"], "label": ["cat", "dog", "cat"]}))
        >>> table.classes, table.labels.tolist()
        (['cat', 'dog'], [0, 1, 0])
        >>> len(table.take([0, 2]))
        2
    """

    frame: pd.DataFrame
    other_files: Mapping[str, int] = MappingProxyType({})
    unlisted: Collection[str] = ()

    def __init__(self, frame: pd.DataFrame, root: str | Path | None = None) -> None:
        self.frame = validate_frame(frame, root)
        if self.has("split"):
            warn_of_shared_classes(self.frame, stacklevel=2)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Table:
        """Create the table of a folder of images, with labels if it has one folder per class.

        The image `folder/cat/1.jpg` gets the label `cat`; `folder/animal/cat/1.jpg` gets the label `animal/cat` and the
        coarse label `animal`, and so on. Images directly in `folder` have no label, nor have images of a folder that
        holds some at different depths. Folders `train`, `val` and `test` at the top level give the split. Hidden files
        and files of other types are skipped.

        Raises:
            InputError: The folder does not exist or holds no image, or some of its images are in split folders only.
        """
        frame, found = read_folder(folder)
        table = cls(frame)
        table.other_files, table.unlisted = found.others, list(found.unlisted)
        return table

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Read a CSV file (UTF-8, separated by commas) whose first line names the columns.

        CSV has no types: a label column of integers only becomes an integer column, even if it was text before, as
        after :meth:`from_folder` on folders `7`, `8`, ...; `007` stays text. Parquet keeps types.

        Args:
            path: The file.
            root: The folder that relative paths start from; by default the folder of the file.
            path_column: The column of image paths; None if the table needs none.
            label_column: The column of labels; None if the table needs none.

        Raises:
            InputError: The file or a column does not exist, a line has too few or too many fields, or a value is
                missing; the message names the line.
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
        """Read a Parquet file, without its embeddings. Arguments and errors are those of :meth:`from_csv`."""
        from vicinal.data.parquet_files import read_parquet  # imports pyarrow

        return cls._from_file(Path(path), read_parquet(Path(path)), root, path_column, label_column)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        root: str | Path | None = None,
        path_column: str | None = "path",
        label_column: str | None = "label",
    ) -> Table:
        """Create a table from a data frame. Arguments as in :meth:`from_csv`; `root` is the working directory."""
        table = cls(_rename_columns(frame, path_column, label_column, "data frame"), root)
        warn_of_repeated_images(table.frame, stacklevel=2)
        return table

    @classmethod
    def _from_file(
        cls, path: Path, frame: pd.DataFrame, root: str | Path | None, path_column: str | None, label_column: str | None
    ) -> Table:
        frame = _rename_columns(frame, path_column, label_column, path)
        with prefixed_errors(path):
            table = cls(frame, path.parent if root is None else root)
        warn_of_repeated_images(table.frame, stacklevel=3)
        return table

    @classmethod
    def _from_valid(cls, frame: pd.DataFrame) -> Table:
        """Create a table of rows that have been validated before."""
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
        """The absolute paths of the images; an InputError if the table has none."""
        self._check_column("path", "the images' files")
        return self.frame["path"].tolist()

    @cached_property
    def image_keys(self) -> list[str]:
        """The path of each image with its bounding box, if it has one, which tells images apart; an InputError without
        paths.
        """
        self._check_column("path", "the images' files")
        return image_keys(self.frame)

    @cached_property
    def classes(self) -> list[str] | list[int]:
        """The names of the classes, sorted, of which :attr:`labels` are the positions; an InputError without labels."""
        self._check_column("label", "the images' classes")
        return sorted(self.frame["label"].unique().tolist())

    @cached_property
    def labels(self) -> Integers:
        """The class of each row, `[rows]`, as a position from 0 to C - 1 in :attr:`classes`; an InputError without
        labels.
        """
        self._check_column("label", "the images' classes")
        return self.codes("label")

    @cached_property
    def class_counts(self) -> Integers:
        """The number of images of each of the :attr:`classes`, int64 `[C]`; an InputError without labels."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    @cached_property
    def splits(self) -> list[str]:
        """The splits in the table, in the order train, val, test; empty if there is no column `split`."""
        found = set(self.frame["split"]) if self.has("split") else set()
        return [split for split in SPLITS if split in found]

    def codes(self, column: str) -> Integers:
        """The values of a column as codes 0, 1, ... in sorted order, `[rows]`; an InputError without the column."""
        self._check_column(column, "values to number")
        return pd.factorize(self.frame[column], sort=True)[0].astype(np.int64)

    def _check_column(self, column: str, content: str) -> None:
        if column not in self.frame:
            columns = ", ".join(self.frame.columns) or "none"
            raise InputError(f"the table has no column {column!r} ({content}); its columns are {columns}")

    def statistics(self) -> Statistics:
        """Count images and classes, and noisy labels and foreign images, in the whole table and in each split."""
        return compute_statistics(self.frame)

    def take(self, rows: npt.ArrayLike) -> Table:
        """Select rows, in the given order.

        Args:
            rows: Row numbers `[n]`, or a boolean mask `[rows]`.

        Raises:
            InputError: A row number is out of range.
        """
        positions = np.asarray(rows)
        if positions.dtype == bool and positions.shape == (len(self),):
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64) if positions.size == 0 else positions
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise InputError(f"rows are {positions.dtype} {list(positions.shape)}; give a list of row numbers")
        invalid = positions[(positions < 0) | (positions >= len(self))]
        if len(invalid):
            raise InputError(f"no row {invalid[0]}; the table has {len(self)}, numbered from 0")
        return self._from_valid(self.frame.iloc[positions])

    def subset(self, split: str) -> Table:
        """Select the rows of one split.

        Raises:
            InputError: The table has no rows of that split.
        """
        if split not in self.splits:
            known = f"its splits are {', '.join(self.splits)}" if self.splits else "it has no column 'split'"
            raise InputError(f"the table has no split {split!r}; {known}")
        return self._from_valid(self.frame[self.frame["split"] == split])

    def where(self, condition: str, aliases: Mapping[str, str] | None = None) -> Table:
        """Select the rows that fulfill a condition; :func:`~vicinal.data.matching_rows` has the grammar.

        Args:
            condition: Such as `price < 20`.
            aliases: Further names of columns.

        Raises:
            InputError: The condition cannot be parsed, or names a column that the table does not have.

        Example:
            >>> table = Table(pd.DataFrame({"label": ["cup", "cup", "bowl"], "price": [12.5, 30.0, 8.0]}))
            >>> table.where("label == 'cup' and price < 20").frame["price"].tolist()
            [12.5]
        """
        return self._from_valid(self.frame[matching_rows(self.frame, condition, aliases)])

    def split_classes(
        self,
        fractions: Mapping[str, float] | None = None,
        classes: Mapping[str, Sequence[str | int]] | None = None,
        column: str | None = None,
        seed: int = 0,
        order: Order = "random",
        redivide: bool = False,
    ) -> Table:
        """Assign each class to one split. Rows of classes without a split are dropped; their number is logged.

        A test split that the table has already stays as it is: the classes of its splits train and val are divided,
        together, into new splits train and val. With separate queries and gallery, training images that come into
        another split become both.

        Args:
            fractions: The fraction of the classes for each split.
            classes: The names of the classes of each split, instead of fractions.
            column: The column whose values are assigned to splits instead of `label`, such as `coarse` for whole groups
                of classes. Without fractions and classes, the column itself holds the names of the splits.
            seed: The seed for fractions.
            order: Which classes the fractions take: `random`, by the seed; `in_order`, the first ones for train, the
                next for val and the last for test, sorted as numbers if all names are integers, else as text.
            redivide: Whether the classes of the table's test split are divided too.

        Raises:
            InputError: A class, column or split is unknown, the fractions are invalid, a class is in two splits, or the
                test split would be altered.

        Example:
            >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d"]}))
            >>> table.split_classes(fractions={"train": 0.5, "test": 0.5}, seed=1).splits
            ['train', 'test']
            >>> split = table.split_classes(classes={"train": ["a", "b"], "test": ["c"]})
            >>> split.frame["split"].tolist()
            ['train', 'train', 'test']
            >>> split.split_classes({"train": 0.5, "val": 0.5}, order="in_order").frame["split"].tolist()
            ['train', 'val', 'test']
        """
        if (fractions is not None) + (classes is not None) > 1 or (fractions, classes, column) == (None, None, None):
            raise InputError("split_classes needs one of fractions and classes, or a column with the splits")
        self._check_column(column or "label", "to be split")
        return self._from_valid(divide_classes(self.frame, fractions, classes, column, seed, order, redivide))

    def save(self, path: str | Path) -> None:
        """Write the table atomically to a .csv or .parquet file, with absolute paths.

        Text labels that are all integers are read back from CSV as integers; Parquet keeps types.

        Raises:
            InputError: The name has another suffix, or Parquet cannot hold a column, such as one of mixed types.
            OSError: The file cannot be written.
        """
        write_table(Path(path), self.frame)


def _rename_columns(
    frame: pd.DataFrame, path_column: str | None, label_column: str | None, source: str | Path
) -> pd.DataFrame:
    """Rename the columns of paths and labels to `path` and `label`, in place of columns that had these names."""
    for standard, column in (("path", path_column), ("label", label_column)):
        if column is None or (column == standard and standard in frame):
            continue
        if column not in frame:
            raise InputError(
                f"{source}: no column {column!r}; the columns are {', '.join(map(str, frame.columns)) or 'none'} "
                f"(rename one to {standard!r}, or name it by {standard}_column)"
            )
        frame = frame.drop(columns=standard, errors="ignore").rename(columns={column: standard})
    return frame
