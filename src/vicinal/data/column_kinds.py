"""The values of columns as a database keeps them: texts, numbers and booleans, of one kind per column."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vicinal.data.columns import is_unicode
from vicinal.utils.errors import InputError

MAX_INTEGER = 2**63 - 1
MAX_EXACT = 2**53  # a float holds every integer up to here
# no larger exponents, since databases refuse numbers that a float cannot hold
NUMBER = re.compile(r" *[+-]?([0-9]{1,200}(\.[0-9]{0,200})?|\.[0-9]{1,200})([eE][+-]?[0-9]{1,2})? *")
KINDS_OF_DTYPES = {"b": "boolean", "i": "integer", "u": "integer", "f": "floating"}


@dataclass(frozen=True)
class ColumnKind:
    """The type of the values of a column: `integer`, `floating`, `boolean`, `string`, or `empty` if all are missing.

    `is_numeric` says whether all texts of it are numbers or empty, as in the columns of a CSV file.
    """

    kind: str
    is_numeric: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"kind": self.kind, "is_numeric": self.is_numeric}


Kinds = dict[str, ColumnKind]


def column_values(column: pd.Series) -> tuple[ColumnKind, list[Any]]:
    """The kind of a column, and its values: int, float, bool, str, or None where one is missing.

    Values that are not text, number or boolean, such as dates, become texts; a date at midnight is written without the
    time.
    """
    present = column.notna().to_numpy(dtype=bool)
    given = (column if present.all() else column[present]).astype(object).tolist()
    if not given:
        return ColumnKind("empty"), [None] * len(column)
    kind = KINDS_OF_DTYPES.get(column.dtype.kind) or _kind_of(given)
    plain = _plain(given, kind, str(column.name))
    found = ColumnKind(kind, kind == "string" and _are_numbers(plain))
    if len(plain) == len(column):
        return found, plain
    values = iter(plain)
    return found, [next(values) if is_present else None for is_present in present.tolist()]


def _kind_of(values: list[Any]) -> str:
    kind = pd.api.types.infer_dtype(values, skipna=True)
    kind = "floating" if kind == "mixed-integer-float" else kind
    return kind if kind in KINDS_OF_DTYPES.values() else "string"


def _plain(values: list[Any], kind: str, column: str) -> list[Any]:
    if kind == "string":
        texts = [value if type(value) is str else _text(value) for value in values]
        if not is_unicode("".join(texts)):
            wrong = next(text for text in texts if not is_unicode(text))
            raise InputError(f"column {column!r} holds {wrong[:80]!a}, which is not Unicode text; rename it")
        return texts
    if kind == "integer":
        for value in (max(values), min(values)):
            if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
                raise InputError(f"column {column!r} holds {value}, an integer of more than 64 bits; make it text")
    if kind == "floating":
        return [value if type(value) is float else exact_float(value, column) for value in values]
    return list(map({"integer": int, "boolean": bool}[kind], values))


def exact_float(value: Any, column: str) -> float:
    """A number of a column as a float; an InputError if it is an integer that might be rounded."""
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise rounded_integers(column)
    return float(value)


def rounded_integers(column: str) -> InputError:
    """The error of integers that are too large to be floats."""
    return InputError(
        f"column {column!r} mixes integers beyond 2**53 with fractional numbers, so that they would be rounded; make "
        "it text"
    )


def _text(value: Any) -> str:
    text = str(value)
    return text.removesuffix(" 00:00:00") if isinstance(value, datetime.datetime) else text


def _are_numbers(texts: list[str]) -> bool:
    given = [text for text in texts if text != ""]
    return bool(given) and all(map(NUMBER.fullmatch, given))


def number_of(text: str) -> int | float:
    """The number in a text of a numeric column."""
    try:
        number = int(text)
    except ValueError:
        return float(text)
    return number if abs(number) <= MAX_INTEGER else float(number)


def merged_kinds(old: Mapping[str, ColumnKind], new: Mapping[str, ColumnKind]) -> Kinds:
    """The kinds of columns after rows were added; integers become texts beside texts, and floats beside floats."""
    return {**old, **{name: _merged(name, old.get(name, kind), kind) for name, kind in new.items()}}


def _merged(name: str, old: ColumnKind, new: ColumnKind) -> ColumnKind:
    kinds = {old.kind, new.kind}
    if "empty" in kinds:
        return old if new.kind == "empty" else new
    if len(kinds) == 1:
        return ColumnKind(new.kind, old.is_numeric and new.is_numeric)
    if kinds == {"integer", "string"}:
        return old if old.kind == "string" else new
    if kinds == {"integer", "floating"}:
        return ColumnKind("floating")
    raise InputError(
        f"column {name!r} is {new.kind} in the new rows, {old.kind} in the index; both must have the same type"
    )


def converted(value: Any, kind: ColumnKind, column: str) -> Any:
    """A value, or None for a missing one, as a column of a kind keeps it; raises as :func:`exact_float`."""
    if value is None or kind.kind not in ("floating", "string"):
        return value
    return str(value) if kind.kind == "string" else exact_float(value, column)


def exact_comparison(kind: str, sign: str, value: float) -> tuple[str, int | float] | bool:
    """A comparison of a column of numbers with a number, by a number of the column's own kind.

    When integers are compared with floats, databases round one side; a comparison within a kind is exact. If the result
    is the same for every value, it is returned in place of the sign and the number.

    Example:
        >>> exact_comparison("integer", "<", 2.5), exact_comparison("integer", ">", 2**63)
        (('<=', 2), False)
        >>> exact_comparison("floating", "<", 2**53 + 1)
        ('<=', 9007199254740992.0)
    """
    if kind == "integer":
        if -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            below = math.floor(value)
            return (sign, below) if below == value else _between(sign, below)
        return sign == "!=" or ((sign in ("<", "<=")) == (value > 0) and sign != "==")
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    if nearest == value:
        return sign, nearest
    return _between(sign, nearest if nearest < value else math.nextafter(nearest, -math.inf))


def _between(sign: str, below: float) -> tuple[str, float] | bool:
    """A comparison with a number that the column cannot hold, by the next smaller number that it can hold."""
    if sign in ("==", "!="):
        return sign == "!="
    return ("<=" if "<" in sign else ">"), below
