"""An evaluation with what says how far it can be trusted and where it holds: intervals, and metrics group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from vicinal.evaluation.csv_text import csv_text
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.uncertainty import By, Interval

COLUMNS = ("source", "group", "metric", "value", "low", "high")
SHOWN = 10  # groups in the text


@dataclass(frozen=True)
class Scorecard:
    """What was measured on one source of embeddings.

    Attributes:
        source: its name.
        evaluation: the metrics.
        intervals: metric -> confidence interval; empty where none were asked for.
        groups: a row a group of queries, as :func:`~vicinal.evaluation.metrics_by` gives them; None without.
        by: what was drawn for the intervals, classes or queries.
        level: their confidence.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate_arrays
        >>> found = evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"], recall_at=[1])
        >>> print(Scorecard("identity", found, {"recall@1": Interval(0.75, 1.0)}))
        query/gallery: 2 queries, 2 gallery images
        95 % intervals by classes in brackets
        recall@1      100.00 %   [75.00, 100.00]
        mAP@R         100.00 %
        R-precision   100.00 %
        mAP           100.00 %
    """

    source: str
    evaluation: Evaluation
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    groups: pd.DataFrame | None = None
    by: By = "classes"
    level: float = 0.95

    def to_dict(self) -> dict[str, Any]:
        """The evaluation, and beside it intervals and groups where there are any; ready for JSON."""
        facts: dict[str, Any] = {"source": self.source, **self.evaluation.to_dict()}
        if self.intervals:
            ends = {name: list(each) for name, each in self.intervals.items()}
            facts |= {"by": self.by, "level": self.level, "intervals": ends}
        if self.groups is not None:
            rows = self.groups.astype(object).where(self.groups.notna(), None)  # JSON has no NaN
            facts["groups"] = {str(group): row for group, row in rows.to_dict("index").items()}
        return facts

    def rows(self) -> Iterator[list[object]]:
        """A row a metric and group, under :data:`COLUMNS`; first the whole, whose group is empty."""
        for name, value in self.evaluation.metrics.items():
            yield [self.source, None, name, value, *self.intervals.get(name, (None, None))]
        if self.groups is not None:
            long = self.groups.rename_axis("group").reset_index().melt("group").dropna(subset="value")
            for group, name, value in zip(long["group"], long["variable"], long["value"], strict=True):
                yield [self.source, group, name, value, None, None]

    def to_csv(self) -> str:
        """All :meth:`rows` under a header."""
        return scorecards_csv([self])

    def __str__(self) -> str:
        head, *lines = str(self.evaluation).splitlines()
        if self.intervals:
            head += f"\n{100 * self.level:g} % intervals by {self.by} in brackets"
            lines = [line + self._ends(name) for line, name in zip(lines, self.evaluation.metrics, strict=True)]
        return "\n".join([head, *lines, *self._weakest()])

    def _ends(self, name: str) -> str:
        ends = self.intervals.get(name)
        return "" if ends is None else f"   [{100 * ends.low:.2f}, {100 * ends.high:.2f}]"

    def _weakest(self) -> list[str]:
        """The groups that are found worst, and the mean in which each counts the same."""
        if self.groups is None:
            return []
        metrics = [name for name in self.evaluation.metrics if name in self.groups]
        counted = self.groups.dropna(subset=metrics[0])
        weakest = counted.sort_values([metrics[0], *metrics[1:2]], kind="stable").head(SHOWN)
        means = counted[metrics].mean().to_frame("all, each counting the same").T
        table = pd.concat([weakest[metrics], means]) * 100
        table.insert(0, "queries", [*weakest["queries"].astype(str), ""])
        head = f"by {self.groups.index.name}: the weakest of {len(self.groups):,}, in %"
        return ["", head, *table.to_string(float_format="{:.2f}".format).splitlines()]


def scorecards_csv(cards: Iterable[Scorecard]) -> str:
    """Several scorecards below each other, under one header."""
    return csv_text(COLUMNS, (row for card in cards for row in card.rows()))
