"""Conditions on the columns of a table, such as `category == 'cup' and price < 20`: parsed, and never run as code."""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd

from vicinal.utils.arrays import Booleans
from vicinal.utils.errors import InputError

MAX_CHARACTERS = 10_000
QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]*)`""")
COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
ALLOWED = (
    "it may have comparisons (equal is ==), and, or, not, in, is None, columns, texts in quotation marks and numbers"
)
Operand: TypeAlias = "pd.Series | str | float | bool | None"


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
    return _Condition(frame, condition, aliases or {}).rows()


class _Condition:
    """A condition that is evaluated on the columns of a frame."""

    def __init__(self, frame: pd.DataFrame, text: str, aliases: Mapping[str, str]) -> None:
        self.frame, self.text, self.aliases = frame, text, aliases
        self.backquoted: dict[str, str] = {}

    def rows(self) -> Booleans:
        if not self.text.strip():
            self._fail("it is empty; give one such as \"category == 'cup' and price < 20\"")
        if len(self.text) > MAX_CHARACTERS:
            self._fail(f"it has {len(self.text):,} characters; at most {MAX_CHARACTERS:,} are read")
        try:
            tree = ast.parse(QUOTED.sub(self._placeholder, self.text.strip()), mode="eval")
            return np.asarray(self._truth(tree.body), dtype=bool)
        except InputError:  # which is a ValueError
            raise
        except (SyntaxError, ValueError):
            self._fail(f"it cannot be parsed; {ALLOWED}")
        except (RecursionError, MemoryError):
            self._fail("it is nested too deeply")

    def _placeholder(self, found: re.Match[str]) -> str:
        """A name in backquotes becomes a word that is no column; a text in quotation marks stays."""
        if found[1] is None:
            return found[0]
        word = f"backquoted_{len(self.backquoted)}_"
        while word in self.frame or word in self.text:
            word += "_"
        self.backquoted[word] = found[1]
        return word

    def _truth(self, node: ast.expr) -> Any:
        """A condition, bool [rows]."""
        if isinstance(node, ast.BoolOp):
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return combine.reduce([self._truth(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self._truth(node.operand)
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.Name):
            column = self._column(node)
            if pd.api.types.is_bool_dtype(column):
                return column.fillna(value=False).to_numpy(dtype=bool)
            self._fail(f"column {column.name!r} alone is no condition, since it holds no booleans; compare it")
        return self._fail(f"{self._shown(node)} is no condition; {ALLOWED}")

    def _comparisons(self, node: ast.Compare) -> Any:
        sides = [node.left, *node.comparators]
        results = [
            self._comparison(left, op, right) for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return np.logical_and.reduce(results)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(op, (ast.In, ast.NotIn)):
            found, known = self._contained(left, right)
            return (known & ~found) if isinstance(op, ast.NotIn) else found
        first, second = self._operand(left), self._operand(right)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not isinstance(first, pd.Series) or second is not None:
                self._fail(f"{self._shown(left)} is compared by `is`, which only asks `column is None`; use ==")
            missing = (first.isna() | (first.astype(object) == "")).to_numpy(dtype=bool)
            return ~missing if isinstance(op, ast.IsNot) else missing
        if first is None or second is None:
            self._fail("a missing value is asked for by `column is None`")
        if not isinstance(first, pd.Series) and not isinstance(second, pd.Series):
            self._fail(f"{self._shown(left)} and {self._shown(right)} are compared, of which none is a column")
        return self._compare(first, COMPARISONS[type(op)], second)

    def _compare(self, first: Operand, comparison: tuple[str, Callable[[Any, Any], Any]], second: Operand) -> Any:
        """Compare a column with a value or with another column, in their common type."""
        sign, compare = comparison
        first, second = self._numeric_if(first, second), self._numeric_if(second, first)
        if _is_number(first) != _is_number(second):
            text, number = (second, first) if _is_number(first) else (first, second)
            self._fail(f"{_named(number)} is a number and {_named(text)} a text; they cannot be compared by {sign}")
        known = _known(first, len(self.frame)) & _known(second, len(self.frame))
        result = np.zeros(len(self.frame), dtype=bool)
        result[known] = compare(_values(first, known), _values(second, known))
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

    def _contained(self, left: ast.expr, right: ast.expr) -> tuple[Any, Any]:
        """Which rows fulfill `left in right`, and which have the values to tell."""
        if isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            column = self._operand(left)
            if not isinstance(column, pd.Series) or not right.elts:
                self._fail(f"{self._shown(left)} in a list; a column can be in a list of one value or more")
            equals = [self._compare(column, COMPARISONS[ast.Eq], self._literal(each)) for each in right.elts]
            return np.logical_or.reduce(equals), _known(column, len(self.frame))
        text, column = self._operand(left), self._operand(right)
        if not isinstance(text, str) or not isinstance(column, pd.Series) or _is_number(column):
            self._fail("`in` takes a column in a list, such as size in ['S', 'M'], or a text in a column of texts")
        known = _known(column, len(self.frame))
        found = np.zeros(len(self.frame), dtype=bool)
        found[known] = [text in str(value) for value in _values(column, known)]
        return found, known

    def _operand(self, node: ast.expr) -> Operand:
        return self._column(node) if isinstance(node, ast.Name) else self._literal(node)

    def _literal(self, node: ast.expr) -> str | float | bool | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = self._literal(node.operand)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        return self._fail(f"{self._shown(node)} is neither a column, a text nor a number; {ALLOWED}")

    def _column(self, node: ast.Name) -> pd.Series:
        name = self.backquoted.get(node.id, node.id)
        if name not in self.frame:
            name = self.aliases.get(name, name)
        if name in self.frame:
            return self.frame[name]
        columns = [str(column) for column in self.frame.columns]
        near = difflib.get_close_matches(name, columns, n=1)
        return self._fail(
            f"no column {name!r}"
            + (f", did you mean {near[0]!r}?" if near else f"; the columns are {', '.join(columns) or 'none'}")
        )

    def _shown(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        for word, name in self.backquoted.items():
            text = text.replace(word, f"`{name}`")
        return text if len(text) <= 80 else f"{text[:79]}…"

    def _fail(self, reason: str) -> NoReturn:
        text = self.text if len(self.text) <= 200 else f"{self.text[:199]}…"
        raise InputError(f'condition "{text}": {reason}')


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
