"""Retrieval metrics of single queries, read off the ranks of their positives.

Every function takes the ranks of the positives of some queries and returns one float64 a query: NaN for a query without
positives, which has no score. With R positives at the ranks r_1 < ... < r_R:

- recall@k: 1 if r_1 <= k, else 0, as deep metric learning uses the word (Song et al., "Deep Metric Learning via Lifted
  Structured Feature Embedding", CVPR 2016). It asks for any positive, not for the share of positives found.
- R-precision: the share of positives among the first R (Musgrave et al., "A Metric Learning Reality Check", ECCV 2020).
- MAP@R: 1/R times the sum over i with r_i <= R of i / r_i (same paper).
- average precision: 1/R times the sum over all i of i / r_i, over the full ranking.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.evaluation.ranking import Ranks

Scores = npt.NDArray[np.float64]


def recall_at_k(ranks: Ranks, k: int) -> Scores:
    """Whether any positive is among the first `k`: 1 or 0.

    Example:
        >>> recall_at_k(Ranks(np.array([1, 4, 3]), np.array([2, 1, 0])), k=2)
        array([ 1.,  0., nan])
    """
    return _where_any(ranks, (_sum_per_query(ranks, ranks.ranks <= k) > 0).astype(np.float64))


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
    queries = np.repeat(np.arange(len(ranks.counts)), ranks.counts)
    return np.bincount(queries, weights=values, minlength=len(ranks.counts)).astype(np.float64)


def _where_any(ranks: Ranks, values: Scores) -> Scores:
    return np.where(ranks.counts > 0, values, np.nan)
