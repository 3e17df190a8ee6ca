"""Several runs of one recipe, such as of several seeds: each metric's mean and how far it scatters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vicinal.evaluation.csv_text import csv_text
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.uncertainty import Summary, over_runs

COLUMNS = ("metric", "mean", "deviation", "low", "high", "runs")


@dataclass(frozen=True)
class RunsAveraged:
    """The metrics of several runs, summarised.

    Attributes:
        evaluations: run -> its evaluation.
        summaries: metric -> mean, deviation and interval of the mean.
        level: of confidence.
    """

    evaluations: dict[str, Evaluation]
    summaries: dict[str, Summary]
    level: float

    def to_dict(self) -> dict[str, Any]:
        """Each run's evaluation and the summaries, ready for JSON."""
        return {
            "level": self.level,
            "runs": {name: each.to_dict() for name, each in self.evaluations.items()},
            "metrics": {
                name: {"mean": each.mean, "deviation": each.deviation, "interval": list(each.interval)}
                for name, each in self.summaries.items()
            },
        }

    def to_csv(self) -> str:
        """A line a metric; values are from 0 to 1."""
        return csv_text(
            COLUMNS,
            ([name, each.mean, each.deviation, *each.interval, each.runs] for name, each in self.summaries.items()),
        )

    def __str__(self) -> str:
        first, width = next(iter(self.evaluations.values())), max(map(len, self.summaries))
        head = f"{first.protocol}, mean of {len(self.evaluations)} runs ± standard deviation; "
        lines = [
            f"{name:<{width}}   {100 * each.mean:6.2f} % ± {100 * each.deviation:5.2f}   "
            f"[{100 * each.interval.low:.2f}, {100 * each.interval.high:.2f}]"
            for name, each in self.summaries.items()
        ]
        return "\n".join([f"{head}{100 * self.level:g} % intervals of the mean in brackets", *lines])


def average_runs(evaluations: Mapping[str, Evaluation], level: float = 0.95) -> RunsAveraged:
    """Summarise runs that differ in their seed alone, or in whatever else is meant to be chance.

    Args:
        evaluations: name of the run -> its evaluation, at least two.
        level: of confidence, between 0 and 1.

    Raises:
        InputError: less than two runs, an impossible level, or metrics of other names.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate_arrays
        >>> rng, labels = np.random.default_rng(0), np.arange(20) % 4
        >>> runs = {f"seed {seed}": rng.normal(size=(20, 3)) + 2 * np.eye(4, 3)[labels] for seed in (0, 1)}
        >>> found = {name: evaluate_arrays(each, labels, each, labels, exclude=np.arange(20), recall_at=[1])
        ...          for name, each in runs.items()}
        >>> average_runs(found).summaries["recall@1"].runs
        2
    """
    return RunsAveraged(dict(evaluations), over_runs([each.metrics for each in evaluations.values()], level), level)
