"""The rows of an index: in its database, as data frames and as plain records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.column_kinds import ColumnKind, Kinds, column_values, converted
from vicinal.data.columns import BOX_COLUMNS, image_keys
from vicinal.data.condition_syntax import Condition, parse_condition
from vicinal.data.conditions import SQLWriter, fulfilling
from vicinal.data.table import Table
from vicinal.retrieval.index.database import CHUNK, Columns, Database
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

Record = dict[str, Any]
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


def kinds_and_records(frame: pd.DataFrame) -> tuple[Kinds, list[Record]]:
    """The kinds of the columns that have any value, and the rows as plain values without missing ones."""
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
    return {name: converted(value, kinds[name], name) for name, value in record.items()}


class Metadata:
    """One row per image that can be found, in ascending order of ids: `id` and the columns of the images' tables."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def ids(self) -> Integers:
        return self.frame["id"].to_numpy()

    @cached_property
    def keys(self) -> list[str | None]:
        """The keys of the images, see :attr:`Table.image_keys <vicinal.data.Table.image_keys>`; None if unknown."""
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
    """The columns of a table; its own column `id`, if it has one, is called `id_of_table`."""
    if table.has("id") and table.has(TABLE_ID):
        raise InputError(f"the table has both columns 'id' and {TABLE_ID!r}, as which 'id' is stored; drop one")
    return table.frame.rename(columns={"id": TABLE_ID})


def frame_of_records(
    ids: Integers, records: Sequence[Mapping[str, Any]], kinds: Mapping[str, ColumnKind]
) -> pd.DataFrame:
    """The frame of rows: `id` and the columns."""
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


class ItemRows:
    """The rows of images, by the columns that the database has at some moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, ids: Integers, table: Table) -> Columns:
        """Write rows of a table in place of those with the same ids; returns all columns, within a transaction."""
        frame = frame_of_table(table)
        columns = {str(name): column_values(frame[name]) for name in frame}
        kinds = self._database.set_columns({name: kind for name, (kind, _) in columns.items()})
        self._database.insert(ids, {
            name: values if kind == kinds[name] else [converted(value, kinds[name], name) for value in values]
            for name, (kind, values) in columns.items()
        })  # fmt: skip
        return self._database.columns()

    def lookup(self, ids: Sequence[int], columns: Columns) -> dict[int, tuple[Any, ...]]:
        """The rows of the given ids that exist, by their ids."""
        rows: dict[int, tuple[Any, ...]] = {}
        for start in range(0, len(ids), CHUNK):
            listed = ", ".join(map(str, ids[start : start + CHUNK]))
            rows |= {row[0]: row for row in self._database.rows(columns, f"id IN ({listed})")}
        return rows

    def ids_by_key(self, keys: Sequence[str], columns: Columns) -> Integers:
        """The id of the image of each key, see `Table.image_keys`; -1 where there is none."""
        columns = {name: each for name, each in columns.items() if name in ("path", *BOX_COLUMNS)}
        id_by_key: dict[str, int] = {}
        if "path" in columns:
            paths = list(dict.fromkeys(path for key in keys for path in (key, key.rpartition(" [")[0]) if path))
            for start in range(0, len(paths), CHUNK):
                chunk = paths[start : start + CHUNK]
                where = f"{columns['path'][0]} IN ({', '.join('?' * len(chunk))})"
                frame = frame_of_rows(self._database.rows(columns, where, chunk), columns)
                for key, number in zip(image_keys(frame), frame["id"].tolist(), strict=True):
                    id_by_key.setdefault(key, number)
        return np.array([id_by_key.get(key, -1) for key in keys], dtype=np.int64)

    def ids_at(self, path: str, columns: Columns) -> Integers:
        """The ids of the images of a file, or of those in a folder and below."""
        if "path" not in columns:
            return np.empty(0, np.int64)
        key, folder = columns["path"][0], path.rstrip("/")
        where = f"{key} = :path OR ({key} >= :below AND {key} < :after)"
        return self._database.ids(where, {"path": path, "below": f"{folder}/", "after": f"{folder}0"})

    def ids_where(
        self, condition: str, columns: Columns, aliases: Mapping[str, str], shown_from: str | None
    ) -> Integers:
        """The ids of the images whose columns fulfill a condition, ascending.

        It sees paths relative to the folder `shown_from`; with "", the name of the file alone; with None, full paths.
        """

        def expression(column: str) -> str:
            key = "id" if column == "id" else columns[column][0]
            if column != "path" or shown_from is None:
                return key
            quoted = "'" + shown_from.replace("'", "''") + "'"
            return f"shown_path({key}, {quoted if shown_from else 'NULL'})"

        tree = parse_index_condition(condition, columns, aliases)
        where = SQLWriter(kinds_of(columns), condition, expression).write(tree)
        with self._database.reading() as connection:
            rows = fulfilling(connection, "SELECT id FROM items WHERE {} ORDER BY id", where, condition)
            return np.fromiter((number for (number,) in rows), np.int64)

    def frames(self, columns: Columns) -> Iterator[pd.DataFrame]:
        """Yield all rows, in blocks of ascending ids: one empty block if the index is empty."""
        pages = self._database.pages(columns)
        for page in chain([next(pages, [])], pages):
            yield frame_of_rows(page, columns)


def frame_of_rows(rows: Sequence[tuple[Any, ...]], columns: Columns) -> pd.DataFrame:
    ids, *values = zip(*rows, strict=True) if rows else ((), *(() for _ in columns))
    return frame_of_values(ids, dict(zip(columns, values, strict=True)), kinds_of(columns))


def kinds_of(columns: Columns) -> Kinds:
    return {name: kind for name, (_, kind) in columns.items()}
