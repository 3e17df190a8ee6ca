"""Conditions in the language of a database: a tree becomes a filter that means the same everywhere."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from vicinal.data import condition_syntax as syntax
from vicinal.data.column_kinds import MAX_INTEGER, ColumnKind, exact_comparison

Filter = TypeVar("Filter")
SWAPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ID = ColumnKind("integer")


class ConditionWriter(ABC, Generic[Filter]):
    """Writes conditions as filters of a database; a missing value fulfills no comparison."""

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str) -> None:
        self.kinds, self.text = {"id": ID, **kinds}, text

    @abstractmethod
    def conjunction(self, parts: Sequence[Filter]) -> Filter:
        """The conjunction of filters; true for none."""

    @abstractmethod
    def disjunction(self, parts: Sequence[Filter]) -> Filter:
        """The disjunction of filters; false for none."""

    @abstractmethod
    def negation(self, part: Filter) -> Filter:
        """The negation of a filter that is true or false."""

    @abstractmethod
    def has_value(self, column: str) -> Filter:
        """The column has a value."""

    @abstractmethod
    def compared(self, column: str, sign: str, value: syntax.Value, as_number: bool) -> Filter:
        """The column compared with a value of its kind; a text is compared as text, or as the number in it."""

    @abstractmethod
    def columns_compared(self, left: str, sign: str, right: str, as_number: bool) -> Filter:
        """Two columns compared."""

    @abstractmethod
    def containing(self, column: str, text: str) -> Filter:
        """A column of texts that contain a text."""

    def write(self, condition: syntax.Condition) -> Filter:
        """The filter of a condition."""
        try:
            return self._write(condition)
        except RecursionError:
            self.fail("it is nested too deeply")

    def _write(self, condition: syntax.Condition) -> Filter:
        if isinstance(condition, syntax.Not):
            return self.negation(self._write(condition.part))
        if isinstance(condition, syntax.Comparison):
            return self._comparison(condition)
        if isinstance(condition, syntax.OneOf):
            equal = [self._with_value(condition.column.name, "==", value) for value in condition.values]
            return self._selected(condition.column.name, self.disjunction(equal), condition.is_negated)
        if isinstance(condition, syntax.Contains):
            return self._contains(condition)
        if isinstance(condition, syntax.Missing):
            return self._missing(condition)
        if isinstance(condition, syntax.IsTrue):
            return self._is_true(condition.column.name)
        parts = [self._write(part) for part in condition.parts]
        return self.conjunction(parts) if isinstance(condition, syntax.And) else self.disjunction(parts)

    def _comparison(self, condition: syntax.Comparison) -> Filter:
        left, right = condition.left, condition.right
        if isinstance(left, syntax.Column) and isinstance(right, syntax.Column):
            return self._columns(left.name, condition.sign, right.name)
        if isinstance(left, syntax.Column) and not isinstance(right, syntax.Column):
            return self._with_value(left.name, condition.sign, right)
        assert isinstance(right, syntax.Column)
        assert not isinstance(left, syntax.Column)
        return self._with_value(right.name, SWAPPED[condition.sign], left)

    def _columns(self, left: str, sign: str, right: str) -> Filter:
        kinds = [self.kinds[name].kind for name in (left, right)]
        if "empty" in kinds:
            return self.disjunction([])
        for name, other in ((left, right), (right, left)):
            if self.kinds[name].kind == "string" != self.kinds[other].kind:
                self._check_numeric(name, sign, f"column {other!r}")
        return self.columns_compared(left, sign, right, kinds != ["string", "string"])

    def _with_value(self, column: str, sign: str, value: syntax.Value) -> Filter:
        kind = self.kinds[column].kind
        if kind == "empty":
            return self.disjunction([])
        if isinstance(value, str):
            if kind != "string":
                self.fail(f"column {column!r} is a number and {value!r} a text; they cannot be compared by {sign}")
            return self.compared(column, sign, value, as_number=False)
        if kind == "string":
            self._check_numeric(column, sign, repr(value)[:80])
        if kind == "boolean":
            equal = [each for each in (False, True) if COMPARE[sign](each, value)]
            return self.disjunction([self.compared(column, "==", each, as_number=False) for each in equal])
        if kind == "string" and isinstance(value, int) and abs(value) <= MAX_INTEGER:
            return self.compared(column, sign, int(value), as_number=True)
        exact = exact_comparison(kind, sign, value)
        if isinstance(exact, bool):
            return self.has_value(column) if exact else self.disjunction([])
        return self.compared(column, *exact, as_number=kind == "string")

    def _check_numeric(self, column: str, sign: str, other: str) -> None:
        if not self.kinds[column].is_numeric:
            self.fail(
                f"column {column!r} holds texts that are not numbers, and {other} is a number; they cannot be compared "
                f"by {sign}: put texts in quotation marks"
            )

    def _contains(self, condition: syntax.Contains) -> Filter:
        column = condition.column.name
        if self.kinds[column].kind == "empty":
            return self.disjunction([])
        if self.kinds[column].kind != "string":
            self.fail("`in` needs a column in a list, such as size in ['S', 'M'], or a text in a column of texts")
        found = self.containing(column, condition.text) if condition.text else self.has_value(column)
        return self._selected(column, found, condition.is_negated)

    def _missing(self, condition: syntax.Missing) -> Filter:
        column = condition.column.name
        missing = self.negation(self.has_value(column))
        if self.kinds[column].kind == "string":
            missing = self.disjunction([missing, self.compared(column, "==", "", as_number=False)])
        return self.negation(missing) if condition.is_negated else missing

    def _is_true(self, column: str) -> Filter:
        if self.kinds[column].kind == "empty":
            return self.disjunction([])
        if self.kinds[column].kind != "boolean":
            self.fail(f"column {column!r} is not boolean; compare it with a value, such as {column} == 1")
        return self.compared(column, "==", True, as_number=False)

    def _selected(self, column: str, found: Filter, is_negated: bool) -> Filter:
        return self.conjunction([self.has_value(column), self.negation(found)]) if is_negated else found

    def fail(self, reason: str) -> NoReturn:
        """Raise the InputError of an invalid condition."""
        raise syntax.condition_error(self.text, reason) from None
