"""The metrics of all cells of a grid: a table for the terminal and for programs, and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.report.study_trial import shown_value
from vicinal.utils.console import log
from vicinal.utils.wording import counted


@dataclass(frozen=True)
class SweepCell:
    """A combination of settings.

    Args:
        values: the settings, by their keys.
        metrics: the metrics on the test split by name, of each seed that has been evaluated.
        failures: why runs with other seeds failed.
    """

    values: dict[str, Any]
    metrics: tuple[dict[str, float], ...] = ()
    failures: tuple[str, ...] = ()

    def mean(self, metric: str) -> float:
        """The mean over the seeds; NaN without any."""
        return float(np.mean([each[metric] for each in self.metrics])) if self.metrics else math.nan

    def std(self, metric: str) -> float:
        """The sample standard deviation over the seeds; NaN with fewer than two."""
        return float(np.std([each[metric] for each in self.metrics], ddof=1)) if len(self.metrics) > 1 else math.nan


@dataclass(frozen=True)
class SweepResult:
    """The result of a grid.

    Attributes:
        keys: the settings that vary.
        cells: every combination of their values.
        metric: the metric of the picture.

    Example:
        >>> cells = [SweepCell({"dim": dim}, ({"recall@1": score}, {"recall@1": score + 0.02}))
        ...          for dim, score in ((64, 0.5), (128, 0.6))]
        >>> print(SweepResult(("dim",), tuple(cells), "recall@1"))
        mean ± standard deviation over 2 seeds, in %
        dim   recall@1
        64    51.00 ± 1.41
        128   61.00 ± 1.41
    """

    keys: tuple[str, ...]
    cells: tuple[SweepCell, ...]
    metric: str

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics."""
        return list(dict.fromkeys(name for cell in self.cells for each in cell.metrics for name in each))

    @property
    def failures(self) -> list[str]:
        """Why runs failed."""
        return [failure for cell in self.cells for failure in cell.failures]

    def to_frame(self) -> pd.DataFrame:
        """One row per cell: its settings, the number of seeds, and mean and standard deviation of every metric."""
        rows = []
        for cell in self.cells:
            row: dict[str, Any] = {key: _plain(value) for key, value in cell.values.items()}
            row["num_seeds"] = len(cell.metrics)
            for name in self.metrics:
                row |= {name: cell.mean(name), f"{name} std": cell.std(name)}
            rows.append(row)
        return pd.DataFrame(rows)

    def to_csv(self) -> str:
        """:meth:`to_frame` as comma-separated values; missing values are empty."""
        return self.to_frame().to_csv(index=False, lineterminator="\n")

    def to_dict(self) -> dict[str, Any]:
        """The settings and metrics of every cell, with each seed, ready for JSON."""
        return {"keys": list(self.keys), "metric": self.metric, "cells": [self._summary(cell) for cell in self.cells]}

    def _summary(self, cell: SweepCell) -> dict[str, Any]:
        """The settings and metrics of a cell, ready for JSON."""
        means = {name: _or_none(cell.mean(name)) for name in self.metrics}
        deviations = {name: _or_none(cell.std(name)) for name in self.metrics}
        return {**asdict(cell), "mean": means, "std": deviations}

    def __str__(self) -> str:
        most = max((len(cell.metrics) for cell in self.cells), default=0)
        rows = [[*self.keys, *self.metrics]]
        for cell in self.cells:
            settings = [shown_value(cell.values[key]) for key in self.keys]
            rows.append([*settings, *(_percent(cell, name) for name in self.metrics), *_remark(cell, most)])
        head = f"mean ± standard deviation over {most} seeds, in %" if most > 1 else "in %"
        return "\n".join([head, *_aligned(rows)])

    def draw(self, path: Path) -> bool:
        """Draw the metric over one or two settings; returns whether there is a picture, which others cannot have."""
        if not self.metrics or len(self.keys) > 2:
            return False
        from vicinal.report.grid import draw_grid

        shown = self.metric if self.metric in self.metrics else self.metrics[0]
        if shown != self.metric:
            log(f"{self.metric} is not among the metrics of the test split; the picture shows {shown}")
        draw_grid(self.to_frame(), self.keys, shown, path)
        return True


def _plain(value: Any) -> Any:
    """A value that a column can hold with others."""
    return shown_value(value) if isinstance(value, list | dict) or value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(cell: SweepCell, name: str) -> str:
    mean, std = cell.mean(name), cell.std(name)
    if math.isnan(mean):
        return "–"
    return f"{100 * mean:.2f}" if math.isnan(std) else f"{100 * mean:.2f} ± {100 * std:.2f}"


def _remark(cell: SweepCell, most: int) -> list[str]:
    """What is missing in a cell."""
    number = len(cell.metrics)
    remarks = [counted(number, "seed")] if 0 < number < most else []
    return [*remarks, *(f"failed: {failure}" for failure in cell.failures[:1])]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(max(map(len, rows)))]
    return ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
