"""Several models on one table: their metrics side by side, with intervals and the differences to the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.csv_text import csv_text
from vicinal.evaluation.result import Evaluation, common_metrics, headline, many_ties
from vicinal.evaluation.uncertainty import By, Difference, Interval, interval, paired

COLUMNS = ("metric", "model", "value", "low", "high", "difference", "difference_low", "difference_high", "p")


@dataclass(frozen=True)
class ModelsCompared:
    """The evaluations of several models on the same queries.

    Attributes:
        evaluations: model -> its evaluation; the others are held against the first.
        intervals: model -> metric -> interval; metrics without a score a query have none.
        differences: model -> metric -> difference to the first model; nothing for the first.
        by: what was drawn, classes or queries.
        level: of confidence.
    """

    evaluations: dict[str, Evaluation]
    intervals: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Difference]]
    by: By
    level: float

    @property
    def models(self) -> list[str]:
        """The names, the one that the others are held against first."""
        return list(self.evaluations)

    @property
    def metrics(self) -> list[str]:
        """The metrics that all models have."""
        return common_metrics(self.evaluations.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single queries, ready for JSON."""
        return {
            "by": self.by,
            "level": self.level,
            "models": {
                model: {
                    **evaluation.to_dict(),
                    "intervals": {name: list(ends) for name, ends in self.intervals[model].items()},
                    "differences": {name: _plain(found) for name, found in self.differences[model].items()},
                }
                for model, evaluation in self.evaluations.items()
            },
        }

    def to_csv(self) -> str:
        """One line a metric and model, under a header; cells without a value are empty, values are from 0 to 1."""
        return csv_text(COLUMNS, self._rows())

    def _rows(self) -> Iterator[list[str | float]]:
        for name in self.metrics:
            for model, evaluation in self.evaluations.items():
                ends = self.intervals[model].get(name, ("", ""))
                found = self.differences[model].get(name)
                apart = ["", "", "", ""] if found is None else [found.difference, *found.interval, found.p]
                yield [name, model, evaluation.metrics[name], *ends, *apart]

    def __str__(self) -> str:
        first = next(iter(self.evaluations.values()))
        images = headline(first.protocol, first.queries, first.gallery, first.without_positive, ties=0)
        head = f"{images}; {100 * self.level:g} % intervals by {self.by}, values in %"
        heads = [head, *(f"{model}: {ties:,} positives tied with other images" for model, ties in self._many_ties())]
        columns = [["", *self.metrics]]
        for model in self.models:
            columns.append([model, *(self._value(model, name) for name in self.metrics)])
            if model != self.models[0]:
                columns.append([f"less {self.models[0]}", *(self._apart(model, name) for name in self.metrics)])
        widths = [max(map(len, column)) for column in columns]
        lines = ["   ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True)]
        return "\n".join([*heads, *lines])

    def _many_ties(self) -> Iterator[tuple[str, int]]:
        for model, evaluation in self.evaluations.items():
            if many_ties(evaluation.ties, evaluation.queries):
                yield model, evaluation.ties

    def _value(self, model: str, name: str) -> str:
        value, ends = self.evaluations[model].metrics[name], self.intervals[model].get(name)
        return f"{100 * value:6.2f}" + ("" if ends is None else f" [{100 * ends.low:.2f}, {100 * ends.high:.2f}]")

    def _apart(self, model: str, name: str) -> str:
        found = self.differences[model].get(name)
        if found is None:
            before = next(iter(self.evaluations.values())).metrics[name]
            return f"{100 * (self.evaluations[model].metrics[name] - before):+6.2f}"
        low, high = found.interval
        return f"{100 * found.difference:+6.2f} [{100 * low:+.2f}, {100 * high:+.2f}] p {found.p:.3g}"


def compare_models(
    evaluations: Mapping[str, Evaluation],
    table: Table | None,
    by: By = "classes",
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> ModelsCompared:
    r"""Put the evaluations of several models side by side.

    Each p-value is of one comparison alone: of twenty between equally good models, one is below 0.05 by chance.

    Args:
        evaluations: name of the model -> its evaluation of `table`, at least two; the first is what the others are
            held against.
        table: what was evaluated, with labels; by queries it may be None.
        by: what is drawn for intervals and p-values: `classes` with all their queries, or `queries`.
        level: of confidence, between 0 and 1.
        draws: how many samples.
        seed: of the draws.

    Raises:
        InputError: less than two models, other queries, or as :func:`~vicinal.evaluation.uncertainty.interval`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> found = {name: evaluate(vectors, table, [1]) for name, vectors in (("a", bad), ("b", good))}
        >>> print("\n".join(compare_models(found, table).to_csv().splitlines()[:3]))
        metric,model,value,low,high,difference,difference_low,difference_high,p
        recall@1,a,0.25,0.0,0.5,,,,
        recall@1,b,1.0,1.0,1.0,0.75,0.5,1.0,0.5
    """
    if len(evaluations) < 2:
        raise InputError(f"{len(evaluations)} models to compare; give at least two")
    first, *others = evaluations
    intervals = {model: interval(each, table, by, level, draws, seed) for model, each in evaluations.items()}
    differences: dict[str, dict[str, Difference]] = {first: {}}
    for model in others:
        try:
            differences[model] = paired(evaluations[first], evaluations[model], table, by, level, draws, seed)
        except InputError as error:
            raise InputError(f"{model} against {first}: {error}") from None
    return ModelsCompared(dict(evaluations), intervals, differences, by, level)


def _plain(found: Difference) -> dict[str, Any]:
    return {"difference": found.difference, "interval": list(found.interval), "p": found.p}
