"""The metrics of each class, or of each group of queries by any column: where a model is good and where it is not."""

from __future__ import annotations

import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation
from vicinal.utils.errors import InputError


def metrics_by(evaluation: Evaluation, table: Table, column: str = "label") -> pd.DataFrame:
    """Average every metric over the queries of each group.

    The mean over all queries is the mean of the groups weighted by `num_queries - num_without_positive`; the plain mean
    of the rows, `metrics_by(...).mean()`, is the macro average, in which each group counts the same.

    Args:
        evaluation: of the table.
        table: what was evaluated.
        column: a column of the table: the queries with one value of it are a group. By default each class is a group.

    Returns:
        One row per group, in the order of the group names, which are the index. Columns: `num_queries`;
        `num_without_positive`, the number of queries that count in no metric of the labels; every metric, from 0 to 1,
        NaN for a group in which no query counts.

    Raises:
        InputError: the table has no such column, or is not the one that was evaluated, or a query has no value.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog", "emu"]}))
        >>> result = evaluate(np.eye(5)[[0, 0, 1, 2, 2]], table, recall_at=[1])
        >>> metrics_by(result, table)[["num_queries", "num_without_positive", "recall@1"]].T
        label                 cat  dog  emu
        num_queries           2.0  2.0  1.0
        num_without_positive  0.0  0.0  1.0
        recall@1              1.0  0.0  NaN
    """
    groups = _groups(evaluation, table, column)
    metrics = pd.DataFrame({name: pd.Series(values) for name, values in evaluation.per_query.items()})
    counts = metrics.iloc[:, 0].isna().groupby(groups, observed=True).agg(["size", "sum"]).astype("int64")
    counts.columns = pd.Index(["num_queries", "num_without_positive"])
    return pd.concat([counts, metrics.groupby(groups, observed=True).mean()], axis=1)


def _groups(evaluation: Evaluation, table: Table, column: str) -> pd.Series:
    """The group of each query."""
    if column not in table.frame:
        raise InputError(f"the table has no column {column!r}; its columns are {', '.join(table.frame.columns)}")
    rows = evaluation.query_indices
    if rows.max() >= len(table):
        raise InputError(f"a query is row {rows.max()}, but the table has {len(table)} rows; give the one evaluated")
    groups = table.frame[column].iloc[rows].reset_index(drop=True)
    if not groups.map(pd.api.types.is_hashable).all():
        raise InputError(f"the column {column!r} holds lists; queries are grouped by text or numbers")
    if groups.isna().any():
        row = rows[int(groups.isna().to_numpy().argmax())]
        raise InputError(f"row {row} has no {column}; every query needs one to be put in a group")
    return groups
