"""Confidence intervals of metrics by the bootstrap, and differences of two models on the same queries.

They are BCa intervals (Efron, "Better bootstrap confidence intervals", JASA 82, 1987), which allow for skewed scores,
with tails as wide as those of Student's t (Hesterberg, "What teachers should know about the bootstrap", Am. Stat. 69,
2015), which allows for few classes. `benchmarks/intervals.py` compares methods.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling, UnitTotals, unit_totals
from vicinal.evaluation.result import Evaluation
from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError

ROUNDING = 1e-12  # means that differ by less are equal, and differences smaller than this fraction of their parts are 0


def confidence_intervals(
    evaluation: Evaluation, table: Table | None, resampling: Resampling = DEFAULT_RESAMPLING
) -> pd.DataFrame:
    """Bootstrap intervals of every metric that is a mean over queries.

    A metric of the whole set, such as NMI, has no scores of single queries and therefore no interval, unless the
    evaluation has one, from its classes.

    Args:
        evaluation: of the table.
        table: the evaluated table, with labels; it may be None when resampling queries.
        resampling: the resampled units, their number, and the confidence level.

    Returns:
        One row per metric, whose name is the index, with the columns `low` and `high`.

    Raises:
        InputError: another table, or fewer than two classes (or queries) with a score.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> confidence_intervals(evaluate(vectors, table, recall_at=[1]), table).loc["recall@1"].tolist()
        [0.5, 1.0]
    """
    if not evaluation.per_query:
        raise InputError("confidence intervals need per-query scores: per_query of the evaluation is empty")
    scores = np.column_stack(list(evaluation.per_query.values()))
    totals = unit_totals(scores, evaluation, table, resampling.resample_by)
    low, high = bootstrap_bounds(totals, resampling)
    found = pd.DataFrame({"low": low, "high": high}, index=list(evaluation.per_query))
    if not evaluation.set_intervals or resampling.resample_by != "classes":
        return found
    of_set = pd.DataFrame.from_dict(dict(evaluation.set_intervals), orient="index", columns=["low", "high"])
    return pd.concat([found, of_set])


def bootstrap_bounds(totals: UnitTotals, resampling: Resampling) -> tuple[Doubles, Doubles]:
    """The lower and upper bounds of the mean of each metric, both float64 [metrics]."""
    rng, both = np.random.default_rng(resampling.seed), np.hstack([totals.sums, totals.counts])
    num_units, num_metrics = totals.sums.shape
    samples = [resample_weights(rng, size, num_units) @ both for size in resampling.batches(num_units)]
    sums, counts = np.split(np.concatenate(samples), [num_metrics], axis=1)
    with np.errstate(invalid="ignore"):  # no unit in the sample has a score for a metric
        means = sums / counts
    bounds = [
        np.nanquantile(means[:, metric], _tails(totals, means[:, metric], metric, resampling.confidence_level))
        for metric in range(num_metrics)
    ]
    low, high = np.array(bounds).T
    return low, high


def student_tails(confidence_level: float, num_units: int) -> Doubles:
    """The quantiles, as normal scores, at which an interval from resampled units ends, [2].

    A bootstrap of few units varies too little by itself, and its tails are those of a normal distribution.
    """
    from scipy.special import stdtrit

    units = max(num_units, 2)
    score = np.sqrt(units / (units - 1)) * stdtrit(units - 1, (1 + confidence_level) / 2)
    return np.array([-score, score])


def _tails(totals: UnitTotals, means: Doubles, metric: int, confidence_level: float) -> Doubles:
    """The quantiles of the means of samples at which the interval of a metric ends, [2]."""
    from scipy.special import ndtr, ndtri

    sums, counts = totals.sums[:, metric], totals.counts[:, metric]
    mean, means = sums.sum() / counts.sum(), means[~np.isnan(means)]
    is_equal = np.abs(means - mean) < ROUNDING
    below = (((means < mean) & ~is_equal).sum() + is_equal.sum() / 2) / len(means)
    bias = ndtri(np.clip(below, 1 / len(means), 1 - 1 / len(means)))
    scores = bias + student_tails(confidence_level, int((counts > 0).sum()))
    tails: Doubles = ndtr(bias + scores / np.maximum(1 - _acceleration(sums, counts) * scores, 0.1))
    return tails


def _acceleration(sums: Doubles, counts: Doubles) -> float:
    """How fast the standard error of the mean grows with it, from the mean without each unit."""
    others = counts.sum() - counts
    is_used = (counts > 0) & (others > 0)
    without = (sums.sum() - sums)[is_used] / others[is_used]
    if not len(without):
        return 0.0
    differences = without.mean() - without
    spread = (differences**2).sum() ** 1.5
    return float((differences**3).sum() / (6 * spread)) if spread > 0 else 0.0


def resample_weights(rng: np.random.Generator, size: int, num_units: int) -> Doubles:
    """How often each unit is drawn in each of `size` samples, [size, units]."""
    picks = rng.integers(0, num_units, (size, num_units)) + num_units * np.arange(size)[:, None]
    return np.bincount(picks.ravel(), minlength=size * num_units).reshape(size, num_units).astype(np.float64)


def paired_differences(
    first: Evaluation, second: Evaluation, table: Table | None, resampling: Resampling = DEFAULT_RESAMPLING
) -> pd.DataFrame:
    """Compare two models on the same queries: differences, their bootstrap intervals, and p-values by permutation.

    If the models were equally good, the two scores of a class could be swapped. The paired permutation test swaps the
    scores of every class at random and counts how often the difference is as large as the measured one. It enumerates
    all possible swaps if there are at most `num_resamples`.

    Each p-value is that of one comparison: of twenty comparisons of equally good models, one is below 0.05 by chance.

    Args:
        first: the evaluation of one model, such as the baseline.
        second: the evaluation of the other model, on the same queries.
        table: the evaluated table, with labels; it may be None when resampling queries.
        resampling: the resampled (and swapped) units, their number, and the confidence level.

    Returns:
        One row per metric that both have, whose name is the index, with the columns `difference` (second minus first),
        `difference_low`, `difference_high` and `p_value`. The last three are NaN for metrics of the whole set, such as
        NMI.

    Raises:
        InputError: protocols, queries or metrics differ, another table, or fewer than two classes (or queries) with a
            score.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> paired_differences(evaluate(bad, table, [1]), evaluate(good, table, [1]), table).loc["recall@1"].tolist()
        [0.75, 0.5, 1.0, 0.5]
    """
    if first.protocol != second.protocol:
        raise InputError(
            f"one evaluation is {first.protocol!r}, the other {second.protocol!r}; compare two of the same"
        )
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


def _check_same_queries(first: Evaluation, second: Evaluation, before: Doubles, after: Doubles) -> None:
    if not np.array_equal(first.query_indices, second.query_indices):
        raise InputError(
            f"the two evaluations have different queries ({first.num_queries:,} and {second.num_queries:,}); "
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
