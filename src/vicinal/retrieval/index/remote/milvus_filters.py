"""Conditions as filter expressions of Milvus, on the JSON field that holds the columns.

Milvus Lite has no parameters in expressions, so that values are quoted: numbers by Python, and texts with escapes for
quotation marks, backslashes and ends of lines. Names of columns stand in an expression only if they are plain words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from vicinal.data.column_kinds import ColumnKind
from vicinal.data.condition_syntax import Value
from vicinal.data.condition_writer import ConditionWriter

COLUMNS = "columns"  # the JSON field
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
OWN = "x_"  # prefix of the keys of names that are not plain words
NUMBER = "x_number_"  # prefix of the key of a text column for the numbers in its texts
FALSE = "id < 0"  # ids are positive
MAX_FLOAT = 1.7976931348623157e308  # no column holds infinity
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})  # all that end a literal


def column_key(name: str) -> str:
    """The key of a column: its name if that is a plain word, else a key derived from it.

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
    return f'"{text.translate(ESCAPES)}"'


def pattern(text: str) -> str:
    """A text escaped for use in a LIKE pattern."""
    return re.sub(r"([\\%_])", r"\\\1", text)


class MilvusWriter(ConditionWriter[str]):
    """Writes conditions as expressions; Milvus Lite cannot escape % and _ in a pattern."""

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str, has_escapes: bool = True) -> None:
        super().__init__(kinds, text)
        self._has_escapes = has_escapes

    def conjunction(self, parts: Sequence[str]) -> str:
        return f"({' and '.join(parts)})" if parts else "(id >= 0)"

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
        if not self._has_escapes and any(character in text for character in "%_"):
            self.fail(f"Milvus Lite cannot find {text!r} in texts, as it cannot escape % and _; Milvus can")
        searched = pattern(text) if self._has_escapes else text
        return _known_and(_field(column), f"{_field(column)} like {quoted(f'%{searched}%')}")


def path_expression(path: str) -> str:
    """The images of a file, or of those in a folder and below: texts between two others, as no pattern is needed.

    Example:
        >>> path_expression("/photos/")
        '(columns["path"] == "/photos/" or (columns["path"] >= "/photos/" and columns["path"] < "/photos0"))'
    """
    field, folder = _field("path"), path.rstrip("/")
    below, after = quoted(folder + "/"), quoted(folder + chr(ord("/") + 1))
    return f"({field} == {quoted(path)} or ({field} >= {below} and {field} < {after}))"


def _known_and(field: str, comparison: str) -> str:
    """A comparison that is false, and neither null nor an error, where the value is missing."""
    return f"((exists {field}) and ({comparison}))"


def _field(column: str, prefix: str = "") -> str:
    return f'{COLUMNS}["{prefix}{column_key(column)}"]'


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(max(min(value, MAX_FLOAT), -MAX_FLOAT))
    return quoted(value) if isinstance(value, str) else repr(value)
