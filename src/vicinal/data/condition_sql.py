"""Conditions in SQL: values are parameters, and names of columns are quoted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vicinal.data.column_kinds import ColumnKind, is_unicode
from vicinal.data.condition_syntax import Value
from vicinal.data.condition_writer import ConditionWriter

SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class SQLFilter:
    """A condition of a WHERE clause, true or false but never NULL, and its parameters by their names."""

    text: str
    parameters: dict[str, Any] = field(default_factory=dict)


EVERY_ROW = SQLFilter("TRUE")


class SQLWriter(ConditionWriter[SQLFilter]):
    """Writes conditions in the SQL of SQLite; that of PostgreSQL is a subclass.

    Args:
        kinds: of the columns.
        text: the condition, for messages.
        column_of: the quoted name of a column, or the expression that stands for it.

    Example:
        >>> from vicinal.data.condition_syntax import parse_condition
        >>> writer = SQLWriter({"price": ColumnKind("integer")}, "", lambda name: f'"{name}"')
        >>> writer.write(parse_condition("price < 20", ["price"]))
        SQLFilter(text='(("price" < :value_1) IS TRUE)', parameters={'value_1': 20})
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
        """A column as it is compared: a text in the order of its characters, or as the number that it says."""
        name = self.column_of(column)
        is_text_of_number = as_number and self.kinds[column].kind == "string"
        return f"CAST(nullif({name}, '') AS NUMERIC)" if is_text_of_number else name

    def position(self, column: str, text: str) -> str:
        """The place of a text in a column of texts, from 1; 0 if it is not there."""
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
            self.fail("it holds a text with half a character, which no text of a database has")

    def _joined(self, parts: Sequence[SQLFilter], word: str) -> SQLFilter:
        """Parts in a tree of little depth, which databases limit."""
        if len(parts) == 1:
            return parts[0]
        middle = len(parts) // 2
        left, right = self._joined(parts[:middle], word), self._joined(parts[middle:], word)
        return SQLFilter(f"({left.text} {word} {right.text})", {**left.parameters, **right.parameters})
