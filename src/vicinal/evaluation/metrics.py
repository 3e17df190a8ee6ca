"""Retrieval metrics of single queries, computed from the ranks of their positives.

Every function takes the ranks of the positives of some queries and returns one float64 per query: NaN for a query
without positives, which has no score. With R positives at the ranks r_1 < ... < r_R:

- recall@k: 1 if r_1 <= k, else 0. This is the hit rate that deep metric learning calls recall@k (Song et al., "Deep
  Metric Learning via Lifted Structured Feature Embedding", CVPR 2016). It asks for any positive among the first k.
- positives_recall@k: the fraction of the R positives that are among the first k. This is the recall of information
  retrieval, and Eq. (1) of Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022,
  whose tables report recall@k as defined above.
- precision@k: the fraction of positives among the first k; below 1 for every query with R < k.
- R-precision: the fraction of positives among the first R (Musgrave et al., "A Metric Learning Reality Check", ECCV
  2020).
- mAP@R: 1/R times the sum over i with r_i <= R of i / r_i (same paper).
- mAP@k: 1/min(k, R) times the sum over i with r_i <= k of i / r_i, so that a perfect ranking has 1. Others divide by R
  (pytorch-metric-learning) or by the number of positives among the first k.
- mAP: 1/R times the sum over all i of i / r_i, over the full ranking.
- MRR: 1 / r_1, whose mean is the mean reciprocal rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from vicinal.utils.arguments import check_list, is_integer
from vicinal.utils.arrays import Booleans, Doubles, Integers
from vicinal.utils.errors import InputError

RECALL_AT = (1, 2, 4, 8)
DEFAULT_METRICS = ("mAP@R", "R-precision", "mAP")
NUMBER = r"0|-?[1-9][0-9]{0,17}"  # each number has one spelling


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of the positives of some queries, one query after the other.

    Attributes:
        ranks: int64 [positives], counted from 1, ascending within each query.
        counts: int64 [queries], the number of positives of each query.
        num_ties: the number of positives whose score is exactly that of a gallery row that is not a match. Equal scores
            rank in the order of the gallery, so the ranks of tied positives depend on that order.
    """

    ranks: Integers
    counts: Integers
    num_ties: int = 0

    @cached_property
    def precisions(self) -> Doubles:
        """The precision i / r_i at the i-th positive of each query, float64 [positives]."""
        starts = np.cumsum(self.counts) - self.counts
        return (np.arange(1, len(self.ranks) + 1) - np.repeat(starts, self.counts)) / self.ranks

    @cached_property
    def is_within_r(self) -> Booleans:
        """Whether each positive is among the first R, where R is the number of positives of its query."""
        return self.ranks <= np.repeat(self.counts, self.counts)


Metric = Callable[[Ranks], Doubles]


def metrics_by_name(recall_at: Sequence[int] | None, names: Sequence[str], max_k: int) -> dict[str, Metric]:
    """The metrics of an evaluation: recall@k, the default metrics, and further ones.

    Args:
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as `max_k` allows.
        names: the names of further metrics.
        max_k: the number of gallery images that are ranked.

    Raises:
        InputError: a metric does not exist, or its k is not an integer from 1 to `max_k`.

    Example:
        >>> list(metrics_by_name([1], ["MRR"], max_k=5))
        ['recall@1', 'mAP@R', 'R-precision', 'mAP', 'MRR']
    """
    recall_at = [k for k in RECALL_AT if k <= max_k] if recall_at is None else recall_at
    check_list("recall_at", recall_at, "k, such as [1, 5]")
    check_list("metrics", names, "names, such as ['MRR']")
    recalls = []
    for k in recall_at:
        if not is_integer(k):
            raise InputError(f"recall@{k} is invalid; k must be an integer")
        recalls.append(f"recall@{k}")
    return {name: metric_by_name(name, max_k) for name in [*recalls, *DEFAULT_METRICS, *names]}


def metric_by_name(name: str, max_k: int | None = None) -> Metric:
    """The metric with a name.

    Args:
        name: `recall@K`, `positives_recall@K`, `precision@K` or `mAP@K` with a number for K; `mAP@R`, `R-precision`,
            `mAP`, `MRR`.
        max_k: the number of gallery images that are ranked; None: it is not known yet.

    Raises:
        InputError: the metric does not exist, or K is not from 1 to `max_k`.

    Example:
        >>> metric_by_name("precision@2", max_k=5)(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    if name in METRICS:
        return METRICS[name]
    kind, _, k = str(name).partition("@")
    if kind not in METRICS_AT_K or not re.fullmatch(NUMBER, k):
        known = ", ".join([*(f"{kind}@K" for kind in METRICS_AT_K), *METRICS])
        raise InputError(f"unknown metric {name!r}; use {known}, with a number for K")
    if max_k is None and int(k) < 1:
        raise InputError(f"{name} is invalid; use k from 1 up")
    if max_k is not None and not 1 <= int(k) <= max_k:
        raise InputError(f"{name} is out of range with {max_k} gallery images; use k from 1 to {max_k}")
    return partial(METRICS_AT_K[kind], k=int(k))


def recall_at_k(ranks: Ranks, k: int) -> Doubles:
    """Whether any positive is among the first `k`: 1 or 0.

    Example:
        >>> recall_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=2)
        array([ 1.,  0., nan])
    """
    return _nan_without_positives(ranks, (first_positive_rank(ranks) <= k).astype(np.float64))


def positives_recall_at_k(ranks: Ranks, k: int) -> Doubles:
    """The fraction of the positives that are among the first `k`: Eq. (1) of RS@k, which calls it recall@k.

    Example:
        >>> positives_recall_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=3)
        array([0.5, 1. , nan])
    """
    return _mean_over_positives(ranks, ranks.ranks <= k)


def precision_at_k(ranks: Ranks, k: int) -> Doubles:
    """The fraction of positives among the first `k`.

    Example:
        >>> precision_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=4)
        array([0.5 , 0.25,  nan])
    """
    return _nan_without_positives(ranks, _sum_per_query(ranks, ranks.ranks <= k) / k)


def map_at_k(ranks: Ranks, k: int) -> Doubles:
    """The precision at each positive among the first `k`, summed and divided by min(k, R).

    Example:
        >>> map_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=3)
        array([0.5       , 0.33333333,        nan])
    """
    total = _sum_per_query(ranks, ranks.precisions * (ranks.ranks <= k))
    return _nan_without_positives(ranks, total / ranks.counts.clip(1, k))


def reciprocal_rank(ranks: Ranks) -> Doubles:
    """One over the rank of the first positive.

    Example:
        >>> reciprocal_rank(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([1.        , 0.33333333,        nan])
    """
    return _nan_without_positives(ranks, 1 / np.maximum(first_positive_rank(ranks), 1))


def first_positive_rank(ranks: Ranks) -> Integers:
    """The rank of the first positive, int64 [queries]; 0 for a query without positives.

    Example:
        >>> first_positive_rank(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([1, 3, 0])
    """
    firsts = np.zeros(len(ranks.counts), dtype=np.int64)
    starts = np.cumsum(ranks.counts) - ranks.counts
    firsts[ranks.counts > 0] = ranks.ranks[starts[ranks.counts > 0]]
    return firsts


def r_precision(ranks: Ranks) -> Doubles:
    """The fraction of positives among the first R, where R is the number of positives of the query.

    Example:
        >>> r_precision(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    return _mean_over_positives(ranks, ranks.is_within_r)


def map_at_r(ranks: Ranks) -> Doubles:
    """The mean over R of the precision at each positive among the first R.

    Example:
        >>> map_at_r(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    return _mean_over_positives(ranks, ranks.precisions * ranks.is_within_r)


def average_precision(ranks: Ranks) -> Doubles:
    """The mean over R of the precision at each positive, over the full ranking.

    Example:
        >>> average_precision(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.75      , 0.33333333,        nan])
    """
    return _mean_over_positives(ranks, ranks.precisions)


def _mean_over_positives(ranks: Ranks, values: npt.NDArray[np.generic]) -> Doubles:
    return _nan_without_positives(ranks, _sum_per_query(ranks, values) / np.maximum(ranks.counts, 1))


def _sum_per_query(ranks: Ranks, values: npt.NDArray[np.generic]) -> Doubles:
    sums, has_positives = np.zeros(len(ranks.counts)), ranks.counts > 0
    if has_positives.any():
        starts = (np.cumsum(ranks.counts) - ranks.counts)[has_positives]
        sums[has_positives] = np.add.reduceat(values, starts, dtype=np.float64)
    return sums


def _nan_without_positives(ranks: Ranks, values: Doubles) -> Doubles:
    return np.where(ranks.counts > 0, values, np.nan)


METRICS: dict[str, Metric] = {
    "mAP@R": map_at_r,
    "R-precision": r_precision,
    "mAP": average_precision,
    "MRR": reciprocal_rank,
}
METRICS_AT_K: dict[str, Callable[..., Doubles]] = {
    "recall": recall_at_k,
    "positives_recall": positives_recall_at_k,
    "precision": precision_at_k,
    "mAP": map_at_k,
}
