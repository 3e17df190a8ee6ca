"""What the service tells of the columns of its index, from which a page can make a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.retrieval.index.metadata import FILE_COLUMNS
from vicinal.serving.store.snapshot import Snapshot

MAX_VALUES = 50
MAX_TEXT = 200  # characters of a value that is listed
HIDDEN = ("id", "path", *FILE_COLUMNS, *BOX_COLUMNS)
Facts = dict[str, dict[str, Any]]


def facts_of(frame: pd.DataFrame) -> Facts:
    """The type of each column, and its distinct values if there are few.

    Example:
        >>> facts_of(pd.DataFrame({"id": [0, 1], "size": ["S", "M"], "price": [5, 7]}))["size"]
        {'name': 'size', 'type': 'text', 'values': ['M', 'S']}
    """
    return {str(name): _facts_of_column(str(name), frame[name]) for name in frame if name not in HIDDEN}


def facts_of_snapshot(snapshot: Snapshot, base: Facts) -> list[dict[str, Any]]:
    """The columns of a snapshot, by what is known of its base; values of deleted items may be among them."""
    added = snapshot.metadata.added
    facts = dict(base)
    for name, new in (facts_of(added.frame) if added is not None else {}).items():
        old = facts.get(name, new)
        known = old["values"] is not None and new["values"] is not None
        facts[name] = {**old, "values": _listed([*old["values"], *new["values"]]) if known else None}
    return list(facts.values())


def facts_of_kinds(kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """The columns of an index in a database by their kinds; their values are not read.

    Example:
        >>> facts_of_kinds({"path": "string", "price": "floating"})
        [{'name': 'price', 'type': 'number', 'values': None}]
    """
    types = {"integer": "number", "floating": "number", "boolean": "boolean"}
    return [
        {"name": name, "type": types.get(kind, "text"), "values": None}
        for name, kind in kinds.items()
        if name not in HIDDEN
    ]


def _facts_of_column(name: str, column: pd.Series) -> dict[str, Any]:
    known = column.dropna()
    if pd.api.types.is_bool_dtype(known):
        kind = "boolean"
    else:
        kind = "number" if pd.api.types.is_numeric_dtype(known) else "text"
    distinct = known.unique()
    values = distinct.tolist() if len(distinct) <= MAX_VALUES else None
    return {"name": name, "type": kind, "values": None if values is None else _listed(values)}


def _listed(values: list[Any]) -> list[Any] | None:
    """Distinct values in order, ready for JSON; None if they are too many or cannot be listed."""
    plain = [value if isinstance(value, bool | int | float) else str(value) for value in values]
    if any(isinstance(value, str) and len(value) > MAX_TEXT for value in plain):
        return None
    if any(isinstance(value, float) and not abs(value) < float("inf") for value in plain):
        return None
    distinct = list(dict.fromkeys(plain))
    return sorted(distinct, key=lambda value: (isinstance(value, str), value)) if len(distinct) <= MAX_VALUES else None
