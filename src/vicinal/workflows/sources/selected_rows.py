"""The rows of an embedding source that are used: those of a split, of queries and gallery, or of a condition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vicinal.data.columns import column_aliases
from vicinal.data.conditions import matching_rows
from vicinal.data.table import Table
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError


def selected_rows(
    table: Table,
    source: str,
    split: str | None = None,
    query_gallery_only: bool = False,
    where: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Integers:
    """Return the numbers of the selected rows, ascending.

    Args:
        table: all rows.
        source: their source, for messages.
        split: select the rows of this split; None or "all": of all splits.
        query_gallery_only: whether to leave out rows that are neither query nor gallery, if the table has the columns
            `is_query` and `is_gallery`.
        where: select the rows that fulfill this condition.
        columns: the names that the source or the user gives the columns of paths and labels, which a condition knows.

    Raises:
        InputError: the table does not have the split, the condition is invalid, or no row fulfills it.
    """
    is_selected = np.ones(len(table), dtype=bool)
    if split not in (None, "all"):
        is_selected &= _is_in_split(table, source, str(split))
    if query_gallery_only and table.has("is_query") and table.has("is_gallery"):
        is_selected &= (table.frame["is_query"] | table.frame["is_gallery"]).to_numpy(dtype=bool)
    if where is not None:
        is_selected &= _fulfills(table, source, where, columns or {})
        if not is_selected.any():
            raise InputError(f"{source}: no row fulfills {where}" + (f" in the split {split}" * bool(split)))
    return np.flatnonzero(is_selected)


def _is_in_split(table: Table, source: str, split: str) -> Booleans:
    if split not in table.splits:
        known = ", ".join(table.splits) or "none"
        raise InputError(f"{source} has no rows in the split {split}; its splits: {known}")
    return (table.frame["split"] == split).to_numpy(dtype=bool)


def _fulfills(table: Table, source: str, where: str, columns: Mapping[str, str]) -> Booleans:
    try:
        return matching_rows(table.frame, where, column_aliases(columns))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
