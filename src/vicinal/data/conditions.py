"""Conditions on the columns of a table, such as `category == 'cup' and price < 20`: parsed, and never run as code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd

from vicinal.data.condition_syntax import (
    And,
    Column,
    Comparison,
    Condition,
    Contains,
    IsTrue,
    Missing,
    Not,
    OneOf,
    Or,
    Value,
    condition_error,
    parse_condition,
)
from vicinal.utils.arrays import Booleans

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Operand: TypeAlias = "pd.Series | Value"


def matching_rows(frame: pd.DataFrame, condition: str, aliases: Mapping[str, str] | None = None) -> Booleans:
    """Whether each row of a frame fulfills a condition, bool `[rows]`.

    A condition has the syntax of Python and of SQL, as far as both agree: ``category == 'cup' and price < 20``.

    - Columns stand by their names; names that are not words stand in backquotes.
    - `==`, `!=`, `<`, `<=`, `>` and `>=` compare a column with a text, a number, True, False or another column, also
      in chains such as ``5 <= price < 20``. A column of texts that all are numbers, such as those of CSV files, can be
      compared with a number.
    - ``category in ['cup', 'mug']`` and ``not in`` look for a value in a list; ``'blue' in name`` for a text in texts.
    - ``price is None`` and ``price is not None`` ask whether a value is missing. A missing value, or an empty cell that
      is compared with a number, fulfills no comparison, not even `!=`.
    - `and`, `or`, `not` and brackets combine conditions. A column of booleans is a condition itself.

    Nothing else is allowed, and nothing is evaluated by Python.

    Args:
        frame: The columns.
        condition: The condition.
        aliases: Further names of columns, such as `category` if a table's column of labels was called so.

    Raises:
        InputError: The condition cannot be parsed, names a column that there is not, or compares a text with a number.

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
    try:
        return np.asarray(_Rows(frame, condition).of(tree), dtype=bool)
    except RecursionError:
        raise condition_error(condition, "it is nested too deeply") from None


class _Rows:
    """The rows of a frame that fulfill a condition.

    Args:
        frame: the columns.
        text: the condition, for messages.
    """

    def __init__(self, frame: pd.DataFrame, text: str) -> None:
        self.frame, self.text = frame, text

    def of(self, condition: Condition) -> Any:
        """Whether each row fulfills it, bool [rows]."""
        if isinstance(condition, (And, Or)):
            combine = np.logical_and if isinstance(condition, And) else np.logical_or
            return combine.reduce([self.of(part) for part in condition.parts])
        if isinstance(condition, Not):
            return ~self.of(condition.part)
        if isinstance(condition, Comparison):
            return self._compare(self._side(condition.left), condition.sign, self._side(condition.right))
        column = self.frame[condition.column.name]
        if isinstance(condition, Missing):
            missing = (column.isna() | (column.astype(object) == "")).to_numpy(dtype=bool)
            return ~missing if condition.is_negated else missing
        if isinstance(condition, IsTrue):
            if not pd.api.types.is_bool_dtype(column):
                self._fail(f"column {column.name!r} alone is no condition, since it holds no booleans; compare it")
            return column.fillna(value=False).to_numpy(dtype=bool)
        found = self._one_of(column, condition) if isinstance(condition, OneOf) else self._containing(column, condition)
        return (_known(column, len(self.frame)) & ~found) if condition.is_negated else found

    def _one_of(self, column: pd.Series, condition: OneOf) -> Any:
        return np.logical_or.reduce([self._compare(column, "==", value) for value in condition.values])

    def _containing(self, column: pd.Series, condition: Contains) -> Any:
        if _is_number(column):
            self._fail("`in` takes a column in a list, such as size in ['S', 'M'], or a text in a column of texts")
        known = _known(column, len(self.frame))
        found = np.zeros(len(self.frame), dtype=bool)
        found[known] = [condition.text in str(value) for value in _values(column, known)]
        return found

    def _side(self, side: Column | Value) -> Operand:
        return self.frame[side.name] if isinstance(side, Column) else side

    def _compare(self, first: Operand, sign: str, second: Operand) -> Any:
        """Compare a column with a value or with another column, in their common type."""
        first, second = self._numeric_if(first, second), self._numeric_if(second, first)
        if _is_number(first) != _is_number(second):
            text, number = (second, first) if _is_number(first) else (first, second)
            self._fail(f"{_named(number)} is a number and {_named(text)} a text; they cannot be compared by {sign}")
        known = _known(first, len(self.frame)) & _known(second, len(self.frame))
        result = np.zeros(len(self.frame), dtype=bool)
        result[known] = COMPARISONS[sign](_values(first, known), _values(second, known))
        return result

    def _numeric_if(self, side: Operand, other: Operand) -> Operand:
        """A column of texts as numbers if it is compared with a number."""
        if not isinstance(side, pd.Series) or _is_number(side) or not _is_number(other):
            return side
        filled = side.mask((side.astype(object) == "").to_numpy(dtype=bool))
        numbers = pd.to_numeric(filled, errors="coerce")
        wrong = np.flatnonzero(numbers.isna().to_numpy() & filled.notna().to_numpy())
        if len(wrong):
            value = str(side.iloc[wrong[0]])[:80]
            self._fail(
                f"column {side.name!r} is compared with a number, but row {wrong[0]} holds {value!r}; "
                "a text stands in quotation marks"
            )
        return numbers

    def _fail(self, reason: str) -> NoReturn:
        raise condition_error(self.text, reason)


def _is_number(side: Operand) -> bool:
    """Whether values are compared as numbers; booleans are."""
    if isinstance(side, pd.Series):
        return pd.api.types.is_numeric_dtype(side)
    return isinstance(side, (int, float))


def _known(side: Operand, num_rows: int) -> Booleans:
    """The rows that have a value."""
    return side.notna().to_numpy(dtype=bool) if isinstance(side, pd.Series) else np.ones(num_rows, dtype=bool)


def _values(side: Operand, known: Booleans) -> Any:
    if not isinstance(side, pd.Series):
        return side
    values = side[known]
    return values.to_numpy() if _is_number(side) else values.astype(str).to_numpy(dtype=object)


def _named(side: Operand) -> str:
    return f"column {side.name!r}" if isinstance(side, pd.Series) else repr(side)
