"""Protocols of single benchmarks: VehicleID, and queries whose positives are listed (Google Landmarks v2)."""

from __future__ import annotations

from collections.abc import Sequence

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
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError

MAP_AT = 100
COLUMNS = ("image_id", "positives", "is_query", "is_gallery")


def evaluate_listed_positives(embeddings: Array, table: Table, k: int = MAP_AT) -> Evaluation:
    """Compute mAP@k of queries whose positives are listed.

    The metric of Google Landmarks v2 (Weyand et al., CVPR 2020) is mAP@100: for a query with R positives, the precision
    at each positive among the first 100, summed and divided by min(R, 100). Positives are what the list says, whatever
    the labels.

    Args:
        embeddings: float [rows, dim].
        table: with `is_query`, `is_gallery`, the ids of the images (`image_id`), and for each query the ids of its
            positives in the gallery, separated by spaces (`positives`), as
            :func:`~vicinal.data.benchmarks.landmarks_v2` returns it. With a column `query_set`, each set of queries
            (public, private) has a metric of its own.
        k: how many gallery images are ranked; at most as many as there are.

    Returns:
        `mAP@100`, or `private/mAP@100` and `public/mAP@100`. `num_ties` counts the first k only; ranks beyond are not
        computed, so that there are no ranks of first positives.

    Raises:
        InputError: other numbers of rows, a missing column, a query without positives, or a positive that is not in the
            gallery.

    Example:
        >>> import pandas as pd
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
    per_query = {f"{part}mAP@{k}": np.where(is_in, scores, np.nan) for part, is_in in _sets(table, query_rows).items()}
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
    found = []
    for row in query_rows:
        listed = set(str(table.frame["positives"].iloc[row]).split())
        unknown = min(listed - positions.keys(), default=None)
        if unknown is not None or not listed:
            what = "has no positives" if unknown is None else f"has the positive {unknown[:80]!r}, not in the gallery"
            raise InputError(f"row {row}: the query {ids.iloc[row][:80]} {what}; every query needs some there")
        found.append(np.array(sorted(positions[name] for name in listed)))
    return found


def _ranks(hits: Booleans, counts: Integers) -> Ranks:
    """The ranks of the positives; those that are not among the first k have one beyond all k."""
    beyond = hits.shape[1] + 1
    ranks = [
        np.append(np.flatnonzero(row) + 1, np.full(count - row.sum(), beyond))
        for row, count in zip(hits, counts, strict=True)
    ]
    return Ranks(np.concatenate(ranks).astype(np.int64), counts.astype(np.int64))


def _sets(table: Table, query_rows: Integers) -> dict[str, Booleans]:
    """Prefix of the metric -> which queries it is about."""
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
        The mean of all repetitions, which are its attribute `repetitions`. The score of each image is the mean over the
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
    repetitions = []
    for number in range(num_repeats):
        divided = _with_gallery(table, np.random.default_rng([seed, number]))
        repetitions.append(evaluate(embeddings, divided, recall_at, chunk_size=chunk_size))
    return _mean(repetitions)


def one_per_class(labels: Integers, rng: np.random.Generator) -> Booleans:
    """Choose one random row of every class."""
    shuffled = rng.permutation(len(labels))
    firsts = np.unique(labels[shuffled], return_index=True)[1]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[shuffled[firsts]] = True
    return chosen


def _with_gallery(table: Table, rng: np.random.Generator) -> Table:
    is_gallery = one_per_class(table.labels, rng)
    needed = [column for column in ("label", "group") if table.has(column)]  # paths would be checked every time
    return Table(table.frame[needed].assign(is_query=~is_gallery, is_gallery=is_gallery))


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
