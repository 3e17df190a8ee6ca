"""The rows of an index's images in its database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.boxes import image_keys
from vicinal.data.column_kinds import Kinds, column_values, converted
from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.conditions import SQLWriter, fulfilling
from vicinal.data.table import Table
from vicinal.retrieval.index.database import CHUNK, Database
from vicinal.retrieval.index.index_state import Columns
from vicinal.retrieval.index.metadata import frame_of_table, frame_of_values, parse_index_condition
from vicinal.utils.arrays import Integers


class ItemRows:
    """The rows of images, by the columns that the database has at some moment.

    Args:
        database: of the index.

    Example:
        >>> database, table = Database(None), Table(pd.DataFrame({"path": ["/a.png", "/b.png"], "price": [3, 5]}))
        >>> with database.transaction():
        ...     database.create()
        ...     columns = ItemRows(database).insert(np.array([0, 1]), table)
        >>> rows = ItemRows(database)
        >>> rows.ids_by_key(["/b.png", "/c.png"], columns)
        array([ 1, -1])
        >>> rows.ids_where("price > 4", columns, {}, None).tolist()
        [1]
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, ids: Integers, table: Table) -> Columns:
        """Write rows of a table in place of those with the same ids; returns all columns, within a transaction.

        Raises:
            InputError: a column has another kind than before, or they are too many.
        """
        frame = frame_of_table(table)
        found = {str(name): column_values(frame[name]) for name in frame}
        kinds = self._database.set_columns({name: kind for name, (kind, _) in found.items()})
        before = {name: kind for name, (kind, _) in found.items()}
        self._database.insert(ids, {
            name: values if before[name] == kinds[name] else [converted(value, kinds[name]) for value in values]
            for name, (_, values) in found.items()
        })  # fmt: skip
        return self._database.columns()

    def lookup(self, ids: Sequence[int], columns: Columns) -> dict[int, tuple[Any, ...]]:
        """The rows of those of some ids that are there, by their ids."""
        rows: dict[int, tuple[Any, ...]] = {}
        for start in range(0, len(ids), CHUNK):
            listed = ", ".join(map(str, ids[start : start + CHUNK]))
            rows |= {row[0]: row for row in self._database.rows(columns, f"id IN ({listed})")}
        return rows

    def ids_by_key(self, keys: Sequence[str], columns: Columns) -> Integers:
        """The id of the image of each key, see `Table.image_keys`; -1 where there is none."""
        columns = {name: each for name, each in columns.items() if name in ("path", *BOX_COLUMNS)}
        found: dict[str, int] = {}
        if "path" in columns:
            paths = list(dict.fromkeys(path for key in keys for path in (key, key.rpartition(" [")[0]) if path))
            for start in range(0, len(paths), CHUNK):
                some = paths[start : start + CHUNK]
                where = f"{columns['path'][0]} IN ({', '.join('?' * len(some))})"
                frame = frame_of_rows(self._database.rows(columns, where, some), columns)
                for key, number in zip(image_keys(frame), frame["id"].tolist(), strict=True):
                    found.setdefault(key, number)
        return np.array([found.get(key, -1) for key in keys], dtype=np.int64)

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

        Args:
            condition: the text.
            columns: of the database.
            aliases: other names of columns.
            shown_from: the folder from which on conditions see paths, "" if it is unknown; None: they see all of them.
        """

        def expression(column: str) -> str:
            key = "id" if column == "id" else columns[column][0]
            if column != "path" or shown_from is None:
                return key
            quoted = "'" + shown_from.replace("'", "''") + "'"
            return f"shown_path({key}, {quoted if shown_from else 'NULL'})"

        tree = parse_index_condition(condition, columns, aliases)
        written = SQLWriter(kinds_of(columns), condition, expression).write(tree)
        with self._database.reading() as connection:
            found = fulfilling(connection, "SELECT id FROM items WHERE {} ORDER BY id", written, condition)
            return np.fromiter((number for (number,) in found), np.int64)

    def paths(self, columns: Columns) -> dict[int, str]:
        """The paths of the images that have one, by their ids."""
        columns = {name: each for name, each in columns.items() if name == "path"}
        return dict(self._database.rows(columns, f"{columns['path'][0]} IS NOT NULL")) if columns else {}

    def frames(self, columns: Columns) -> Iterator[pd.DataFrame]:
        """Yield all rows, in blocks of ascending ids: one empty block if the index is empty."""
        pages = self._database.pages(columns)
        for page in chain([next(pages, [])], pages):
            yield frame_of_rows(page, columns)

    def distinct_values(self, column: str, columns: Columns, at_most: int) -> list[Any]:
        """The values of a column, without duplicates; some of them if there are more than `at_most`."""
        key, kind = columns[column]
        values = self._database.distinct(key, at_most)
        return list(map(bool, values)) if kind.kind == "boolean" else values


def frame_of_rows(rows: Sequence[tuple[Any, ...]], columns: Columns) -> pd.DataFrame:
    """The frame of rows of the database."""
    ids, *values = zip(*rows, strict=True) if rows else ((), *(() for _ in columns))
    return frame_of_values(ids, dict(zip(columns, values, strict=True)), kinds_of(columns))


def kinds_of(columns: Columns) -> Kinds:
    """The kinds of columns."""
    return {name: kind for name, (_, kind) in columns.items()}
