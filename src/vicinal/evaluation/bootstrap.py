"""Confidence intervals of metrics by the percentile bootstrap."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling, UnitTotals, unit_totals
from vicinal.evaluation.result import Evaluation
from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError


def confidence_intervals(
    evaluation: Evaluation, table: Table | None, resampling: Resampling = DEFAULT_RESAMPLING
) -> pd.DataFrame:
    """Percentile bootstrap intervals of every metric that is a mean over queries.

    A metric of the whole set, such as NMI, has no scores of single queries and therefore no interval.

    Args:
        evaluation: of the table.
        table: what was evaluated, with labels; it may be None when resampling queries.
        resampling: what is resampled, how often, and the confidence level.

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
        raise InputError("confidence intervals need scores of single queries: per_query of the evaluation is empty")
    scores = np.column_stack(list(evaluation.per_query.values()))
    totals = unit_totals(scores, evaluation, table, resampling.resample_by)
    low, high = bootstrap_bounds(totals, resampling)
    return pd.DataFrame({"low": low, "high": high}, index=list(evaluation.per_query))


def bootstrap_bounds(totals: UnitTotals, resampling: Resampling) -> tuple[Doubles, Doubles]:
    """The lower and upper bounds of the mean of each metric, both float64 [metrics]."""
    rng, both = np.random.default_rng(resampling.seed), np.hstack([totals.sums, totals.counts])
    num_units, num_metrics = totals.sums.shape
    samples = [resample_weights(rng, size, num_units) @ both for size in resampling.batches(num_units)]
    sums, counts = np.split(np.concatenate(samples), [num_metrics], axis=1)
    with np.errstate(invalid="ignore"):  # no unit in the sample has a score for a metric
        means = sums / counts
    tail = (1 - resampling.confidence_level) / 2
    low, high = np.nanquantile(means, [tail, (1 + resampling.confidence_level) / 2], axis=0)
    return low, high


def resample_weights(rng: np.random.Generator, size: int, num_units: int) -> Doubles:
    """How often each unit is drawn in each of `size` samples, [size, units]."""
    picks = rng.integers(0, num_units, (size, num_units)) + num_units * np.arange(size)[:, None]
    return np.bincount(picks.ravel(), minlength=size * num_units).reshape(size, num_units).astype(np.float64)
