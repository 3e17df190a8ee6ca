"""What the service tells of the columns of its index, from which a page can make a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vicinal.data.columns import BOX_COLUMNS
from vicinal.retrieval.index.metadata import FILE_COLUMNS

if TYPE_CHECKING:
    from vicinal.retrieval.index.index import Index

MAX_VALUES = 50
MAX_TEXT = 200  # characters of a value that is listed
HIDDEN = ("id", "path", *FILE_COLUMNS, *BOX_COLUMNS)
TYPES = {"integer": "number", "floating": "number", "boolean": "boolean"}


def facts_of_index(index: Index) -> list[dict[str, Any]]:
    """The name and type of each column of an index in a folder, and its distinct values if there are few.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal import Index, Table
        >>> facts_of_index(Index.build(np.eye(2), Table(pd.DataFrame({"size": ["S", "M"]}))))
        [{'name': 'size', 'type': 'text', 'values': ['M', 'S']}]
    """
    facts = facts_of_kinds({name: kind.kind for name, kind in index.column_kinds.items()})
    return [{**each, "values": _listed(index.distinct_values(each["name"], MAX_VALUES))} for each in facts]


def facts_of_kinds(kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """The columns of an index in a database by their kinds; their values are not read.

    Example:
        >>> facts_of_kinds({"path": "string", "price": "floating"})
        [{'name': 'price', 'type': 'number', 'values': None}]
    """
    return [
        {"name": name, "type": TYPES.get(kind, "text"), "values": None}
        for name, kind in kinds.items()
        if name not in HIDDEN
    ]


def _listed(values: list[Any]) -> list[Any] | None:
    """Distinct values in order, ready for JSON; None if they are too many or cannot be listed."""
    if len(values) > MAX_VALUES or any(isinstance(value, str) and len(value) > MAX_TEXT for value in values):
        return None
    if any(isinstance(value, float) and not abs(value) < float("inf") for value in values):
        return None
    return sorted(values)
