"""The metrics of each class, or of each group of queries of any kind: where a model is good and where it is not."""

from __future__ import annotations

import pandas as pd

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.result import Evaluation


def metrics_by(evaluation: Evaluation, table: Table, column: str = "label") -> pd.DataFrame:
    """Average every metric over the queries of each group.

    The mean over all queries is the mean of the groups weighted by `queries - without_positive`; the plain mean of the
    rows, `metrics_by(...).mean()`, is the macro average, in which each class counts the same.

    Args:
        evaluation: of this table.
        table: what was evaluated.
        column: any column of the table: queries of one value of it are a group. By default each class is one.

    Returns:
        One row a group, in the order of its names, which are the index. Columns: `queries`; `without_positive`, those
        that count in no metric of the labels' own level; every metric, from 0 to 1, NaN for a group without any query
        that counts.

    Raises:
        InputError: the table has no such column, or is not the one that was evaluated, or a query has no value.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog", "emu"]}))
        >>> result = evaluate(np.eye(5)[[0, 0, 1, 2, 2]], table, recall_at=[1])
        >>> metrics_by(result, table)[["queries", "without_positive", "recall@1"]].T
        label             cat  dog  emu
        queries           2.0  2.0  1.0
        without_positive  0.0  0.0  1.0
        recall@1          1.0  0.0  NaN
    """
    groups = _groups(evaluation, table, column)
    metrics = pd.DataFrame({name: pd.Series(values) for name, values in evaluation.per_query.items()})
    counts = metrics.iloc[:, 0].isna().groupby(groups, observed=True).agg(["size", "sum"]).astype("int64")
    counts.columns = pd.Index(["queries", "without_positive"])
    return pd.concat([counts, metrics.groupby(groups, observed=True).mean()], axis=1)


def _groups(evaluation: Evaluation, table: Table, column: str) -> pd.Series:
    """The group of each query, numbered as the queries are."""
    if column not in table.frame:
        raise InputError(f"the table has no column {column!r}; its columns are {', '.join(table.frame.columns)}")
    if evaluation.query_rows.max() >= len(table):
        raise InputError(
            f"query {evaluation.query_rows.max()} was evaluated, but the table has {len(table)} rows; "
            "give the table that was evaluated"
        )
    groups = table.frame[column].iloc[evaluation.query_rows].reset_index(drop=True)
    if not groups.map(pd.api.types.is_hashable).all():
        raise InputError(f"the column {column!r} holds lists; queries are put in groups by names or numbers")
    if groups.isna().any():
        row = evaluation.query_rows[int(groups.isna().to_numpy().argmax())]
        raise InputError(f"row {row} has no {column}; every query needs one to be put in a group")
    return groups
