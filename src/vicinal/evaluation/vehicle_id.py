"""The protocol of VehicleID: one random image of each class is the gallery; repeated and averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.protocol import evaluate
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.scores import Array
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError


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
        InputError: fewer than two repeats, an impossible seed, no class of two images, or as `evaluate`.

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
        raise InputError(f"num_repeats = {num_repeats} is impossible; use an integer from 2 up")
    if not (is_integer(seed) and seed >= 0):
        raise InputError(f"seed = {seed} is impossible; use an integer from 0 up")
    if len(table) and table.class_counts.max() < 2:
        raise InputError("every class has one image, which goes to the gallery; queries need classes of two or more")
    recall_at = (1, 5) if recall_at is None else recall_at
    repetitions = []
    for number in range(num_repeats):
        divided = _with_gallery(table, np.random.default_rng([seed, number]))
        repetitions.append(evaluate(embeddings, divided, recall_at, chunk_size=chunk_size))
    return _mean(repetitions)


def one_per_class(labels: Integers, rng: np.random.Generator) -> Booleans:
    """Choose one random row of every class.

    Example:
        >>> chosen = one_per_class(np.array([0, 0, 1, 1, 1]), np.random.default_rng(0))
        >>> chosen[:2].sum(), chosen[2:].sum()
        (np.int64(1), np.int64(1))
    """
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
