"""Conditions on the columns of a table, such as `category == 'cup' and price < 20`: parsed, and never run as code."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.column_kinds import column_values
from vicinal.data.condition_sql import SQLFilter, SQLWriter
from vicinal.data.condition_syntax import column_names, condition_error, parse_condition
from vicinal.utils.arrays import Booleans


def matching_rows(frame: pd.DataFrame, condition: str, aliases: Mapping[str, str] | None = None) -> Booleans:
    """Whether each row of a frame fulfills a condition, bool `[rows]`.

    A condition has the syntax of Python and of SQL, as far as both agree: ``category == 'cup' and price < 20``.

    - Columns stand by their names; names that are not words stand in backquotes.
    - `==`, `!=`, `<`, `<=`, `>` and `>=` compare a column with a text, a number, True, False or another column, also
      in chains such as ``5 <= price < 20``. A column of texts that all are numbers, such as those of CSV files, can be
      compared with a number. Integers are compared exactly, however large.
    - ``category in ['cup', 'mug']`` and ``not in`` look for a value in a list; ``'blue' in name`` for a text in texts.
    - ``price is None`` and ``price is not None`` ask whether a value is missing. A missing value, or an empty cell that
      is compared with a number, fulfills no comparison, not even `!=`.
    - `and`, `or`, `not` and brackets combine conditions. A column of booleans is a condition itself.
    - Dates are texts such as ``'2020-01-31'`` or ``'2020-01-31 12:00:00'``.

    Nothing else is allowed, and nothing is evaluated by Python.

    Args:
        frame: The columns.
        condition: The condition.
        aliases: Further names of columns, such as `category` if a table's column of labels was called so.

    Raises:
        InputError: The condition cannot be parsed, names a column that does not exist, compares a text with a number,
            or a column that it names holds integers of more than 64 bits.

    Example:
        >>> frame = pd.DataFrame({"category": ["cup", "bowl", "cup"], "price": [12.5, 8.0, 30.0]})
        >>> matching_rows(frame, "category == 'cup' and price < 20").tolist()
        [True, False, False]
        >>> matching_rows(frame, "not price > 10").tolist()
        [False, True, False]
        >>> matching_rows(frame, "prize < 20")
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: condition "prize < 20": no column 'prize', did you mean 'price'?
    """
    tree = parse_condition(condition, [str(column) for column in frame], aliases)
    kinds, values, keys = {}, [], dict[str, str]()
    for name in dict.fromkeys(column_names(tree)):
        kinds[name], column = column_values(_encodable(frame[name]))
        values.append(column)
        keys[name] = f"c{len(keys)}"
    written = SQLWriter(kinds, condition, keys.__getitem__).write(tree)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE items (row INTEGER PRIMARY KEY, {', '.join(keys.values())})")
        places = ", ".join("?" * (1 + len(keys)))
        connection.executemany(f"INSERT INTO items VALUES ({places})", zip(range(len(frame)), *values, strict=True))
        rows = [row for (row,) in fulfilling(connection, "SELECT row FROM items WHERE {}", written, condition)]
    found = np.zeros(len(frame), dtype=bool)
    found[rows] = True
    return found


def fulfilling(
    connection: sqlite3.Connection, query: str, where: SQLFilter, condition: str, **parameters: Any
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query of SQLite, in which {} stands for a filter.

    Raises:
        InputError: the filter is nested too deeply for SQLite.
    """
    try:
        return connection.execute(query.format(where.text), {**where.parameters, **parameters})
    except sqlite3.OperationalError as error:
        if any(words in str(error) for words in ("too large", "stack overflow", "too many")):
            raise condition_error(condition, "it is nested too deeply") from None
        raise


def _encodable(column: pd.Series) -> pd.Series:
    """A column whose texts are Unicode: other bytes in names of files become question marks."""
    if column.dtype.kind not in "OUTS":
        return column
    return column.map(
        lambda value: value.encode(errors="replace").decode() if isinstance(value, str) else value, na_action="ignore"
    )
