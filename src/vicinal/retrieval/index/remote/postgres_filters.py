"""Conditions in SQL: values are parameters, and names of columns are quoted by the client of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from vicinal.data.condition_syntax import Value
from vicinal.retrieval.index.remote.filters import FilterWriter
from vicinal.retrieval.index.remote.payload import ColumnKind
from vicinal.retrieval.index.remote.postgres_columns import column_name

SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class SQLFilter:
    """A condition of a WHERE clause, true or false but never NULL, and its parameters by their names."""

    text: sql.Composable
    parameters: dict[str, Any] = field(default_factory=dict)


EVERY_ROW = SQLFilter(sql.SQL("TRUE"))


class PostgresFilterWriter(FilterWriter[SQLFilter]):
    """Writes conditions in SQL."""

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str) -> None:
        super().__init__(kinds, text)
        self._count = 0

    def conjunction(self, parts: Sequence[SQLFilter]) -> SQLFilter:
        return self._joined(parts, " AND ", "TRUE")

    def disjunction(self, parts: Sequence[SQLFilter]) -> SQLFilter:
        return self._joined(parts, " OR ", "FALSE")

    def negation(self, part: SQLFilter) -> SQLFilter:
        return SQLFilter(sql.SQL("(NOT {})").format(part.text), part.parameters)

    def has_value(self, column: str) -> SQLFilter:
        return SQLFilter(sql.SQL("({} IS NOT NULL)").format(column_name(column)))

    def compared(self, column: str, sign: str, value: Value, as_number: bool) -> SQLFilter:
        name, parameters = self._parameter(value)
        left = self._side(column, sign, as_number)
        return SQLFilter(_true_only(left, sign, sql.Placeholder(name)), parameters)

    def columns_compared(self, left: str, sign: str, right: str, as_number: bool) -> SQLFilter:
        sides = [self._side(column, sign, as_number) for column in (left, right)]
        return SQLFilter(_true_only(sides[0], sign, sides[1]))

    def containing(self, column: str, text: str) -> SQLFilter:
        name, parameters = self._parameter(text)
        found = sql.SQL("coalesce(strpos({}, {}) > 0, FALSE)").format(column_name(column), sql.Placeholder(name))
        return SQLFilter(found, parameters)

    def _side(self, column: str, sign: str, as_number: bool) -> sql.Composable:
        """A column as it is compared: a text in the order of its characters, or as the number that it says."""
        name, kind = column_name(column), self.kinds[column].kind
        if kind == "boolean":
            return sql.SQL("{}::int").format(name) if as_number else name
        if kind != "string":
            return name
        if as_number:
            return sql.SQL("nullif({}, '')::double precision").format(name)
        return name if sign in ("==", "!=") else sql.SQL('{} COLLATE "C"').format(name)

    def _parameter(self, value: Value) -> tuple[str, dict[str, Any]]:
        if isinstance(value, str):
            check_text(value, self.fail)
        self._count += 1
        name = f"value_{self._count}"
        return name, {name: value}

    @staticmethod
    def _joined(parts: Sequence[SQLFilter], word: str, empty: str) -> SQLFilter:
        if not parts:
            return SQLFilter(sql.SQL(empty))
        parameters = {name: value for part in parts for name, value in part.parameters.items()}
        return SQLFilter(sql.SQL("({})").format(sql.SQL(word).join(part.text for part in parts)), parameters)


def _true_only(left: sql.Composable, sign: str, right: sql.Composable) -> sql.Composable:
    return sql.SQL("coalesce({} {} {}, FALSE)").format(left, sql.SQL(SIGNS[sign]), right)


def check_text(text: str, fail: Any) -> None:
    """Refuse what no text of PostgreSQL can hold."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        fail("it holds a text with a NUL character or half a character, which no text of PostgreSQL has")
