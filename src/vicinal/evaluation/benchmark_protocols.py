"""Protocols of single benchmarks: VehicleID, Met, and queries whose positives are listed (Google Landmarks v2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.metrics import Ranks, map_at_k
from vicinal.evaluation.protocol import evaluate, query_gallery_rows
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import Neighbors, nearest
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers, chunk_ranges
from vicinal.utils.errors import InputError

MAP_AT = 100
COLUMNS = ("image_id", "positives", "is_query", "is_gallery")
NUM_NEIGHBORS = (1, 2, 3, 5, 7, 10, 15, 20, 50)  # and TEMPERATURES: the choices of the Met's k-NN classifier
TEMPERATURES = (0.01, 0.1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0, 500.0)
MAX_COMPARED = 2**24  # pairs of neighbors that are compared at a time


def evaluate_listed_positives(embeddings: Array, table: Table, k: int = MAP_AT) -> Evaluation:
    """Compute mAP@k of queries whose positives are listed.

    The metric of Google Landmarks v2 (Weyand et al., CVPR 2020) is mAP@100: for a query with R positives, the precision
    at each positive among the first 100, summed and divided by min(R, 100). The list defines the positives,
    whatever the labels.

    Args:
        embeddings: float [rows, dim].
        table: with `is_query`, `is_gallery`, the ids of the images (`image_id`), and for each query the ids of its
            positives in the gallery, separated by spaces (`positives`), as
            :func:`~vicinal.data.benchmarks.landmarks_v2` returns it. With a column `query_set`, each set of queries
            (public, private) has a metric of its own.
        k: how many gallery images are ranked; at most as many as there are.

    Returns:
        `mAP@100`, or `private/mAP@100` and `public/mAP@100`. `num_ties` counts the first k only; ranks beyond are not
        computed, so ranks of first positives are not available.

    Raises:
        InputError: numbers of rows differ, a missing column, a query without positives, or a positive outside of the
            gallery.

    Example:
        >>> frame = pd.DataFrame({"image_id": ["a", "b", "c"], "positives": ["c", "", ""]})
        >>> table = Table(frame.assign(is_query=[True, False, False], is_gallery=[False, True, True]))
        >>> evaluate_listed_positives(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]]), table).metrics
        {'mAP@100': 0.5}
    """
    check_rows(embeddings, table)
    missing = [column for column in COLUMNS if not table.has(column)]
    if missing:
        raise InputError(f"the table has no column {missing[0]!r}; listed positives need {', '.join(COLUMNS)}")
    query_rows, gallery_rows = query_gallery_rows(table)
    positives = _positives(table, query_rows, gallery_rows)
    queries, gallery = (UnitVectors(embeddings, "embedding", rows) for rows in (query_rows, gallery_rows))
    num_ranked = min(k, len(gallery))
    neighbors = nearest(queries, gallery, num_ranked, Exclusions(len(queries), len(gallery)))
    hits = np.array([np.isin(ids, rows) for ids, rows in zip(neighbors.ids, positives, strict=True)])
    scores = map_at_k(_ranks(hits, np.array([len(rows) for rows in positives])), k)
    per_query = {
        f"{part}mAP@{k}": np.where(is_in, scores, np.nan) for part, is_in in _query_subsets(table, query_rows).items()
    }
    return Evaluation(
        metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
        protocol="listed positives",
        num_queries=len(queries),
        num_gallery=len(gallery),
        num_without_positive=0,
        per_query=per_query,
        query_indices=query_rows,
        num_ties=_num_ties(neighbors, hits),
    )


def _positives(table: Table, query_rows: Integers, gallery_rows: Integers) -> list[Integers]:
    """The positions in the gallery of each query's positives."""
    ids = table.frame["image_id"].astype(str)
    positions = {name: position for position, name in enumerate(ids.iloc[gallery_rows])}
    listed_ids = table.frame["positives"].astype(object)
    positives, texts = [], listed_ids.where(listed_ids.notna(), "")
    for row in query_rows:
        listed = set(str(texts.iloc[row]).split())
        unknown = min(listed - positions.keys(), default=None)
        if unknown is not None or not listed:
            what = "has no positives" if unknown is None else f"has the positive {unknown[:80]!r}, not in the gallery"
            raise InputError(f"row {row}: the query {ids.iloc[row][:80]} {what}; every query needs some in it")
        positives.append(np.array(sorted(positions[name] for name in listed)))
    return positives


def _ranks(hits: Booleans, counts: Integers) -> Ranks:
    """The ranks of the positives; a positive that is not among the first k gets a rank beyond all k."""
    missed_rank = hits.shape[1] + 1
    ranks = [
        np.append(np.flatnonzero(row) + 1, np.full(count - row.sum(), missed_rank))
        for row, count in zip(hits, counts, strict=True)
    ]
    return Ranks(np.concatenate(ranks).astype(np.int64), counts.astype(np.int64))


def _query_subsets(table: Table, query_rows: Integers) -> dict[str, Booleans]:
    """Prefix of the metric -> mask of its queries."""
    if not table.has("query_set"):
        return {"": np.ones(len(query_rows), dtype=bool)}
    sets = table.frame["query_set"].iloc[query_rows].astype(str)
    return {f"{name}/" if name else "": (sets == name).to_numpy() for name in sorted(sets.unique())}


def _num_ties(neighbors: Neighbors, hits: Booleans) -> int:
    return sum(
        int(np.isin(scores[row], scores[~row]).sum()) for scores, row in zip(neighbors.scores, hits, strict=True)
    )


def evaluate_vehicle_id(
    embeddings: Array,
    table: Table,
    recall_at: Sequence[int] | None = None,
    *,
    num_repeats: int = 10,
    seed: int = 0,
    chunk_size: int | None = None,
) -> Evaluation:
    """Evaluate by the protocol of VehicleID (Liu et al., "Deep Relative Distance Learning", CVPR 2016).

    One random image of every class is put in the gallery, all others are queries. So each query has one positive,
    recall@k is CMC at rank k, and mAP is the mean reciprocal rank. This is repeated with other random galleries.

    Args:
        embeddings: float [rows, dim].
        table: the classes of one test set (800, 1,600 or 2,400 vehicles), with labels. Its columns `is_query` and
            `is_gallery`, if it has any, are ignored.
        recall_at: the k of each recall@k; None: 1 and 5.
        num_repeats: the number of random galleries, at least two.
        seed: of the random galleries.
        chunk_size: as in :func:`~vicinal.evaluation.evaluate`.

    Returns:
        The mean of all repetitions, stored as `repetitions`. The score of each image is the mean over the
        repetitions in which it was a query, so that confidence intervals and comparisons are possible; there is no
        single first rank. `num_without_positive` and `num_ties` are the maximum of all repetitions.

    Raises:
        InputError: fewer than two repeats, an invalid seed, no class of two images, or as `evaluate`.

    Example:
        >>> table = Table(pd.DataFrame({"label": [7, 7, 7, 8, 8]}))
        >>> print(evaluate_vehicle_id(np.eye(2)[[0, 0, 0, 1, 1]], table, recall_at=[1]))
        one random gallery image per class, 10 times: 5 queries, 2 gallery images
        recall@1      100.00 % ± 0.00
        mAP@R         100.00 % ± 0.00
        R-precision   100.00 % ± 0.00
        mAP           100.00 % ± 0.00
    """
    if not (is_integer(num_repeats) and num_repeats >= 2):
        raise InputError(f"num_repeats = {num_repeats} is invalid; use an integer from 2 up")
    if not (is_integer(seed) and seed >= 0):
        raise InputError(f"seed = {seed} is invalid; use an integer from 0 up")
    if len(table) and table.class_counts.max() < 2:
        raise InputError("every class has one image, which goes to the gallery; queries need classes of two or more")
    recall_at = (1, 5) if recall_at is None else recall_at
    needed = [column for column in ("label", "group") if table.has(column)]  # paths would be checked every time
    repetitions = []
    for number in range(num_repeats):
        is_gallery = _one_per_class(table.labels, np.random.default_rng([seed, number]))
        divided = Table(table.frame[needed].assign(is_query=~is_gallery, is_gallery=is_gallery))
        repetitions.append(evaluate(embeddings, divided, recall_at, chunk_size=chunk_size))
    return _mean(repetitions)


def _one_per_class(labels: Integers, rng: np.random.Generator) -> Booleans:
    shuffled = rng.permutation(len(labels))
    firsts = np.unique(labels[shuffled], return_index=True)[1]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[shuffled[firsts]] = True
    return chosen


def _mean(repetitions: Sequence[Evaluation]) -> Evaluation:
    frames = [pd.DataFrame(each.per_query, index=each.query_indices) for each in repetitions]
    scores = pd.concat(frames).groupby(level=0).mean()
    metrics = {name: float(np.mean([each.metrics[name] for each in repetitions])) for name in repetitions[0].metrics}
    return Evaluation(
        metrics=metrics,
        protocol=f"one random gallery image per class, {len(repetitions)} times",
        num_queries=len(scores),
        num_gallery=repetitions[0].num_gallery,
        num_without_positive=max(each.num_without_positive for each in repetitions),
        per_query={name: scores[name].to_numpy() for name in metrics},
        query_indices=scores.index.to_numpy(),
        num_ties=max(each.num_ties for each in repetitions),
        repetitions=tuple(repetitions),
    )


class _Queries(NamedTuple):
    """Some queries and their nearest gallery images, the nearest first."""

    labels: Integers  # [q], negative for a query without a match
    scores: Floats  # [q, k]
    classes: Integers  # [q, k], the labels of the neighbors
    is_nearest: Booleans  # [q, k], whether no neighbor of the same class is nearer


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
        InputError: numbers of rows differ, a missing column, labels that are text, or a set without a query that has a
            match.

    Example:
        >>> columns = {"label": [1, 2, 1, 2], "query_set": ["", "", "val", "test"]}
        >>> sides = {"is_query": [False, False, True, True], "is_gallery": [True, True, False, False]}
        >>> evaluate_met(np.eye(2)[[0, 1, 0, 1]], Table(pd.DataFrame(columns | sides))).metrics
        {'GAP': 1.0, 'GAP-': 1.0, 'ACC': 1.0}
    """
    check_rows(embeddings, table)
    rows, gallery_rows = _met_rows(table)
    gallery = UnitVectors(embeddings, "embedding", gallery_rows)
    labels = table.frame["label"].to_numpy()
    parts = {name: _met_search(embeddings, some, gallery, labels, gallery_rows) for name, some in rows.items()}
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


def _met_rows(table: Table) -> tuple[dict[str, Integers], Integers]:
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


def _met_search(
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
