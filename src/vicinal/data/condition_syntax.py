"""The syntax of conditions on columns: a text becomes a tree of comparisons, which a frame or a database evaluates."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from vicinal.utils.errors import InputError

MAX_CHARACTERS = 10_000
QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]*)`""")
SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
ALLOWED = (
    "it may have comparisons (equal is ==), and, or, not, in, is None, columns, texts in quotation marks and numbers"
)
Value: TypeAlias = "str | float | bool"


@dataclass(frozen=True)
class Column:
    """A column, by its name."""

    name: str


@dataclass(frozen=True)
class And:
    """All parts are fulfilled."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    """One part at least is fulfilled."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The part is not fulfilled; a comparison with a missing value is not."""

    part: Condition


@dataclass(frozen=True)
class Comparison:
    """Two sides, one of them a column at least, compared by `==`, `!=`, `<`, `<=`, `>` or `>=`."""

    left: Column | Value
    sign: str
    right: Column | Value


@dataclass(frozen=True)
class OneOf:
    """A column has one of some values, or if negated another one."""

    column: Column
    values: tuple[Value, ...]
    is_negated: bool


@dataclass(frozen=True)
class Contains:
    """A column of texts contains a text, or if negated does not."""

    text: str
    column: Column
    is_negated: bool


@dataclass(frozen=True)
class Missing:
    """A column has no value, or an empty text; if negated, it has one."""

    column: Column
    is_negated: bool


@dataclass(frozen=True)
class IsTrue:
    """A column of booleans is true."""

    column: Column


Condition: TypeAlias = And | Or | Not | Comparison | OneOf | Contains | Missing | IsTrue


def parse_condition(text: str, columns: Collection[str], aliases: Mapping[str, str] | None = None) -> Condition:
    """Parse a condition, whose syntax is that of :func:`vicinal.data.matching_rows`.

    Example:
        >>> parse_condition("price < 20", ["price"])
        Comparison(left=Column(name='price'), sign='<', right=20)
    """
    return _Parser(text, columns, aliases or {}).parse()


def column_names(condition: Condition) -> Iterator[str]:
    """Yield the names of the columns of a condition."""
    if isinstance(condition, (And, Or)):
        for part in condition.parts:
            yield from column_names(part)
    elif isinstance(condition, Not):
        yield from column_names(condition.part)
    elif isinstance(condition, Comparison):
        yield from (side.name for side in (condition.left, condition.right) if isinstance(side, Column))
    else:
        yield condition.column.name


def condition_error(text: str, reason: str) -> InputError:
    """The error of an invalid condition."""
    shown = text if len(text) <= 200 else f"{text[:199]}…"
    return InputError(f'condition "{shown}": {reason}')


class _Parser:
    def __init__(self, text: str, columns: Collection[str], aliases: Mapping[str, str]) -> None:
        self.text, self.columns, self.aliases = text, columns, aliases
        self.backquoted: dict[str, str] = {}

    def parse(self) -> Condition:
        if not self.text.strip():
            self._fail("it is empty; give one such as \"category == 'cup' and price < 20\"")
        if len(self.text) > MAX_CHARACTERS:
            self._fail(f"it has {len(self.text):,} characters; at most {MAX_CHARACTERS:,} are read")
        try:
            tree = ast.parse(QUOTED.sub(self._placeholder, self.text.strip()), mode="eval")
            return self._truth(tree.body)
        except InputError:  # which is a ValueError
            raise
        except (SyntaxError, ValueError):
            self._fail(f"it cannot be parsed; {ALLOWED}")
        except (RecursionError, MemoryError):
            self._fail("it is nested too deeply")

    def _placeholder(self, found: re.Match[str]) -> str:
        """A name in backquotes becomes a word that is not a column; a text in quotation marks stays."""
        if found[1] is None:
            return found[0]
        word = f"backquoted_{len(self.backquoted)}_"
        while word in self.columns or word in self.text:
            word += "_"
        self.backquoted[word] = found[1]
        return word

    def _truth(self, node: ast.expr) -> Condition:
        if isinstance(node, ast.BoolOp):
            combined = And if isinstance(node.op, ast.And) else Or
            return combined(tuple(self._truth(value) for value in node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Not(self._truth(node.operand))
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.Name):
            return IsTrue(self._column(node))
        return self._fail(f"{self._shown(node)} is not a condition; {ALLOWED}")

    def _comparisons(self, node: ast.Compare) -> Condition:
        sides = [node.left, *node.comparators]
        parts = tuple(
            self._comparison(left, op, right) for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
        )
        return And(parts) if len(parts) > 1 else parts[0]

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._membership(left, right, isinstance(op, ast.NotIn))
        first, second = self._operand(left), self._operand(right)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not isinstance(first, Column) or second is not None:
                self._fail(f"{self._shown(left)} is compared with `is`, which only tests for None; use ==")
            return Missing(first, isinstance(op, ast.IsNot))
        if first is None or second is None:
            self._fail("test for a missing value by `column is None`")
        if not isinstance(first, Column) and not isinstance(second, Column):
            self._fail(f"{self._shown(left)} and {self._shown(right)} are compared, but neither is a column")
        return Comparison(first, SIGNS[type(op)], second)

    def _membership(self, left: ast.expr, right: ast.expr, is_negated: bool) -> Condition:
        side = self._operand(left)
        if isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            if not isinstance(side, Column) or not right.elts:
                self._fail(f"{self._shown(left)} in a list; `in` needs a column and one value or more")
            values = [self._literal(each) for each in right.elts]
            if any(value is None for value in values):
                self._fail("test for a missing value by `column is None`")
            return OneOf(side, tuple(value for value in values if value is not None), is_negated)
        column = self._operand(right)
        if not isinstance(side, str) or not isinstance(column, Column):
            self._fail("`in` needs a column in a list, such as size in ['S', 'M'], or a text in a column of texts")
        return Contains(side, column, is_negated)

    def _operand(self, node: ast.expr) -> Column | Value | None:
        return self._column(node) if isinstance(node, ast.Name) else self._literal(node)

    def _literal(self, node: ast.expr) -> Value | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = self._literal(node.operand)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        return self._fail(f"{self._shown(node)} is neither a column, a text nor a number; {ALLOWED}")

    def _column(self, node: ast.Name) -> Column:
        name = self.backquoted.get(node.id, node.id)
        if name not in self.columns:
            name = self.aliases.get(name, name)
        if name in self.columns:
            return Column(name)
        columns = [str(column) for column in self.columns]
        near = difflib.get_close_matches(name, columns, n=1)
        hint = f", did you mean {near[0]!r}?" if near else f"; the columns are {', '.join(columns) or 'none'}"
        return self._fail(f"no column {name!r}{hint}")

    def _shown(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        for word, name in self.backquoted.items():
            text = text.replace(word, f"`{name}`")
        return text if len(text) <= 80 else f"{text[:79]}…"

    def _fail(self, reason: str) -> NoReturn:
        raise condition_error(self.text, reason) from None
