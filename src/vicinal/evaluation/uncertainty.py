"""How far metrics can be trusted: confidence intervals, paired comparison of two models, several seeds summarised.

A metric is a mean over queries, and queries of one class are alike: where the question is how a model does on classes
it has never seen, the classes of the test set are the sample, and drawing single queries makes intervals too narrow.
Drawn are therefore classes (cluster bootstrap: Davison & Hinkley, "Bootstrap Methods and their Application", 1997,
section 3.8) or, if asked for, queries. The score of a query is taken as measured: the gallery is not drawn again.
Percentile intervals of few classes, less than about twenty, are themselves too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from vicinal.arguments import is_number, is_whole
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.result import Evaluation

By = Literal["classes", "queries"]
FEW_CLASSES = 20  # of fewer, bootstrap intervals by percentiles are too narrow
WEIGHTS = 2**22  # numbers of the resampled units held at a time
ROUNDING = 1e-12  # differences so much smaller than their parts are none

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Interval(NamedTuple):
    """Where a value lies, with the confidence that was asked for."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A metric of two models on the same queries.

    Attributes:
        first: of the first model.
        second: of the second.
        difference: second less first, over the queries that have a score.
        interval: of the difference.
        p: two-sided; how often a difference as large as this comes about when chance decides, class by class (or query
            by query), which score is whose.
    """

    first: float
    second: float
    difference: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Summary:
    """A metric over several runs, such as those of several seeds.

    Attributes:
        mean: over the runs.
        deviation: sample standard deviation, with n - 1.
        interval: of the mean, by Student's t.
        runs: how many there are.
    """

    mean: float
    deviation: float
    interval: Interval
    runs: int


def interval(
    evaluation: Evaluation,
    table: Table | None,
    by: By = "classes",
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile bootstrap intervals of every metric that is a mean over queries.

    A metric of the whole, such as NMI, has no score a query and no interval here.

    Args:
        evaluation: of `table`.
        table: what was evaluated, with labels; by queries it may be None.
        by: what is drawn, with replacement: `classes` with all their queries, or `queries`.
        level: of confidence, between 0 and 1.
        draws: how many samples.
        seed: of the draws; the same one gives the same intervals.

    Returns:
        metric -> low and high end.

    Raises:
        InputError: an impossible argument, another table, or less than two classes (or queries) with a score.

    Example:
        >>> import pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> interval(evaluate(vectors, table, recall_at=[1]), table)["recall@1"]
        Interval(low=0.5, high=1.0)
    """
    check_sampling(level, draws, seed)
    names = list(evaluation.per_query)
    if not names:
        raise InputError("the evaluation has no scores of single queries (per_query); an interval takes some")
    units = _units(evaluation, table, by)
    sums, counts = _by_unit(np.column_stack([evaluation.per_query[name] for name in names]), units, by)
    return dict(zip(names, _intervals(_resampled(sums, counts, draws, seed), level), strict=True))


def paired(
    first: Evaluation,
    second: Evaluation,
    table: Table | None,
    by: By = "classes",
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, Difference]:
    """Compare two models on the same queries: differences, their intervals by bootstrap, p-values by permutation.

    If the models were equally good, the two scores of a class could as well be swapped: the permutation test swaps
    those of every class by the toss of a coin and counts how often the difference is as large as the one that was
    found, going through all swaps where there are no more of them than `draws`.

    Args:
        first: of one model, such as the baseline.
        second: of the other, on the same queries.
        table: what was evaluated, with labels; by queries it may be None.
        by: what is drawn and swapped: `classes` with all their queries, or `queries`.
        level: of confidence, between 0 and 1.
        draws: how many samples, and how many swaps.
        seed: of both.

    Returns:
        metric -> difference, for the metrics a query that both have.

    Raises:
        InputError: an impossible argument, another protocol, other queries or metrics, or less than two classes (or
            queries) with a score.

    Example:
        >>> import pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> found = paired(evaluate(bad, table, [1]), evaluate(good, table, [1]), table)["recall@1"]
        >>> found.difference, found.interval, found.p
        (0.75, Interval(low=0.5, high=1.0), 0.5)
    """
    check_sampling(level, draws, seed)
    _check_same_protocol(first, second)
    names = [name for name in first.per_query if name in second.per_query]
    if not names:
        raise InputError("the two evaluations have no metric in common; ask for the same ones")
    before, after = (np.column_stack([each.per_query[name] for name in names]) for each in (first, second))
    _check_same_queries(first, second, before, after)
    sums, counts = _by_unit(after - before, _units(first, table, by), by)
    found = sums.sum(axis=0) / counts.sum(axis=0)
    ends = _intervals(_resampled(sums, counts, draws, seed), level)
    chances = _swapped(sums, draws, seed)
    means = np.nanmean(before, axis=0), np.nanmean(after, axis=0)
    rows = zip(*(values.tolist() for values in (*means, found)), ends, chances.tolist(), strict=True)
    return {name: Difference(*row) for name, row in zip(names, rows, strict=True)}


def over_runs(runs: Sequence[Mapping[str, float]], level: float = 0.95) -> dict[str, Summary]:
    """Summarise the metrics of several runs of one recipe: mean, standard deviation, interval of the mean.

    This is about chance in training, not in the choice of test classes; see :func:`interval` for that.

    Args:
        runs: the metrics of each, at least two, all of the same names.
        level: of confidence, between 0 and 1.

    Raises:
        InputError: less than two runs, or metrics of other names.

    Example:
        >>> over_runs([{"mAP": 0.5}, {"mAP": 0.75}])["mAP"].mean
        0.625
    """
    check_sampling(level, 1, 0)
    if len(runs) < 2:
        raise InputError(f"{len(runs)} runs; a deviation takes at least two")
    for number, run in enumerate(runs):
        if set(run) != set(runs[0]):
            odd = sorted(set(run) ^ set(runs[0]))[0]
            raise InputError(f"run {number} and run 0 do not both have {odd!r}; all runs need the same metrics")
    return {name: _summary(np.array([run[name] for run in runs], dtype=np.float64), level) for name in runs[0]}


def _summary(values: Floats, level: float) -> Summary:
    mean, deviation, runs = float(values.mean()), float(values.std(ddof=1)), len(values)
    reach = float(stdtrit(runs - 1, (1 + level) / 2)) * deviation / runs**0.5
    return Summary(mean, deviation, Interval(mean - reach, mean + reach), runs)


def query_classes(table: Table, evaluation: Evaluation) -> int:
    """Of how many classes the queries are that have something to find."""
    counts = ~np.isnan(next(iter(evaluation.per_query.values())))  # of one level, all scores are missing together
    return len(np.unique(table.labels[evaluation.query_rows[counts]]))


def check_sampling(level: float, draws: int, seed: int) -> None:
    """Refuse an impossible level of confidence, number of draws or seed.

    Raises:
        InputError: the first that is impossible.
    """
    if not (is_number(level) and 0 < level < 1):
        raise InputError(f"level is {level!r}; it must be between 0 and 1, such as 0.95")
    if not (is_whole(draws) and draws >= 1):
        raise InputError(f"draws is {draws}; it must be a whole number, at least 1")
    if not (is_whole(seed) and seed >= 0):
        raise InputError(f"seed is {seed}; it must be a whole number from 0 up")


def _check_same_protocol(first: Evaluation, second: Evaluation) -> None:
    if first.protocol != second.protocol:
        raise InputError(
            f"one evaluation is {first.protocol!r}, the other {second.protocol!r}; compare two of one protocol"
        )


def _check_same_queries(first: Evaluation, second: Evaluation, before: Floats, after: Floats) -> None:
    if not np.array_equal(first.query_rows, second.query_rows):
        raise InputError(
            f"the two evaluations have other queries ({first.queries:,} and {second.queries:,}); evaluate one table"
        )
    other = np.flatnonzero((np.isnan(before) != np.isnan(after)).any(axis=1))
    if len(other):
        row = first.query_rows[other[0]]
        raise InputError(f"only one of the two evaluations scores the query in row {row}; evaluate one table")


def _units(evaluation: Evaluation, table: Table | None, by: By) -> Integers:
    """What each query is drawn with, int64 [queries]."""
    if by not in ("classes", "queries"):
        raise InputError(f"by is {by!r}; it can be classes or queries")
    rows = evaluation.query_rows
    if table is not None and len(rows) and rows.max() >= len(table):
        raise InputError(f"a query is row {rows.max()}, but the table has {len(table)}; give the one evaluated")
    if by == "queries":
        return np.arange(len(rows))
    if table is None:
        raise InputError("classes cannot be drawn without a table; give the one evaluated, or draw queries")
    return table.labels[rows]


def _by_unit(values: Floats, units: Integers, by: By) -> tuple[Floats, Floats]:
    """Sums and numbers of the scores of each unit that has some, both [units, metrics]."""
    scored = ~np.isnan(values)
    sums, counts = _totals(np.where(scored, values, 0.0), units), _totals(scored.astype(np.float64), units)
    filled = counts.any(axis=1)
    if filled.sum() < 2:
        raise InputError(f"{filled.sum()} of the {by} have a score; intervals and comparisons take at least two")
    return sums[filled], counts[filled]


def _totals(values: Floats, units: Integers) -> Floats:
    return np.column_stack([np.bincount(units, weights=column) for column in values.T])


def _resampled(sums: Floats, counts: Floats, draws: int, seed: int) -> Floats:
    """The metrics of each sample of units, [draws, metrics]."""
    rng, both = np.random.default_rng(seed), np.hstack([sums, counts])
    at_once = max(1, WEIGHTS // len(sums))
    blocks = [_weights(rng, min(at_once, draws - start), len(sums)) @ both for start in range(0, draws, at_once)]
    totals = np.concatenate(blocks)
    with np.errstate(invalid="ignore"):  # a metric that none of the drawn has
        return totals[:, : sums.shape[1]] / totals[:, sums.shape[1] :]


def _weights(rng: np.random.Generator, rows: int, units: int) -> Floats:
    """How often each unit is drawn in each sample, [rows, units]."""
    picks = rng.integers(0, units, (rows, units)) + units * np.arange(rows)[:, None]
    return np.bincount(picks.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)


def _intervals(samples: Floats, level: float) -> list[Interval]:
    low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(*ends) for ends in zip(low.tolist(), high.tolist(), strict=True)]


def _swapped(sums: Floats, draws: int, seed: int) -> Floats:
    """The p-value of each metric, [metrics], from the differences of each unit [units, metrics]."""
    least = np.abs(sums.sum(axis=0)) - ROUNDING * np.abs(sums).sum(axis=0)
    if 2 ** len(sums) <= draws:
        every = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        return (np.abs(_signed(every, sums)) >= least).mean(axis=0)
    rng = np.random.default_rng([seed, 1])  # other numbers than those of the bootstrap
    at_once, larger = max(1, WEIGHTS // len(sums)), np.ones(sums.shape[1])  # what was found counts as one swap
    for start in range(0, draws, at_once):
        coins = rng.integers(0, 2, (min(at_once, draws - start), len(sums)))
        larger += (np.abs(_signed(coins, sums)) >= least).sum(axis=0)
    return larger / (draws + 1)


def _signed(coins: npt.NDArray[np.integer], sums: Floats) -> Floats:
    return (2.0 * coins - 1.0) @ sums
