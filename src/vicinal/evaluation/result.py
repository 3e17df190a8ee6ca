"""What an evaluation found: the metrics, and the scores of the single queries that they are means of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.arguments import is_whole
from vicinal.errors import InputError

Integers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # arrays have no one truth to compare by
class Evaluation:
    """The metrics of one evaluation.

    Attributes:
        metrics: `recall@1`, ..., `mAP@R`, `R-precision`, `mAP` and what else was asked for -> mean over the queries
            with a positive, from 0 to 1. At coarse levels `coarse/recall@1`, ..., `coarse_2/mAP`: means over the
            queries with a positive at that level, among them those of a fine class of one image.
        protocol: `leave-one-out`, `query/gallery`, or `revisited, easy` and the like.
        queries: how many queries there are.
        gallery: how many gallery images there are.
        without_positive: queries without any image to be found, at the level of the labels; they count in none of its
            metrics.
        per_query: name -> float64 [queries], NaN where there is no positive.
        query_rows: int64 [queries], the row of each query in what was evaluated.
        ties: how many positives (at the level of the labels) have exactly the score of an image that is none for the
            query. Equal scores rank in the order of the gallery, so that results can be reproduced; but where there are
            many, they are an accident of that order. Printed if there is more than one for a hundred queries.
        first_ranks: int64 [queries], the rank of each query's first positive, at the level of the labels, counted
            from 1; 0 where there is none.

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
    queries: int
    gallery: int
    without_positive: int
    per_query: dict[str, Scores] = field(repr=False)
    query_rows: Integers = field(repr=False)
    ties: int = 0
    first_ranks: Integers = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)

    @classmethod
    def of_queries(
        cls,
        per_query: Mapping[str, Scores],
        protocol: str,
        query_rows: Integers,
        gallery: int,
        *,
        ties: int,
        first_ranks: Integers,
    ) -> Evaluation:
        """Average the scores of single queries.

        Args:
            per_query: name -> float64 [queries], NaN where there is no positive, at least one number in each.
            protocol: who searched whom.
            query_rows: int64 [queries], the row of each query in what was evaluated.
            gallery: how many gallery images there are.
            ties: how many positives are tied with other images.
            first_ranks: int64 [queries], from 1 on; 0 where there is no positive.

        Example:
            >>> scores = {"mAP": np.array([1.0, 0.5, np.nan])}
            >>> ranks = np.array([1, 2, 0])
            >>> found = Evaluation.of_queries(scores, "leave-one-out", np.arange(3), 3, ties=0, first_ranks=ranks)
            >>> found.metrics, found.without_positive
            ({'mAP': 0.75}, 1)
        """
        metrics = {name: float(np.nanmean(values)) for name, values in per_query.items()}
        without = int((first_ranks == 0).sum())
        return cls(metrics, protocol, len(query_rows), gallery, without, dict(per_query), query_rows, ties, first_ranks)

    def cmc(self, most: int) -> Scores:
        """The cumulative matching characteristic: for k = 1 to `most`, the share of queries with a positive in first k.

        Its value at k is recall@k. Queries without a positive do not count.

        Args:
            most: the last k.

        Returns:
            float64 [most].

        Raises:
            InputError: `most` is not from 1 to the number of gallery images, or the first ranks are not there.

        Example:
            >>> from vicinal.evaluation import evaluate_arrays
            >>> labels = np.array([0, 0, 1, 1])
            >>> evaluate_arrays(np.eye(4), labels, np.eye(4)[[2, 0, 1, 3]], labels[[0, 0, 2, 2]]).cmc(3)
            array([0.5 , 0.75, 1.  ])
        """
        if not (is_whole(most) and 1 <= most <= self.gallery):
            raise InputError(f"CMC up to {most} is impossible with {self.gallery} gallery images; use 1 to that")
        ranks = self.first_ranks[self.first_ranks > 0]
        if not len(ranks):
            raise InputError(
                "CMC takes the rank of each query's first positive, and this evaluation has no first_ranks"
            )
        within = np.bincount(ranks[ranks <= most], minlength=most + 1)[1:]
        return np.cumsum(within) / len(ranks)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single queries, ready for JSON."""
        return {
            "protocol": self.protocol,
            "queries": self.queries,
            "gallery": self.gallery,
            "without_positive": self.without_positive,
            "ties": self.ties,
            "metrics": dict(self.metrics),
        }

    def __str__(self) -> str:
        width = max(len(name) for name in self.metrics)
        lines = [headline(self.protocol, self.queries, self.gallery, self.without_positive, self.ties)]
        lines += [f"{name:<{width}}   {100 * value:6.2f} %" for name, value in self.metrics.items()]
        return "\n".join(lines)


def common_metrics(evaluations: Iterable[Evaluation]) -> list[str]:
    """The metrics that all evaluations have, in the first one's order."""
    first, *others = evaluations
    return [name for name in first.metrics if all(name in other.metrics for other in others)]


def headline(protocol: str, queries: int, gallery: int, without_positive: int, ties: int) -> str:
    """The first line of a printed evaluation: its protocol and sizes, and what to be wary of.

    Example:
        >>> headline("leave-one-out", 1000, 1000, without_positive=3, ties=0)
        'leave-one-out: 1,000 queries, 1,000 gallery images (3 queries without a positive left out)'
    """
    line = f"{protocol}: {queries:,} queries, {gallery:,} gallery images"
    if without_positive:
        line += f" ({without_positive:,} queries without a positive left out)"
    if many_ties(ties, queries):
        line += f" ({ties:,} positives tied with other images)"
    return line


def many_ties(ties: int, queries: int) -> bool:
    """Whether more positives are tied than chance brings about, with the digits of float32.

    Example:
        >>> many_ties(10, queries=1000), many_ties(11, queries=1000)
        (False, True)
    """
    return 100 * ties > queries
