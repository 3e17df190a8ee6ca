"""The result of an evaluation: the metrics, and the scores of the single queries that they are means of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.results_table import ResultsTable
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Evaluation:
    """The metrics of one evaluation, and the scores of every query.

    Attributes:
        metrics: `recall@1`, ..., `mAP@R`, `R-precision`, `mAP` and the metrics that were asked for -> mean over the
            queries with a positive, from 0 to 1. At coarse levels `coarse/recall@1`, ..., `coarse_2/mAP`: means over
            the queries with a positive at that level, which may be the only image of its class.
        protocol: `leave-one-out`, `query/gallery`, `revisited, easy` and the like; with `other groups`, images of the
            query's own class and group are left out.
        num_queries: the number of queries.
        num_gallery: the number of gallery images.
        num_without_positive: the number of queries without a positive at the level of the labels; they count in none of
            its metrics.
        per_query: metric -> float64 [queries], NaN for queries without a positive.
        query_indices: int64 [queries], the row of each query in the table or array that was evaluated.
        num_ties: the number of positives (at the level of the labels) that have exactly the score of a
            negative. Equal scores rank in the order of the gallery, so that results are reproducible; but the ranks
            of many tied positives mean little. Printed if there is more than one per hundred queries.
        first_positive_ranks: int64 [queries], the rank of the first positive of each query at the level of the labels,
            counted from 1; 0 for queries without a positive.
        repetitions: the evaluations that this one is the mean of, such as those with other random galleries.
        stage: `plain`, or `reranked` or `refined`.
        method: the re-ranking or refinement, with its parameters; None without.
        set_intervals: the confidence intervals of metrics of the whole set, as far as they are known.

    Example:
        >>> from vicinal.evaluation import evaluate_arrays
        >>> labels = np.array([0, 0, 1, 1])
        >>> print(evaluate_arrays(np.eye(4), labels, np.eye(4)[[1, 0, 2, 3]], labels, recall_at=(1, 2)))
        query/gallery: 4 queries, 4 gallery images (4 positives tied with other images)
        recall@1      100.00 %
        recall@2      100.00 %
        mAP@R          75.00 %
        R-precision    75.00 %
        mAP            87.50 %
    """

    metrics: dict[str, float]
    protocol: str
    num_queries: int
    num_gallery: int
    num_without_positive: int
    per_query: dict[str, Doubles] = field(repr=False)
    query_indices: Integers = field(repr=False)
    num_ties: int = 0
    first_positive_ranks: Integers = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)
    repetitions: tuple[Evaluation, ...] = field(default=(), repr=False)
    stage: str = "plain"
    method: str | None = None
    set_intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_queries(
        cls,
        per_query: Mapping[str, Doubles],
        *,
        protocol: str,
        query_indices: Integers,
        num_gallery: int,
        num_ties: int,
        first_positive_ranks: Integers,
        stage: str = "plain",
        method: str | None = None,
    ) -> Evaluation:
        """Average the scores of single queries; the arguments are attributes of the class.

        Example:
            >>> scores = {"mAP": np.array([1.0, 0.5, np.nan])}
            >>> found = Evaluation.from_queries(scores, protocol="leave-one-out", query_indices=np.arange(3),
            ...                                 num_gallery=3, num_ties=0, first_positive_ranks=np.array([1, 2, 0]))
            >>> found.metrics, found.num_without_positive
            ({'mAP': 0.75}, 1)
        """
        return cls(
            metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
            protocol=protocol,
            num_queries=len(query_indices),
            num_gallery=num_gallery,
            num_without_positive=int((first_positive_ranks == 0).sum()),
            per_query=dict(per_query),
            query_indices=query_indices,
            num_ties=num_ties,
            first_positive_ranks=first_positive_ranks,
            stage=stage,
            method=method,
        )

    @property
    def std(self) -> dict[str, float]:
        """The sample standard deviation of each metric over the repetitions, with n - 1; empty without repetitions."""
        if not self.repetitions:
            return {}
        return {name: float(np.std([each.metrics[name] for each in self.repetitions], ddof=1)) for name in self.metrics}

    def cmc(self, max_k: int) -> Doubles:
        """The cumulative matching characteristic: the fraction of queries with a positive among the first k.

        Its value at k is recall@k. Queries without a positive do not count.

        Args:
            max_k: the last k.

        Returns:
            float64 [max_k], for k = 1 to `max_k`.

        Raises:
            InputError: `max_k` is not from 1 to the number of gallery images, or `first_positive_ranks` is empty.

        Example:
            >>> from vicinal.evaluation import evaluate_arrays
            >>> labels = np.array([0, 0, 1, 1])
            >>> evaluate_arrays(np.eye(4), labels, np.eye(4)[[2, 0, 1, 3]], labels[[0, 0, 2, 2]]).cmc(3)
            array([0.5 , 0.75, 1.  ])
        """
        if not (is_integer(max_k) and 1 <= max_k <= self.num_gallery):
            raise InputError(f"max_k = {max_k} is out of range; use 1 to {self.num_gallery}, the gallery's size")
        ranks = self.first_positive_ranks[self.first_positive_ranks > 0]
        if not len(ranks):
            raise InputError("CMC needs the rank of the first positive of each query: first_positive_ranks is empty")
        hits = np.bincount(ranks[ranks <= max_k], minlength=max_k + 1)[1:]
        return np.cumsum(hits) / len(ranks)

    def to_results(
        self,
        model: str = "",
        *,
        intervals: pd.DataFrame | None = None,
        differences: pd.DataFrame | None = None,
        groups: pd.DataFrame | None = None,
    ) -> ResultsTable:
        """The metrics as a table of results.

        Args:
            model: the name of the evaluated model.
            intervals: columns `low` and `high`, as :func:`~vicinal.evaluation.confidence_intervals` returns them.
            differences: as :func:`~vicinal.evaluation.paired_differences` returns them.
            groups: as :func:`~vicinal.evaluation.metrics_by` returns them.
        """
        metrics = pd.DataFrame({"value": pd.Series(self.metrics, dtype="float64")})
        for more in (pd.Series(self.std, name="std", dtype="float64"), intervals, differences):
            metrics = metrics if more is None else metrics.join(more)
        return ResultsTable.from_metrics(
            metrics,
            groups,
            model=model,
            stage=self.stage,
            method=self.method,
            protocol=self.protocol,
            num_repeats=len(self.repetitions) or None,
            num_queries=self.num_queries,
            num_without_positive=self.num_without_positive,
            num_gallery=self.num_gallery,
            num_ties=self.num_ties,
        )

    def __str__(self) -> str:
        return str(self.to_results())


def metrics_by(evaluation: Evaluation, table: Table, column: str = "label") -> pd.DataFrame:
    """Average every metric over the queries of each group.

    The mean over all queries is the mean of the groups weighted by `num_queries - num_without_positive`; the plain mean
    of the rows, `metrics_by(...).mean()`, is the macro average, in which each group counts the same.

    Args:
        evaluation: of the table.
        table: the evaluated table.
        column: a column of the table: the queries with one value of it are a group. By default each class is a group.

    Returns:
        One row per group, in the order of the group names, which are the index. Columns: `num_queries`;
        `num_without_positive`, the number of queries that count in no metric of the labels; every metric, from 0 to 1,
        NaN for a group in which no query counts.

    Raises:
        InputError: the table has no such column, or is not the one that was evaluated, or a query has no value.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog", "emu"]}))
        >>> result = evaluate(np.eye(5)[[0, 0, 1, 2, 2]], table, recall_at=[1])
        >>> metrics_by(result, table)[["num_queries", "num_without_positive", "recall@1"]].T
        label                 cat  dog  emu
        num_queries           2.0  2.0  1.0
        num_without_positive  0.0  0.0  1.0
        recall@1              1.0  0.0  NaN
    """
    groups = _groups(evaluation, table, column)
    metrics = pd.DataFrame({name: pd.Series(values) for name, values in evaluation.per_query.items()})
    counts = metrics.iloc[:, 0].isna().groupby(groups, observed=True).agg(["size", "sum"]).astype("int64")
    counts.columns = pd.Index(["num_queries", "num_without_positive"])
    return pd.concat([counts, metrics.groupby(groups, observed=True).mean()], axis=1)


def _groups(evaluation: Evaluation, table: Table, column: str) -> pd.Series:
    if column not in table.frame:
        raise InputError(f"the table has no column {column!r}; its columns are {', '.join(table.frame.columns)}")
    rows = evaluation.query_indices
    if rows.max() >= len(table):
        raise InputError(f"a query is row {rows.max()}, but the table has {len(table)} rows; give the one evaluated")
    groups = table.frame[column].iloc[rows].reset_index(drop=True)
    if not groups.map(pd.api.types.is_hashable).all():
        raise InputError(f"the column {column!r} holds lists; queries are grouped by text or numbers")
    if groups.isna().any():
        row = rows[int(groups.isna().to_numpy().argmax())]
        raise InputError(f"row {row} has no {column}; every query needs one to be put in a group")
    return groups
