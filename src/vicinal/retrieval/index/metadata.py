"""The metadata of an index: one row per image, from tables that need not have the same columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.boxes import image_keys
from vicinal.data.condition_syntax import Condition, parse_condition
from vicinal.data.conditions import matching_rows
from vicinal.data.table import Table
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

MAX_ID = np.iinfo(np.int64).max
TABLE_ID = "id_of_table"  # what a table's own column `id` is called in the index
FILE_COLUMNS = ("file_size", "file_time", "file_hash")  # of the image when it was embedded, by which changes are found
# types of columns that would otherwise become floats or objects where values are missing
NULLABLE: dict[str, ExtensionDtype] = {"b": pd.BooleanDtype(), "i": pd.Int64Dtype(), "u": pd.UInt64Dtype()}


class Metadata:
    """One row per image that can be found, in ascending order of ids. Instances do not change.

    Args:
        frame: a column `id`, and the columns of the images' tables.

    Example:
        >>> metadata = Metadata(pd.DataFrame({"id": [3, 7], "path": ["a.png", "b.png"]}))
        >>> metadata.lookup([7])["path"].tolist(), metadata.ids_by_key(["b.png", "c.png"])
        (['b.png'], array([ 7, -1]))
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    @classmethod
    def from_table(cls, table: Table, ids: Integers) -> Metadata:
        """Take the columns of a table; its own column `id`, if it has one, is renamed to `id_of_table`.

        Raises:
            InputError: the table has both columns.
        """
        if table.has("id") and table.has(TABLE_ID):
            raise InputError(f"the table has both columns 'id' and {TABLE_ID!r}, as which 'id' would be kept; drop one")
        frame = table.frame.rename(columns={"id": TABLE_ID})
        frame.insert(0, "id", ids)
        return cls(frame)

    @classmethod
    def from_stored(cls, frame: pd.DataFrame) -> Metadata:
        """Take a frame that was read from a file.

        Raises:
            InputError: it is not one that `frame` of a metadata can be.
        """
        columns = frame.columns
        if not (columns.is_unique and all(isinstance(column, str) for column in columns) and "id" in columns):
            raise InputError("its metadata must have columns of different names, one of them 'id'")
        if frame["id"].dtype != np.int64:
            raise InputError(f"its ids are {frame['id'].dtype}, they must be int64")
        return cls(frame.reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def ids(self) -> Integers:
        """The ids, int64 [images]."""
        return self.frame["id"].to_numpy()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [str(column) for column in self.frame]

    @cached_property
    def keys(self) -> list[str | None]:
        """What tells the images apart, as :attr:`Table.image_keys <vicinal.data.Table.image_keys>`; None if unknown."""
        if "path" not in self.frame:
            return [None] * len(self)
        has_path = self.frame["path"].notna().tolist()
        return [key if known else None for key, known in zip(image_keys(self.frame), has_path, strict=True)]

    @cached_property
    def _id_by_key(self) -> dict[str | None, int]:
        return dict(zip(reversed(self.keys), reversed(self.ids.tolist()), strict=True))

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        """Return the id of the image of each key, int64 [n]: the first of several, -1 where there is none.

        Args:
            keys: what tells images apart, :attr:`Table.image_keys <vicinal.data.Table.image_keys>`.
        """
        return np.array([self._id_by_key.get(key, -1) for key in keys], dtype=np.int64)

    def ids_at(self, path: str) -> Integers:
        """Return the ids of the images of a file, or of those in a folder and below, int64 [n]."""
        if "path" not in self.frame:
            return self.ids[:0]
        paths = self.frame["path"].astype(object).fillna("")
        is_there = (paths == path) | paths.str.startswith(os.path.join(path, ""))
        return self.ids[is_there.to_numpy(dtype=bool)]

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of these ids, in their order; an unknown id raises InputError."""
        return self.frame.iloc[self.positions(ids)].reset_index(drop=True)

    def where(self, condition: str, aliases: Mapping[str, str] | None = None) -> Integers:
        """Return the ids of the images that fulfill a condition on the columns, int64 [n].

        Args:
            condition: such as `price < 20`.
            aliases: further names of columns.

        Raises:
            InputError: it cannot be parsed, or names an unknown column; see :func:`vicinal.data.matching_rows`.
        """
        columns = [column for column in self.frame if column not in FILE_COLUMNS]
        return self.ids[matching_rows(self.frame[columns], condition, aliases)]

    def without(self, ids: npt.ArrayLike) -> Metadata:
        """Return the metadata of the images without these ids; an unknown id raises InputError."""
        return Metadata(self.frame.drop(index=self.frame.index[self.positions(ids)]).reset_index(drop=True))

    def updated(self, table: Table, ids: Integers) -> Metadata:
        """Return the metadata with the columns of a table, one row for each of these ids, in place of theirs.

        Raises:
            InputError: there is no image with one of the ids, or a column has values of a different kind.
        """
        others, changed = self.without(ids), Metadata.from_table(table, ids)
        frame = others.concat(changed).frame if len(others) else changed.frame
        return Metadata(frame.sort_values("id", ignore_index=True))

    @property
    def paths(self) -> list[str]:
        """The paths of the images that have one.

        Raises:
            InputError: none has one.
        """
        if "path" not in self.frame:
            raise InputError("the images of the index have no paths, so there is nothing to move")
        return self.frame["path"].dropna().tolist()

    def with_paths(self, change: Callable[[str], str]) -> Metadata:
        """Return the metadata with changed paths of the images that have one."""
        if "path" not in self.frame:
            return self
        return Metadata(self.frame.assign(path=self.frame["path"].map(change, na_action="ignore")))

    def concat(self, other: Metadata) -> Metadata:
        """Return the rows of both; a column that one of them lacks is missing in its rows.

        Raises:
            InputError: a column has values of a different kind in both.

        Example:
            >>> old, new = pd.DataFrame({"id": [0], "label": [7]}), pd.DataFrame({"id": [1], "label": ["cow"]})
            >>> Metadata(old).concat(Metadata(new)).frame
               id label
            0   0     7
            1   1   cow
        """
        old, new = self.frame, other.frame
        shared = old.columns.intersection(new.columns).drop("id")
        pairs = {column: _with_common_type(column, old[column], new[column]) for column in shared}
        old = old.assign(**{column: pair[0] for column, pair in pairs.items()})
        new = new.assign(**{column: pair[1] for column, pair in pairs.items()})
        parts = [
            mine.assign(**{column: _nullable(mine[column]) for column in mine.columns.difference(others.columns)})
            for mine, others in ((old, new), (new, old))
        ]
        return Metadata(pd.concat(parts, ignore_index=True))

    def positions(self, ids: npt.ArrayLike) -> Integers:
        """Return the rows of these ids, int64 [n].

        Raises:
            InputError: there is no image with one of the ids.
        """
        # NumPy would make floats of a list with an integer beyond 64 bits
        given = np.asarray(ids, None if hasattr(ids, "dtype") else object).ravel()
        values = given.tolist()
        other = [] if given.dtype.kind in "iu" else [value for value in values if not is_integer(value)]
        if other:
            raise InputError(f"id {other[0]!r} is not an integer")
        unknown = [value for value in values if abs(value) > MAX_ID]  # such integers would overflow
        wanted = np.array([] if unknown else values, dtype=np.int64)
        unknown = unknown or wanted[~np.isin(wanted, self.ids)].tolist()
        if unknown:
            raise InputError(f"the index has no id {unknown[0]}; it was never given or is deleted")
        return np.searchsorted(self.ids, wanted).astype(np.int64)


def parse_index_condition(text: str, names: Iterable[str], aliases: Mapping[str, str]) -> Condition:
    """Parse a condition on the columns of an index, without those about the files."""
    return parse_condition(text, ["id", *(name for name in names if name not in FILE_COLUMNS)], aliases)


def _with_common_type(column: str, old: pd.Series, new: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return both parts of a column in types that can be concatenated."""
    kinds = _kind(old), _kind(new)
    if kinds[0] == "empty":
        return old.astype(_nullable(new).dtype), new
    if kinds[1] == "empty":
        return old, new.astype(_nullable(old).dtype)
    if set(kinds) == {"integer", "string"}:
        return _as_text(old), _as_text(new)
    if kinds[0] != kinds[1] and set(kinds) != {"integer", "floating"}:
        raise InputError(
            f"column {column!r} is {kinds[1]} in the new rows, {kinds[0]} in the index; both must have the same type"
        )
    return old, new


def _kind(column: pd.Series) -> str:
    """Return the kind of the values: integer, floating, boolean, string, ..., or empty where all are missing."""
    return pd.api.types.infer_dtype(column.dropna().astype(object))


def _nullable(column: pd.Series) -> pd.Series:
    return column.astype(NULLABLE[column.dtype.kind]) if column.dtype.kind in NULLABLE else column


def _as_text(column: pd.Series) -> pd.Series:
    return column.astype(object).map(str, na_action="ignore").infer_objects()
