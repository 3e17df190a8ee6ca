"""The rows of an index as data frames and as plain records, and what columns of tables are called there."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.boxes import image_keys
from vicinal.data.column_kinds import ColumnKind, Kinds, column_values, converted
from vicinal.data.condition_syntax import Condition, parse_condition
from vicinal.data.table import Table
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

Record = dict[str, Any]


def payload_of(frame: pd.DataFrame) -> tuple[Kinds, list[Record]]:
    """The kinds of the columns of a frame, and its rows as plain values without those that are missing.

    Columns without any value are left out; for the values see :func:`vicinal.data.column_kinds.column_values`.

    Raises:
        InputError: an integer has more than 64 bits, or a text is not Unicode.

    Example:
        >>> kinds, records = payload_of(pd.DataFrame({"label": ["cup", None], "price": [3, 5]}))
        >>> kinds["price"].kind, records
        ('integer', [{'label': 'cup', 'price': 3}, {'price': 5}])
    """
    kinds: Kinds = {}
    records: list[Record] = [{} for _ in range(len(frame))]
    for name in map(str, frame.columns):
        kind, values = column_values(frame[name])
        if kind.kind == "empty":
            continue
        kinds[name] = kind
        for record, value in zip(records, values, strict=True):
            if value is not None:
                record[name] = value
    return kinds, records


def converted_record(record: Record, kinds: Mapping[str, ColumnKind]) -> Record:
    """A record with values of these kinds."""
    return {name: converted(value, kinds[name]) for name, value in record.items()}


def derived_ids(
    frame: pd.DataFrame, vectors: Floats, records: Sequence[Record], times: dict[bytes, int] | None = None
) -> Integers:
    """The ids of images, int64 [n]: numbers of 63 bits that follow from path and bounding box.

    The same image has the same id in every call and on every machine. Rows without a path have ids that follow from
    their columns and their vector; the second of two equal rows has another one than the first.

    Args:
        frame: the columns.
        vectors: float32 [n, dim].
        records: the values of the columns.
        times: how often rows without a path occurred before, which is counted on.

    Example:
        >>> frame = pd.DataFrame({"path": ["a.png", "b.png", "a.png"]})
        >>> ids = derived_ids(frame, np.eye(3, dtype=np.float32), frame.to_dict("records"))
        >>> bool(ids[0] == ids[2]), bool(ids[0] == ids[1])
        (True, False)
    """
    has_path = frame["path"].notna().tolist() if "path" in frame else [False] * len(frame)
    keys: list[str] = image_keys(frame) if "path" in frame else [""] * len(frame)
    times = {} if times is None else times
    ids = np.empty(len(frame), np.int64)
    for row, (key, is_known) in enumerate(zip(keys, has_path, strict=True)):
        if is_known:
            ids[row] = id_of_key(key)
            continue
        text = json.dumps(records[row], sort_keys=True).encode() + b"\0" + vectors[row].tobytes()
        content = hashlib.blake2b(text).digest()
        times[content] = times.get(content, -1) + 1
        ids[row] = _number(content + str(times[content]).encode())
    return ids


def id_of_key(key: str) -> int:
    """The id of an image by what tells it apart, see :func:`vicinal.data.boxes.image_keys`."""
    return _number(b"image\0" + key.encode("utf-8", "surrogatepass"))


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") & MAX_ID


def check_finite_values(records: Sequence[Record], engine: str) -> None:
    """Raise InputError if a number is infinite, which JSON cannot say."""
    for record in records:
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"column {name!r} holds {value}, which {engine} cannot keep; leave it empty")


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
