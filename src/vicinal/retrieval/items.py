"""What an index knows of its images: a row each, joined from tables that need not have the same columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.table import Table
from vicinal.errors import InputError

OWN_ID = "id_of_table"  # what a table's own column `id` is called in the index
# for columns that would else become floats or objects where values are missing
NULLABLE: dict[str, ExtensionDtype] = {"b": pd.BooleanDtype(), "i": pd.Int64Dtype(), "u": pd.UInt64Dtype()}

Integers = npt.NDArray[np.int64]


def with_ids(table: Table, ids: Integers) -> pd.DataFrame:
    """The table's columns behind a column `id`; its own column `id`, if it has one, is called `id_of_table`.

    Raises:
        InputError: the table has both columns.
    """
    if table.has("id") and table.has(OWN_ID):
        raise InputError(f"the table has both columns 'id' and {OWN_ID!r}, as which 'id' would be kept; drop one")
    frame = table.frame.rename(columns={"id": OWN_ID})
    frame.insert(0, "id", ids)
    return frame


def joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Both below each other; a column that one of them lacks is missing there.

    Raises:
        InputError: a column whose values are of other kinds in both.

    Example:
        >>> joined(pd.DataFrame({"id": [0], "label": [7]}), pd.DataFrame({"id": [1], "label": ["cow"]}))
           id label
        0   0     7
        1   1   cow
    """
    shared = old.columns.intersection(new.columns).drop("id")
    pairs = {column: _alike(column, old[column], new[column]) for column in shared}
    old = old.assign(**{column: pair[0] for column, pair in pairs.items()})
    new = new.assign(**{column: pair[1] for column, pair in pairs.items()})
    parts = [
        mine.assign(**{column: _nullable(mine[column]) for column in mine.columns.difference(other.columns)})
        for mine, other in ((old, new), (new, old))
    ]
    return pd.concat(parts, ignore_index=True)


def _alike(column: str, old: pd.Series, new: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Both parts of a column in types that can be joined."""
    kinds = _kind(old), _kind(new)
    if kinds[0] == "empty":
        return old.astype(_nullable(new).dtype), new
    if kinds[1] == "empty":
        return old, new.astype(_nullable(old).dtype)
    if set(kinds) == {"integer", "string"}:
        return _text(old), _text(new)
    if kinds[0] != kinds[1] and set(kinds) != {"integer", "floating"}:
        raise InputError(
            f"column {column!r} is {kinds[1]} in the new rows, {kinds[0]} in the index; it must be alike in both"
        )
    return old, new


def _kind(column: pd.Series) -> str:
    """What the values are: integer, floating, boolean, string, ..., or empty where all are missing."""
    return pd.api.types.infer_dtype(column.dropna().astype(object))


def _nullable(column: pd.Series) -> pd.Series:
    return column.astype(NULLABLE[column.dtype.kind]) if column.dtype.kind in NULLABLE else column


def _text(column: pd.Series) -> pd.Series:
    return column.map(str, na_action="ignore").astype("str")
