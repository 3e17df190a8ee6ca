"""Differences of two models on the same queries, with confidence intervals and p-values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import bootstrap_bounds
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling, UnitTotals, unit_totals
from vicinal.evaluation.result import Evaluation
from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError

ROUNDING = 1e-12  # differences that are smaller than this fraction of their parts count as equal


def paired_differences(
    first: Evaluation, second: Evaluation, table: Table | None, resampling: Resampling = DEFAULT_RESAMPLING
) -> pd.DataFrame:
    """Compare two models on the same queries: differences, their bootstrap intervals, and p-values by permutation.

    If the models were equally good, the two scores of a class could be swapped. The paired permutation test swaps those
    of every class at random and counts how often the difference is as large as the measured one. It goes through all
    possible swaps where these are not more than `num_resamples`.

    Each p-value is that of one comparison: of twenty comparisons of equally good models, one is below 0.05 by chance.

    Args:
        first: the evaluation of one model, such as the baseline.
        second: the evaluation of the other model, on the same queries.
        table: what was evaluated, with labels; it may be None when resampling queries.
        resampling: what is resampled (and swapped), how often, and the confidence level.

    Returns:
        One row per metric that both have, whose name is the index, with the columns `difference` (second minus first),
        `difference_low`, `difference_high` and `p_value`. The last three are NaN for metrics of the whole set, such as
        NMI.

    Raises:
        InputError: other protocols, queries or metrics, another table, or fewer than two classes (or queries) with a
            score.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> paired_differences(evaluate(bad, table, [1]), evaluate(good, table, [1]), table).loc["recall@1"].tolist()
        [0.75, 0.5, 1.0, 0.5]
    """
    _check_same_protocol(first, second)
    names = [name for name in first.per_query if name in second.per_query]
    if not names:
        raise InputError("the two evaluations have no metric in common; evaluate both with the same metrics")
    before, after = (np.column_stack([each.per_query[name] for name in names]) for each in (first, second))
    _check_same_queries(first, second, before, after)
    totals = unit_totals(after - before, first, table, resampling.resample_by)
    low, high = bootstrap_bounds(totals, resampling)
    columns = {"difference_low": low, "difference_high": high, "p_value": _p_values(totals, resampling)}
    differences = metric_differences(first, second).join(pd.DataFrame(columns, index=names))
    differences.loc[names, "difference"] = totals.means
    return differences


def metric_differences(first: Evaluation, second: Evaluation) -> pd.DataFrame:
    """The column `difference` of :func:`paired_differences` alone, which needs no scores of single queries."""
    names = common_metrics(first, second)
    values = [second.metrics[name] - first.metrics[name] for name in names]
    return pd.DataFrame({"difference": values}, index=names, dtype="float64")


def common_metrics(*evaluations: Evaluation) -> list[str]:
    """The names of the metrics that all evaluations have, in the order of the first."""
    first, *others = evaluations
    return [name for name in first.metrics if all(name in other.metrics for other in others)]


def _check_same_protocol(first: Evaluation, second: Evaluation) -> None:
    if first.protocol != second.protocol:
        raise InputError(
            f"one evaluation is {first.protocol!r}, the other {second.protocol!r}; compare two of one protocol"
        )


def _check_same_queries(first: Evaluation, second: Evaluation, before: Doubles, after: Doubles) -> None:
    if not np.array_equal(first.query_indices, second.query_indices):
        raise InputError(
            f"the two evaluations have other queries ({first.num_queries:,} and {second.num_queries:,}); "
            "evaluate one table"
        )
    other = np.flatnonzero((np.isnan(before) != np.isnan(after)).any(axis=1))
    if len(other):
        row = first.query_indices[other[0]]
        raise InputError(f"only one of the two evaluations scores the query in row {row}; evaluate one table")


def _p_values(totals: UnitTotals, resampling: Resampling) -> Doubles:
    """The two-sided p-value of each metric, [metrics], from the differences summed up by unit."""
    sums, num_units = totals.sums, len(totals.sums)
    measured = np.abs(sums.sum(axis=0)) - ROUNDING * np.abs(sums).sum(axis=0)
    if 2**num_units <= resampling.num_resamples:
        all_swaps = (np.arange(2**num_units)[:, None] >> np.arange(num_units)) & 1
        exact: Doubles = (np.abs(_swapped(all_swaps, sums)) >= measured).mean(axis=0)
        return exact
    rng = np.random.default_rng([resampling.seed, 1])  # other numbers than those of the bootstrap
    num_as_large = np.ones(sums.shape[1])  # the measured difference counts as one permutation
    for size in resampling.batches(num_units):
        swaps = rng.integers(0, 2, (size, num_units))
        num_as_large += (np.abs(_swapped(swaps, sums)) >= measured).sum(axis=0)
    return num_as_large / (resampling.num_resamples + 1)


def _swapped(swaps: npt.NDArray[np.integer], sums: Doubles) -> Doubles:
    """The summed differences, [permutations, metrics], after swapping the units marked 0 in [permutations, units]."""
    return (2.0 * swaps - 1.0) @ sums
