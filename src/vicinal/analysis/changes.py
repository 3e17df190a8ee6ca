"""Queries that two evaluations share, and how their scores differ."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import check_evaluation
from vicinal.analysis.scores import query_metric
from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation


def query_changes(before: Evaluation, before_table: Table, after: Evaluation, after_table: Table) -> pd.DataFrame:
    """Compare the scores of the queries that two evaluations share.

    Queries are the same if their paths are; without paths, if their rows and labels are.

    Args:
        before: the first evaluation.
        before_table: its table.
        after: the second evaluation.
        after_table: its table.

    Returns:
        One row per shared query that has a score in both, in the order of the first evaluation:

        - `row_before`, `row_after`: its rows in the two tables.
        - `score_before`, `score_after`: its mAP@R, otherwise mAP, otherwise the first metric.
        - `difference`: the second score minus the first.

    Raises:
        InputError: an evaluation is of other queries than those of its table.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1, 1]}))
        >>> bad, good = np.array([[1.0, 0.0], [0.9, 0.1], [0.95, 0.05], [0.0, 1.0]]), np.eye(2)[[0, 0, 1, 1]]
        >>> query_changes(evaluate(bad, table), table, evaluate(good, table), table)["difference"].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    metric = query_metric(before)
    first, second = _scores(before, before_table, metric), _scores(after, after_table, metric)
    shared = first.merge(second.drop_duplicates("key"), on="key", suffixes=("_before", "_after"))
    shared["difference"] = shared["score_after"] - shared["score_before"]
    return shared.drop(columns="key").dropna(subset="difference", ignore_index=True)


def _scores(evaluation: Evaluation, table: Table, metric: str) -> pd.DataFrame:
    """The row and score of each query, with a key by which the same query is found in another evaluation."""
    check_evaluation(evaluation, table)
    rows = evaluation.query_indices
    scores = evaluation.per_query.get(metric, np.full(len(rows), np.nan))
    return pd.DataFrame({"key": _keys(table, rows.tolist()), "row": rows, "score": scores})


def _keys(table: Table, rows: list[int]) -> list[object]:
    if table.has("path"):
        return [table.paths[row] for row in rows]
    labels = table.frame["label"].tolist()
    return [(row, str(labels[row])) for row in rows]
