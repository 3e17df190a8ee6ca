"""Conditions in the SQL of PostgreSQL, where it differs from that of SQLite."""

from __future__ import annotations

from collections.abc import Mapping

from vicinal.data.column_kinds import ColumnKind
from vicinal.data.conditions import SQLWriter
from vicinal.retrieval.index.remote.postgres_columns import column_key


class PostgresWriter(SQLWriter):
    """Writes conditions in SQL.

    Args:
        kinds: of the columns.
        text: the condition, for messages.
    """

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str) -> None:
        super().__init__(kinds, text, _quoted)

    def side(self, column: str, sign: str, as_number: bool, is_integer: bool) -> str:
        """A column as it is compared; PostgreSQL converts nothing by itself, and sorts texts by a language."""
        name, kind = self.column_of(column), self.kinds[column].kind
        if kind == "boolean":
            return f"{name}::int" if as_number else name
        if kind != "string":
            return name
        if as_number:
            return f"nullif({name}, '')::{'numeric' if is_integer else 'double precision'}"
        return name if sign in ("==", "!=") else f'{name} COLLATE "C"'

    def position(self, column: str, text: str) -> str:
        return f"strpos({column}, {text})"

    def placeholder(self, name: str) -> str:
        return f"%({name})s"

    def check_text(self, text: str) -> None:
        super().check_text(text)
        if "\0" in text:
            self.fail("it holds a text with a NUL character, which no text of PostgreSQL has")


def _quoted(name: str) -> str:
    """The quoted name of a column; a percent sign would begin a parameter."""
    return '"' + column_key(name).replace('"', '""').replace("%", "%%") + '"'
