"""The columns of items: their description for clients, and the values of new items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vicinal.data.column_kinds import MAX_EXACT, Kinds
from vicinal.data.columns import BOX_COLUMNS
from vicinal.retrieval.index.metadata import FILE_COLUMNS
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.index.index import Index

MAX_VALUES = 50
MAX_LISTED = 200  # characters of a value that is listed
HIDDEN = ("id", "path", *FILE_COLUMNS, *BOX_COLUMNS)
TYPES = {"integer": "number", "floating": "number", "boolean": "boolean"}
MAX_NAME, MAX_TEXT = 200, 4_096  # characters of a column's name, and of a value
INT64 = np.iinfo(np.int64)
RESERVED = ("id", "id_of_table", "path", "score", *BOX_COLUMNS, *FILE_COLUMNS)
CHECKED = ("split", "is_query", "is_gallery", "noisy_label", "noisy_image")  # have a meaning in a table of images
WORDS = {"integer": "whole numbers", "floating": "numbers", "boolean": "true and false", "string": "texts"}


def facts_of_index(index: Index) -> list[dict[str, Any]]:
    """The name and type of each column of an index in a folder, and its distinct values if there are few."""
    facts = facts_of_kinds(index.column_kinds)
    return [{**each, "values": _listed(index.distinct_values(each["name"], MAX_VALUES))} for each in facts]


def facts_of_kinds(kinds: Kinds) -> list[dict[str, Any]]:
    """The columns of an index in a database by their kinds; their values are not read."""
    return [
        {"name": name, "type": TYPES.get(kind.kind, "text"), "values": None}
        for name, kind in kinds.items()
        if name not in HIDDEN
    ]


def _listed(values: list[Any]) -> list[Any] | None:
    """Distinct values in order, ready for JSON; None if they are too many or cannot be listed."""
    if len(values) > MAX_VALUES or any(isinstance(value, str) and len(value) > MAX_LISTED for value in values):
        return None
    if any(isinstance(value, float) and not abs(value) < float("inf") for value in values):
        return None
    return sorted(values)


def kind_of(value: Any) -> str:
    """The kind of a value, as pandas calls it: integer, floating, boolean or string."""
    names = {bool: "boolean", int: "integer", float: "floating"}
    return names.get(type(value), "string")


class ColumnKinds:
    """The kinds of the columns of an index, with which the values of new items must agree."""

    def __init__(self, kinds: Kinds, max_columns: int) -> None:
        self.max_columns = max_columns
        self._kinds = {name: kind.kind for name, kind in kinds.items()}

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a new item as the index keeps them, without missing ones."""
        return {name: self._checked(name, value) for name, value in values.items() if value is not None}

    def extend(self, row: Mapping[str, Any]) -> None:
        """Extend the kinds by those of an added item."""
        new = [name for name in row if name not in self._kinds]
        if new and len(self._kinds) + len(new) > self.max_columns:
            raise InputError(f"columns.{shown(new[0])}: the index has {len(self._kinds)} columns, and may have "
                             f"{self.max_columns}")  # fmt: skip
        for name, value in row.items():
            if self._kinds.get(name, "empty") == "empty":
                self._kinds[name] = kind_of(value)

    def _checked(self, name: str, value: Any) -> Any:
        _check_name(name)
        _check_value(name, value)
        expected, kind = self._kinds.get(name, "empty"), kind_of(value)
        if expected in ("empty", kind):
            return value
        if (expected, kind) == ("string", "integer"):
            return str(value)
        if {expected, kind} == {"floating", "integer"}:
            return _to_float(name, value) if kind == "integer" else _to_integer(name, value)
        raise InputError(f"columns.{name}: {shown(value)} is {_described(kind)}; the index has "
                         f"{WORDS.get(expected, 'values of another kind')} there")  # fmt: skip


def _to_float(name: str, value: int) -> float:
    if abs(value) > MAX_EXACT:
        raise InputError(f"columns.{name}: a whole number beyond 2**53 would be rounded; the index has numbers there")
    return float(value)


def _to_integer(name: str, value: float) -> int:
    if not value.is_integer():
        raise InputError(f"columns.{name}: {value:g} is not a whole number; the index has whole numbers there")
    return _in_range(name, int(value))


def _described(kind: str) -> str:
    return {"integer": "a whole number", "floating": "a number", "boolean": "true or false"}.get(kind, "a text")


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not _is_text(name):
        raise InputError(f"columns.{shown(name)}: a name has 1 to {MAX_NAME} characters")
    if name in (*RESERVED, *CHECKED):
        raise InputError(f"columns.{name}: the index gives this column itself; use another name")


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, str) and not (len(value) <= MAX_TEXT and _is_text(value)):
        raise InputError(f"columns.{shown(name)}: a text has at most {MAX_TEXT:,} characters of Unicode")
    if name == "label" and (value == "" or kind_of(value) not in ("string", "integer")):
        raise InputError("label: it must be a text that is not empty, or a whole number")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"columns.{shown(name)}: {value} is not a number that can be compared")
    if kind_of(value) == "integer":
        _in_range(name, value)


def _in_range(name: str, value: int) -> int:
    if not INT64.min <= value <= INT64.max:
        raise InputError(f"columns.{shown(name)}: a whole number has at most 64 bits")
    return value


def _is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8, and holds no null character."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)
