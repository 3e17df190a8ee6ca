"""The units that are resampled for confidence intervals and p-values.

A metric is a mean over queries, and queries of one class are alike. Where the question is how a model performs on
classes it has never seen, the classes of the test set are the sample, and resampling single queries gives intervals
that are too narrow. Therefore classes are resampled with all their queries (cluster bootstrap: Davison & Hinkley,
"Bootstrap Methods and their Application", 1997, section 3.8) or, on request, single queries. The score of a query is
taken as it was measured: the gallery is not resampled. Intervals from fewer than about twenty classes are too narrow
too, and those of metrics near 0 or 1 need more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation
from vicinal.utils.arguments import is_integer, is_number
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError

ResampleBy = Literal["classes", "queries"]
MIN_CLASSES = 20  # intervals from fewer classes are too narrow
MAX_WEIGHTS = 2**22  # numbers of the resampled units that are held at a time


@dataclass(frozen=True)
class Resampling:
    """How confidence intervals and p-values are computed.

    Args:
        resample_by: `classes`, each with all its queries, or single `queries`.
        confidence_level: of the intervals, between 0 and 1.
        num_resamples: the number of bootstrap samples, and of permutations for p-values.
        seed: of the random numbers; the same seed gives the same intervals.

    Raises:
        InputError: an argument is invalid.
    """

    resample_by: ResampleBy = "classes"
    confidence_level: float = 0.95
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resample_by not in ("classes", "queries"):
            raise InputError(f"resample_by = {self.resample_by!r} is invalid; use classes or queries")
        check_confidence_level(self.confidence_level)
        if not (is_integer(self.num_resamples) and self.num_resamples >= 1):
            raise InputError(f"num_resamples = {self.num_resamples} is invalid; use an integer from 1 up")
        if not (is_integer(self.seed) and self.seed >= 0):
            raise InputError(f"seed = {self.seed} is invalid; use an integer from 0 up")

    def batches(self, num_units: int) -> Iterator[int]:
        """The numbers of resamples that are computed at a time, `num_resamples` in all."""
        batch_size = max(1, MAX_WEIGHTS // num_units)
        for start in range(0, self.num_resamples, batch_size):
            yield min(batch_size, self.num_resamples - start)


def check_confidence_level(confidence_level: float) -> None:
    if not (is_number(confidence_level) and 0 < confidence_level < 1):
        raise InputError(f"confidence_level = {confidence_level!r} is invalid; use one between 0 and 1, such as 0.95")


def count_query_classes(evaluation: Evaluation, table: Table) -> int:
    """The number of classes of the queries with a positive; below about twenty, confidence intervals are too narrow.

    Args:
        evaluation: of the table.
        table: the evaluated table, with labels.
    """
    is_scored = ~np.isnan(next(iter(evaluation.per_query.values())))
    return len(np.unique(table.labels[evaluation.query_indices[is_scored]]))


@dataclass(frozen=True)
class UnitTotals:
    """The scores of the units that are resampled, which are classes or queries."""

    sums: Doubles  # [units, metrics], of the scores of each unit
    counts: Doubles  # [units, metrics], of its queries that have a score

    @property
    def means(self) -> Doubles:
        """The mean of each metric over all queries that have a score, [metrics]."""
        means: Doubles = self.sums.sum(axis=0) / self.counts.sum(axis=0)
        return means


def unit_totals(scores: Doubles, evaluation: Evaluation, table: Table | None, resample_by: ResampleBy) -> UnitTotals:
    """Sum up the scores of each unit; float64 [queries, metrics], NaN for queries without a score."""
    units = _units(evaluation, table, resample_by)
    is_scored = ~np.isnan(scores)
    sums, counts = _sum_by_unit(np.where(is_scored, scores, 0.0), units), _sum_by_unit(is_scored * 1.0, units)
    has_score = counts.any(axis=1)
    if has_score.sum() < 2:
        raise InputError(
            f"{has_score.sum()} of the {resample_by} have a score; intervals and p-values need at least two"
        )
    return UnitTotals(sums[has_score], counts[has_score])


def _units(evaluation: Evaluation, table: Table | None, resample_by: ResampleBy) -> Integers:
    rows = evaluation.query_indices
    if table is not None and len(rows) and rows.max() >= len(table):
        raise InputError(f"a query is row {rows.max()}, but the table has {len(table)} rows; give the one evaluated")
    if resample_by == "queries":
        return np.arange(len(rows))
    if table is None:
        raise InputError("resampling classes needs the table that was evaluated; give it, or resample queries")
    return table.labels[rows]


def _sum_by_unit(values: Doubles, units: Integers) -> Doubles:
    return np.column_stack([np.bincount(units, weights=column) for column in values.T])


DEFAULT_RESAMPLING = Resampling()
