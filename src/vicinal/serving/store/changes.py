"""The columns that clients give to items which they add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.retrieval.index.metadata import FILE_COLUMNS, NULLABLE
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError

MAX_NAME, MAX_TEXT = 200, 4_096  # characters of a column's name, and of a value
INT64 = np.iinfo(np.int64)
RESERVED = ("id", "id_of_table", "path", "score", *BOX_COLUMNS, *FILE_COLUMNS)
CHECKED = ("split", "is_query", "is_gallery", "noisy_label", "noisy_image")  # have a meaning in a table of images
DTYPES = {"integer": np.dtype(np.int64), "floating": np.dtype(np.float64), "boolean": np.dtype(np.bool_)}
WORDS = {"integer": "whole numbers", "floating": "numbers", "boolean": "true and false", "string": "texts"}


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame of rows that need not have the same columns; a column has values of one kind.

    Example:
        >>> frame_of([{"price": 3}, {"label": "cup"}]).dtypes["price"]
        Int64Dtype()
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return pd.DataFrame(columns, index=range(len(rows)))


def _column(values: list[Any]) -> pd.Series:
    dtype: Any = DTYPES.get(_common_kind(values), "str")
    if None in values and dtype != "str":
        dtype = NULLABLE.get(dtype.kind, dtype)
    return pd.Series(values, dtype=dtype)


def _common_kind(values: Sequence[Any]) -> str:
    kinds = {kind_of(value) for value in values if value is not None}
    return "floating" if kinds == {"integer", "floating"} else kinds.pop()


def kind_of(value: Any) -> str:
    """The kind of a value, as pandas calls it: integer, floating, boolean or string."""
    names = {bool: "boolean", int: "integer", float: "floating"}
    return names.get(type(value), "string")


class ColumnKinds:
    """The kinds of the columns of an index, with which the values of new items must agree.

    Args:
        kinds: of its columns, such as integer and string.
        max_columns: number of columns that it may have.

    Example:
        >>> kinds = ColumnKinds({"price": "integer", "label": "string"}, max_columns=10)
        >>> kinds.checked({"price": 7, "label": 7, "new": True, "other": None})
        {'price': 7, 'label': '7', 'new': True}
        >>> kinds.checked({"price": "cheap"})
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: columns.price: 'cheap' is a text; the index has whole numbers there
    """

    def __init__(self, kinds: Mapping[str, str], max_columns: int) -> None:
        self.max_columns = max_columns
        self._kinds = dict(kinds)

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a new item as the index keeps them, without those that are missing.

        Raises:
            InputError: a name or value is impossible, or of another kind than those of the index.
        """
        return {name: self._checked(name, value) for name, value in values.items() if value is not None}

    def extend(self, row: Mapping[str, Any]) -> None:
        """Take the kinds of an item that was added.

        Raises:
            InputError: the index would have too many columns.
        """
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
            return float(value) if kind == "integer" else _whole(name, value)
        raise InputError(f"columns.{name}: {shown(value)} is {_described(kind)}; the index has "
                         f"{WORDS.get(expected, 'values of another kind')} there")  # fmt: skip


def _whole(name: str, value: float) -> int:
    if not value.is_integer():
        raise InputError(f"columns.{name}: {value:g} is no whole number; the index has whole numbers there")
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
        raise InputError(f"columns.{shown(name)}: {value} is no number that can be compared")
    if kind_of(value) == "integer":
        _in_range(name, value)


def _in_range(name: str, value: int) -> int:
    if not INT64.min <= value <= INT64.max:
        raise InputError(f"columns.{shown(name)}: a whole number has at most 64 bits")
    return value


def _is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8, and holds no null character."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)
