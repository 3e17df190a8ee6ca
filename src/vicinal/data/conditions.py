"""Conditions on the columns of a table, such as `price < 20`, as SQL: parsed, and never run as code."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.column_kinds import ColumnKind, column_values
from vicinal.data.columns import is_unicode
from vicinal.data.condition_syntax import Value, column_names, condition_error, parse_condition
from vicinal.data.condition_writer import ConditionWriter
from vicinal.utils.arrays import Booleans

SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class SQLFilter:
    """A condition of a WHERE clause, true or false but never NULL, and its parameters by their names."""

    text: str
    parameters: dict[str, Any] = field(default_factory=dict)


EVERY_ROW = SQLFilter("TRUE")


class SQLWriter(ConditionWriter[SQLFilter]):
    """Writes conditions in the SQL of SQLite; that of PostgreSQL is a subclass.

    `column_of` gives the quoted name of a column, or the expression that stands for it.
    """

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str, column_of: Callable[[str], str]) -> None:
        super().__init__(kinds, text)
        self.column_of, self._count = column_of, 0

    def conjunction(self, parts: Sequence[SQLFilter]) -> SQLFilter:
        return self._joined(parts, "AND") if parts else SQLFilter("TRUE")

    def disjunction(self, parts: Sequence[SQLFilter]) -> SQLFilter:
        return self._joined(parts, "OR") if parts else SQLFilter("FALSE")

    def negation(self, part: SQLFilter) -> SQLFilter:
        return SQLFilter(f"(NOT {part.text})", part.parameters)

    def has_value(self, column: str) -> SQLFilter:
        return SQLFilter(f"({self.column_of(column)} IS NOT NULL)")

    def compared(self, column: str, sign: str, value: Value, as_number: bool) -> SQLFilter:
        name, parameters = self._parameter(value)
        is_integer = isinstance(value, int)
        left = self.side(column, sign, as_number, is_integer)
        return SQLFilter(f"(({left} {SIGNS[sign]} {name}) IS TRUE)", parameters)

    def columns_compared(self, left: str, sign: str, right: str, as_number: bool) -> SQLFilter:
        sides = [self.side(column, sign, as_number, is_integer=False) for column in (left, right)]
        return SQLFilter(f"(({sides[0]} {SIGNS[sign]} {sides[1]}) IS TRUE)")

    def containing(self, column: str, text: str) -> SQLFilter:
        name, parameters = self._parameter(text)
        return SQLFilter(f"(({self.position(self.column_of(column), name)} > 0) IS TRUE)", parameters)

    def side(self, column: str, sign: str, as_number: bool, is_integer: bool) -> str:
        """A column as it is compared: a text in the order of its characters, or as the number in it."""
        name = self.column_of(column)
        is_text_of_number = as_number and self.kinds[column].kind == "string"
        return f"CAST(nullif({name}, '') AS NUMERIC)" if is_text_of_number else name

    def position(self, column: str, text: str) -> str:
        """The position of a text in a column of texts, from 1; 0 if it does not occur."""
        return f"instr({column}, {text})"

    def placeholder(self, name: str) -> str:
        """A parameter by its name."""
        return f":{name}"

    def _parameter(self, value: Value) -> tuple[str, dict[str, Any]]:
        if isinstance(value, str):
            self.check_text(value)
        self._count += 1
        name = f"value_{self._count}"
        return self.placeholder(name), {name: value}

    def check_text(self, text: str) -> None:
        """Refuse a text that a database cannot hold."""
        if not is_unicode(text):
            self.fail("it holds a text with half a character, which a database cannot store")

    def _joined(self, parts: Sequence[SQLFilter], word: str) -> SQLFilter:
        """Parts in a tree of little depth, which databases limit."""
        if len(parts) == 1:
            return parts[0]
        middle = len(parts) // 2
        left, right = self._joined(parts[:middle], word), self._joined(parts[middle:], word)
        return SQLFilter(f"({left.text} {word} {right.text})", {**left.parameters, **right.parameters})


def matching_rows(frame: pd.DataFrame, condition: str, aliases: Mapping[str, str] | None = None) -> Booleans:
    """Whether each row of a frame fulfills a condition, bool `[rows]`.

    A condition has the syntax that Python and SQL have in common: ``category == 'cup' and price < 20``.

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
    frame = frame.rename(columns=str)
    tree = parse_condition(condition, frame.columns.tolist(), aliases)
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
    """The rows of a query of SQLite, in which {} stands for a filter."""
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
