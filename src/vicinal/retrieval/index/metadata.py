"""The rows of an index as a data frame, and what columns of tables are called there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.boxes import image_keys
from vicinal.data.column_kinds import ColumnKind
from vicinal.data.condition_syntax import Condition, parse_condition
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

MAX_ID = np.iinfo(np.int64).max
TABLE_ID = "id_of_table"  # what a table's own column `id` is called in the index
FILE_COLUMNS = ("file_size", "file_time", "file_hash")  # of the image when it was embedded, by which changes are found
DTYPES: dict[str, Any] = {
    "integer": np.dtype(np.int64),
    "floating": np.dtype(np.float64),
    "boolean": np.dtype(np.bool_),
}
# types of columns that would otherwise become floats or objects where values are missing
NULLABLE: dict[str, ExtensionDtype] = {"b": pd.BooleanDtype(), "i": pd.Int64Dtype(), "u": pd.UInt64Dtype()}


class Metadata:
    """One row per image that can be found, in ascending order of ids.

    Args:
        frame: a column `id`, and the columns of the images' tables.

    Example:
        >>> metadata = Metadata(pd.DataFrame({"id": [3, 7], "path": ["a.png", "b.png"]}))
        >>> metadata.lookup([7])["path"].tolist(), metadata.ids_by_key(["b.png", "c.png"])
        (['b.png'], array([ 7, -1]))
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def ids(self) -> Integers:
        """The ids, int64 [images]."""
        return self.frame["id"].to_numpy()

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
        """Return the id of the image of each key, int64 [n]: the first of several, -1 where there is none."""
        return np.array([self._id_by_key.get(key, -1) for key in keys], dtype=np.int64)

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of these ids, which exist, in their order."""
        rows = np.searchsorted(self.ids, np.asarray(ids, dtype=np.int64).ravel())
        return self.frame.iloc[rows].reset_index(drop=True)


def frame_of_table(table: Table) -> pd.DataFrame:
    """The columns of a table; its own column `id`, if it has one, is called `id_of_table`.

    Raises:
        InputError: the table has both columns.
    """
    if table.has("id") and table.has(TABLE_ID):
        raise InputError(f"the table has both columns 'id' and {TABLE_ID!r}, as which 'id' would be kept; drop one")
    return table.frame.rename(columns={"id": TABLE_ID})


def frame_of_records(
    ids: Integers, records: Sequence[Mapping[str, Any]], kinds: Mapping[str, ColumnKind]
) -> pd.DataFrame:
    """The frame of rows: `id` and the columns.

    Example:
        >>> frame_of_records(np.array([4, 7]), [{"price": 3}, {}], {"price": ColumnKind("integer")})
           id  price
        0   4      3
        1   7   <NA>
    """
    return frame_of_values(ids, {name: [record.get(name) for record in records] for name in kinds}, kinds)


def frame_of_values(
    ids: npt.ArrayLike, values: Mapping[str, Sequence[Any]], kinds: Mapping[str, ColumnKind]
) -> pd.DataFrame:
    """The frame of rows, by the values of each column, None where one is missing."""
    columns: dict[str, Any] = {"id": np.asarray(ids, dtype=np.int64)}
    for name, kind in kinds.items():
        dtype = DTYPES.get(kind.kind, "str")
        if dtype != "str" and None in values[name]:
            dtype = NULLABLE.get(dtype.kind, dtype)
        columns[name] = pd.Series(list(values[name]), dtype=dtype)
    return pd.DataFrame(columns)


def parse_index_condition(text: str, names: Iterable[str], aliases: Mapping[str, str]) -> Condition:
    """Parse a condition on the columns of an index, without those about the files."""
    return parse_condition(text, ["id", *(name for name in names if name not in FILE_COLUMNS)], aliases)
