"""The protocol of the Met dataset: a nearest-neighbor classifier with a confidence, also for queries without a match.

Reference: Ypsilantis et al., "The Met Dataset: Instance-level Recognition for Artworks", NeurIPS 2021.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import nearest
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers, chunk_ranges
from vicinal.utils.errors import InputError

NUM_NEIGHBORS = (1, 2, 3, 5, 7, 10, 15, 20, 50)
TEMPERATURES = (0.01, 0.1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0, 500.0)
MAX_COMPARED = 2**24  # pairs of neighbors that are compared at a time


class _Queries(NamedTuple):
    """Some queries and their nearest gallery images, the nearest first.

    Attributes:
        labels: [q], negative for a query without a match.
        scores: float32 [q, k].
        classes: [q, k], the labels of the neighbors.
        is_nearest: bool [q, k], whether no neighbor of the same class is nearer.
    """

    labels: Integers
    scores: Floats
    classes: Integers
    is_nearest: Booleans


def evaluate_met(embeddings: Array, table: Table) -> Evaluation:
    """Evaluate by the protocol of the Met dataset.

    A query gets the class of its nearest gallery image. The confidence is the softmax over all classes of t times the
    largest similarity to a class among the K nearest images, 0 for all other classes. K and t are those of the
    published grid with the largest GAP on the queries of the set `val`; the metrics are those of the set `test`:

    - GAP, global average precision: with the n queries, distractors among them, in the order of their confidence, the
      sum of the precision at every right one, divided by the number of queries that have a match;
    - GAP-: the same without the queries that have no match;
    - ACC: the fraction of right ones among the queries that have a match.

    Of equally confident queries the wrong ones come first. The authors whiten the embeddings first
    (:class:`~vicinal.retrieval.PCAWhitening`, learned on the training images).

    Args:
        embeddings: float [rows, dim].
        table: with labels, `is_query`, `is_gallery` and `query_set`, as :func:`~vicinal.data.benchmarks.met` returns
            it. A query with a negative label has no match.

    Returns:
        The score of a query is its contribution to GAP, which is their mean; NaN without a match. There are no ranks of
        first positives.

    Raises:
        InputError: other numbers of rows, a missing column, labels that are text, or a set without a query that has a
            match.

    Example:
        >>> import pandas as pd
        >>> columns = {"label": [1, 2, 1, 2], "query_set": ["", "", "val", "test"]}
        >>> sides = {"is_query": [False, False, True, True], "is_gallery": [True, True, False, False]}
        >>> evaluate_met(np.eye(2)[[0, 1, 0, 1]], Table(pd.DataFrame(columns | sides))).metrics
        {'GAP': 1.0, 'GAP-': 1.0, 'ACC': 1.0}
    """
    check_rows(embeddings, table)
    rows, gallery_rows = _rows(table)
    gallery = UnitVectors(embeddings, "embedding", gallery_rows)
    labels = table.frame["label"].to_numpy()
    parts = {name: _search(embeddings, some, gallery, labels, gallery_rows) for name, some in rows.items()}
    num_classes = len(np.unique(labels[gallery_rows]))
    k, temperature = _tune(parts["val"], num_classes)
    test, has_match = parts["test"], parts["test"].labels >= 0
    is_right = test.classes[:, 0] == test.labels
    confidences = _confidences(test, k, temperature, num_classes)
    per_query = {
        "GAP": _contributions(confidences, is_right, has_match),
        "GAP-": np.full(len(has_match), np.nan),
        "ACC": np.where(has_match, is_right, np.nan),
    }
    per_query["GAP-"][has_match] = _contributions(confidences[has_match], is_right[has_match], has_match[has_match])
    return Evaluation(
        metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
        protocol=f"nearest-neighbor classifier, K = {k}, t = {temperature:g}, {(~has_match).sum()} without a match",
        num_queries=len(has_match),
        num_gallery=len(gallery),
        num_without_positive=0,  # those without a match are not left out
        per_query=per_query,
        query_indices=rows["test"],
    )


def _rows(table: Table) -> tuple[dict[str, Integers], Integers]:
    for column in ("label", "query_set", "is_query", "is_gallery"):
        if not table.has(column):
            raise InputError(f"the table has no column {column!r}, which the protocol of met needs")
    if table.frame["label"].dtype.kind != "i":
        raise InputError("the labels are text; in the protocol of met they are integers, negative without a match")
    query_rows, gallery_rows = query_gallery_rows(table)
    sets = table.frame["query_set"].iloc[query_rows].astype(str).to_numpy()
    labels = table.frame["label"].to_numpy()
    rows = {name: query_rows[sets == name] for name in ("val", "test")}
    for name, some in rows.items():
        if not (labels[some] >= 0).any():
            raise InputError(f"no query of the set {name} has a match; the protocol of met needs queries of both sets")
    return rows, gallery_rows


def _search(
    embeddings: Array, rows: Integers, gallery: UnitVectors, labels: Integers, gallery_rows: Integers
) -> _Queries:
    queries = UnitVectors(embeddings, "embedding", rows)
    k = min(max(NUM_NEIGHBORS), len(gallery))
    neighbors = nearest(queries, gallery, k, Exclusions(len(queries), len(gallery)))
    classes = labels[gallery_rows[neighbors.ids]]
    return _Queries(labels[rows], neighbors.scores, classes, _is_nearest_of_class(classes))


def _is_nearest_of_class(classes: Integers) -> Booleans:
    k = classes.shape[1]
    is_nearest = np.empty(classes.shape, dtype=bool)
    for start, stop in chunk_ranges(np.full(len(classes), k * k), MAX_COMPARED):
        some = classes[start:stop]
        is_nearest[start:stop] = ~np.tril(some[:, :, None] == some[:, None, :], -1).any(axis=2)
    return is_nearest


def _tune(queries: _Queries, num_classes: int) -> tuple[int, float]:
    """The number of neighbors and the temperature with the largest GAP; the first of equal ones."""
    k = queries.scores.shape[1]
    grid = list(product(sorted({min(number, k) for number in NUM_NEIGHBORS}), TEMPERATURES))
    is_right, has_match = queries.classes[:, 0] == queries.labels, queries.labels >= 0
    gaps = [np.nanmean(_contributions(_confidences(queries, *each, num_classes), is_right, has_match)) for each in grid]
    return grid[int(np.argmax(gaps))]


def _confidences(queries: _Queries, k: int, temperature: float, num_classes: int) -> Doubles:
    is_nearest = queries.is_nearest[:, :k]
    logits = temperature * queries.scores[:, :k].astype(np.float64)
    found = np.where(is_nearest, np.exp(logits - logits[:, :1]), 0).sum(axis=1)
    others = (num_classes - is_nearest.sum(axis=1)) * np.exp(-logits[:, 0])
    return 1 / (found + others)


def _contributions(confidences: Doubles, is_right: Booleans, has_match: Booleans) -> Doubles:
    """The precision at each right query, 0 at the wrong ones, NaN without a match: float64 [q], whose mean is GAP."""
    order = np.lexsort((is_right, -confidences))
    precision = np.cumsum(is_right[order]) / np.arange(1, len(order) + 1)
    contributions = np.empty(len(order))
    contributions[order] = precision * is_right[order]
    return np.where(has_match, contributions, np.nan)
