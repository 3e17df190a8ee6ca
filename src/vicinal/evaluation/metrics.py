"""Retrieval metrics of single queries, read off the ranks of their positives.

Every function takes the ranks of the positives of some queries and returns one float64 a query: NaN for a query without
positives, which has no score. With R positives at the ranks r_1 < ... < r_R:

- recall@k: 1 if r_1 <= k, else 0, as deep metric learning uses the word (Song et al., "Deep Metric Learning via Lifted
  Structured Feature Embedding", CVPR 2016). It asks for any positive, not for the share of positives found.
- R-precision: the share of positives among the first R (Musgrave et al., "A Metric Learning Reality Check", ECCV 2020).
- MAP@R: 1/R times the sum over i with r_i <= R of i / r_i (same paper).
- average precision: 1/R times the sum over all i of i / r_i, over the full ranking.

On request:

- precision@k: the share of positives among the first k; below 1 for any query with R < k.
- found@k: the share of the R positives that are among the first k. This is the recall of information retrieval, and of
  Eq. (1) of Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, whose tables
  hold recall@k as above.
- mAP@k: 1/min(k, R) times the sum over i with r_i <= k of i / r_i, so that a perfect ranking has 1. Others divide by R
  (pytorch-metric-learning) or by the number of positives found.
- MRR: 1 / r_1, whose mean is the mean reciprocal rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from vicinal.errors import InputError
from vicinal.evaluation.ranking import Integers, Ranks

NUMBER = r"0|-?[1-9][0-9]{0,17}"  # one way only to write each

Scores = npt.NDArray[np.float64]
Metric = Callable[[Ranks], Scores]


def metric_of(name: str, largest: int) -> Metric:
    """The metric of this name.

    Args:
        name: `recall@K`, `precision@K`, `found@K` or `mAP@K` with a number for K; `mAP@R`, `R-precision`, `mAP`, `MRR`.
        largest: how many gallery images there are to rank.

    Raises:
        InputError: there is no such metric, or K is not from 1 to `largest`.

    Example:
        >>> metric_of("precision@2", largest=5)(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    if name in WHOLE:
        return WHOLE[name]
    kind, _, cut = str(name).partition("@")
    if kind not in CUT or not re.fullmatch(NUMBER, cut):
        known = ", ".join([*(f"{kind}@K" for kind in CUT), *WHOLE])
        raise InputError(f"there is no metric {name!r}; use {known}, with a number for K")
    if not 1 <= int(cut) <= largest:
        raise InputError(f"{name} is impossible with {largest} gallery images to rank; use k from 1 to {largest}")
    return partial(CUT[kind], k=int(cut))


def recall_at_k(ranks: Ranks, k: int) -> Scores:
    """Whether any positive is among the first `k`: 1 or 0.

    Example:
        >>> recall_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=2)
        array([ 1.,  0., nan])
    """
    return _where_any(ranks, (first_rank(ranks) <= k).astype(np.float64))


def precision_at_k(ranks: Ranks, k: int) -> Scores:
    """The share of positives among the first `k`.

    Example:
        >>> precision_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=4)
        array([0.5 , 0.25,  nan])
    """
    return _where_any(ranks, _sum_per_query(ranks, ranks.ranks <= k) / k)


def found_at_k(ranks: Ranks, k: int) -> Scores:
    """The share of the positives that are among the first `k`: Eq. (1) of RS@k, there named recall@k.

    Example:
        >>> found_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=3)
        array([0.5, 1. , nan])
    """
    return _mean_over_positives(ranks, ranks.ranks <= k)


def map_at_k(ranks: Ranks, k: int) -> Scores:
    """The precision at each positive among the first `k`, summed and divided by min(k, R).

    Example:
        >>> map_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=3)
        array([0.5       , 0.33333333,        nan])
    """
    total = _sum_per_query(ranks, _precision_at_positives(ranks) * (ranks.ranks <= k))
    return _where_any(ranks, total / ranks.counts.clip(1, k))


def reciprocal_rank(ranks: Ranks) -> Scores:
    """One over the rank of the first positive.

    Example:
        >>> reciprocal_rank(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([1.        , 0.33333333,        nan])
    """
    return _where_any(ranks, 1 / np.maximum(first_rank(ranks), 1))


def first_rank(ranks: Ranks) -> Integers:
    """The rank of the first positive, int64 [queries]; 0 for a query without any.

    Example:
        >>> first_rank(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([1, 3, 0])
    """
    firsts = np.zeros(len(ranks.counts), dtype=np.int64)
    starts = np.cumsum(ranks.counts) - ranks.counts
    firsts[ranks.counts > 0] = ranks.ranks[starts[ranks.counts > 0]]
    return firsts


def r_precision(ranks: Ranks) -> Scores:
    """The share of positives among the first R, where R is the number of the query's positives.

    Example:
        >>> r_precision(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    return _mean_over_positives(ranks, _within_r(ranks))


def map_at_r(ranks: Ranks) -> Scores:
    """Mean over R of the precision at each positive among the first R.

    Example:
        >>> map_at_r(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.5, 0. , nan])
    """
    return _mean_over_positives(ranks, _precision_at_positives(ranks) * _within_r(ranks))


def average_precision(ranks: Ranks) -> Scores:
    """Mean over R of the precision at each positive, over the full ranking.

    Example:
        >>> average_precision(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])))
        array([0.75      , 0.33333333,        nan])
    """
    return _mean_over_positives(ranks, _precision_at_positives(ranks))


def _precision_at_positives(ranks: Ranks) -> Scores:
    """The precision i / r_i at the i-th positive of each query."""
    firsts = np.cumsum(ranks.counts) - ranks.counts
    positions = np.arange(len(ranks.ranks)) - np.repeat(firsts, ranks.counts) + 1
    return positions / ranks.ranks


def _within_r(ranks: Ranks) -> npt.NDArray[np.bool_]:
    return ranks.ranks <= np.repeat(ranks.counts, ranks.counts)


def _mean_over_positives(ranks: Ranks, values: npt.NDArray[np.generic]) -> Scores:
    return _where_any(ranks, _sum_per_query(ranks, values) / np.maximum(ranks.counts, 1))


def _sum_per_query(ranks: Ranks, values: npt.NDArray[np.generic]) -> Scores:
    sums, some = np.zeros(len(ranks.counts)), ranks.counts > 0
    if some.any():
        starts = (np.cumsum(ranks.counts) - ranks.counts)[some]
        sums[some] = np.add.reduceat(values, starts, dtype=np.float64)
    return sums


def _where_any(ranks: Ranks, values: Scores) -> Scores:
    return np.where(ranks.counts > 0, values, np.nan)


WHOLE: dict[str, Metric] = {
    "mAP@R": map_at_r,
    "R-precision": r_precision,
    "mAP": average_precision,
    "MRR": reciprocal_rank,
}
CUT: dict[str, Callable[..., Scores]] = {
    "recall": recall_at_k,
    "precision": precision_at_k,
    "found": found_at_k,
    "mAP": map_at_k,
}
