"""Conditions as filter expressions of Milvus, on the JSON field that holds the columns.

Milvus Lite has no parameters in expressions, so that values are quoted: numbers by Python, and texts as JSON, whose
escapes are those of Milvus. Names of columns never stand in an expression unless they are plain words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from vicinal.data.condition_syntax import Value
from vicinal.retrieval.index.filters import FilterWriter

COLUMNS = "columns"  # the JSON field
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
OWN = "x_"  # names that are not plain words begin so
NUMBER = "x_number_"  # before the name of a column of texts: the numbers that they say
FALSE = "id < 0"  # ids are positive


def column_key(name: str) -> str:
    """The key of a column: its name if that is a plain word, else one that follows from it.

    Example:
        >>> column_key("price"), column_key('odd "name"]')
        ('price', 'x_673c79e60604ea6832f5')
    """
    if PLAIN.fullmatch(name) and not name.startswith(OWN):
        return name
    return OWN + hashlib.sha256(name.encode()).hexdigest()[:20]


def quoted(text: str) -> str:
    r"""A text as a literal of an expression.

    Example:
        >>> print(quoted("5\" wide"))
        "5\" wide"
    """
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A text as part of a pattern of LIKE, in which it stands for itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)


class MilvusFilterWriter(FilterWriter[str]):
    """Writes conditions as expressions."""

    def conjunction(self, parts: Sequence[str]) -> str:
        return f"({' and '.join(parts)})"

    def disjunction(self, parts: Sequence[str]) -> str:
        return f"({' or '.join(parts)})" if parts else f"({FALSE})"

    def negation(self, part: str) -> str:
        return f"(not {part})"

    def has_value(self, column: str) -> str:
        return "(id >= 0)" if column == "id" else f"(exists {_field(column)})"

    def compared(self, column: str, sign: str, value: Value, as_number: bool) -> str:
        if column == "id":
            return f"(id {sign} {_literal(value)})"
        field = _field(column, NUMBER if as_number else "")
        return _known_and(field, f"{field} {sign} {_literal(value)}")

    def columns_compared(self, left: str, sign: str, right: str, as_number: bool) -> str:
        return self.fail(f"Milvus compares columns with values only, not {left!r} with {right!r}")

    def containing(self, column: str, text: str) -> str:
        return _known_and(_field(column), f"{_field(column)} like {quoted(f'%{pattern(text)}%')}")


def path_expression(path: str) -> str:
    """The images of a file, or of those in a folder and below."""
    below = path.rstrip("/") + "/"
    return f"({_field('path')} == {quoted(path)} or {_field('path')} like {quoted(f'{pattern(below)}%')})"


def _known_and(field: str, comparison: str) -> str:
    """A comparison that is false, and neither null nor an error, where the value is missing."""
    return f"((exists {field}) and ({comparison}))"


def _field(column: str, prefix: str = "") -> str:
    return f'{COLUMNS}["{prefix}{column_key(column)}"]'


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value)
