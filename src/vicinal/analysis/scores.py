"""Scores of single queries and classes, and how they change from one evaluation to another."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors, check_evaluation
from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation, metrics_by


def query_metric(evaluation: Evaluation) -> str:
    """The metric by which queries are sorted: mAP@R, otherwise mAP, otherwise the first one there is."""
    return next((name for name in ("mAP@R", "mAP") if name in evaluation.per_query), next(iter(evaluation.per_query)))


def recall_metric(evaluation: Evaluation) -> str:
    """The recall@k with the smallest k, or the metric of `query_metric` if there is none."""
    ks = [int(name[7:]) for name in evaluation.per_query if name.startswith("recall@") and name[7:].isdigit()]
    return f"recall@{min(ks)}" if ks else query_metric(evaluation)


def class_scores(evaluation: Evaluation, table: Table) -> pd.DataFrame:
    """Average the metrics over the queries of each class, the weakest class first.

    Args:
        evaluation: of this table.
        table: with labels.

    Returns:
        One row per class with a query that can find something, sorted by recall@1 (the recall@k with the smallest k
        that was evaluated), then by mAP@R. Columns: `label`; `num_queries`, those that can find something; every metric
        of the evaluation that is a mean over queries, from 0 to 1.

    Raises:
        InputError: the evaluation is of other queries than those of the table.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog", "emu"]}))
        >>> result = evaluate(np.eye(5)[[0, 0, 1, 2, 2]], table, recall_at=[1])
        >>> class_scores(result, table)[["label", "num_queries", "recall@1"]]
          label  num_queries  recall@1
        0   dog            2       0.0
        1   cat            2       1.0
    """
    check_evaluation(evaluation, table)
    recall, score = recall_metric(evaluation), query_metric(evaluation)
    scores = metrics_by(evaluation, table).dropna(subset=[recall, score]).reset_index()
    scores["num_queries"] -= scores.pop("num_without_positive")
    return scores.sort_values(
        [recall, score, "num_queries"], ascending=[True, True, False], kind="stable", ignore_index=True
    )


def queries_by_score(neighbors: QueryNeighbors, evaluation: Evaluation, *, ascending: bool = True) -> pd.DataFrame:
    """Sort the queries that can find something by their score.

    Queries of equal score are sorted by the similarity of their nearest image. With the worst first, the most similar
    one comes first: a confident mistake. With the best first, the least similar one does: a hard query that succeeds.

    Args:
        neighbors: the nearest neighbors of each query.
        evaluation: of the same embeddings and table.
        ascending: whether the worst query comes first.

    Returns:
        One row per query: `row`, its row in the table; `label`; `score`, its mAP@R, otherwise mAP, otherwise
        the first metric; `similarity`, that of its nearest image.

    Raises:
        InputError: the evaluation is of other queries than those of the table.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.evaluation import evaluate
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = queries_by_score(query_neighbors(embeddings, table), evaluate(embeddings, table))
        >>> found[["row", "label", "score"]].head(1)
           row label  score
        0    2   dog    0.0
    """
    check_evaluation(evaluation, neighbors.table)
    neighbors = neighbors.with_positives()
    scores = evaluation.per_query[query_metric(evaluation)]
    frame = pd.DataFrame(
        {
            "row": neighbors.queries,
            "label": neighbors.table.frame["label"].iloc[neighbors.queries].to_numpy(),
            "score": scores[np.searchsorted(evaluation.query_indices, neighbors.queries)],
            "similarity": neighbors.scores[:, 0].astype(np.float64),
        }
    )
    return frame.sort_values(
        ["score", "similarity"], ascending=[ascending, not ascending], kind="stable", ignore_index=True
    )


def query_changes(before: Evaluation, before_table: Table, after: Evaluation, after_table: Table) -> pd.DataFrame:
    """Compare the scores of the queries that two evaluations share.

    Queries are the same if their paths and boxes are; without paths, if their rows and labels are.

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
        return [table.image_keys[row] for row in rows]
    labels = table.frame["label"].tolist()
    return [(row, str(labels[row])) for row in rows]
