"""Training a recipe with every combination of some settings, and evaluating each model on the test split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vicinal.report.page.study import shown_value
from vicinal.training.processes import StopRequest
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.workflows.settings import SweepSettings
from vicinal.workflows.tuning import trials
from vicinal.workflows.tuning.runs import Runner, Start, evaluation_words, start_process
from vicinal.workflows.tuning.study_folder import ALL, StudyFolder, check_table, load_study_table, open_study
from vicinal.workflows.tuning.study_recipe import StudyRecipe

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FrozenTrial

    from vicinal.data.table import Table

SECTION = "grid"
FIXED = ("recall_at", "metrics", "hierarchy", "clusters")  # every cell has these metrics


def sweep(
    recipe: str | Path | None,
    out: str | Path,
    settings: SweepSettings | None = None,
    overrides: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    start: Start = start_process,
) -> SweepResult:
    """Train a recipe with every combination of some settings, with several seeds, and evaluate on the test split.

    Each run is in a process of its own. All have the same classes in each split, whatever their seed.

    Args:
        recipe: the recipe file with its `grid`; None, without `overrides` either, continues the study in `out`.
        out: the folder of the study. An existing study is continued; several processes may do so at a time.
        settings: the number of seeds, the metrics and other options.
        overrides: settings of the recipe as on the command line, such as `--epochs=3` or
            `--grid.optimizer.lr=[0.1, 0.2]`.
        allow_imports: packages whose classes the recipe may name, as for :meth:`vicinal.Recipe.load`.
        start: starts the command of each run.

    Returns:
        The metrics of every cell, their means and standard deviations over the seeds. Runs that failed are tried again
        by the next call.

    Raises:
        InputError: the recipe, a cell of the grid or the data is invalid, or `out` holds another study.
        InterruptedRunError: the study was interrupted; calling this again continues it.
    """
    settings, folder = settings or SweepSettings(), StudyFolder(Path(out))
    options = {**asdict(settings), "recall_at": _listed(settings.recall_at), "metrics": _listed(settings.metrics)}
    study = open_study(folder, SECTION, recipe, overrides, allow_imports, options, FIXED, _make_tables)
    with StopRequest() as stop:
        runner = Runner(folder, study.base, settings.jobs, start, lambda: stop.requested, study.allow_imports)
        return Grid(study, settings, runner).run()


class Grid:
    """A grid in progress."""

    def __init__(self, study: StudyRecipe, settings: SweepSettings, runner: Runner) -> None:
        self.study, self.settings, self.runner = study, settings, runner
        self.cells = study.cells()
        self.trials = trials.open_trials(runner.folder, SECTION)
        self.failures: dict[tuple[int, int], str] = {}  # of this command; the next one tries them again

    def run(self) -> SweepResult:
        runs = [(cell, seed) for seed in range(self.settings.seeds) for cell in range(len(self.cells))]
        trials.enqueue(self.trials, [{"cell": cell, "seed": seed} for cell, seed in runs])
        try:
            trials.run_trials(self.trials, self._score, None, self.settings.jobs, self.runner.is_stopping, self._end)
        finally:
            result = self.result()
            result.draw(self.runner.folder.picture)
        return result

    def result(self) -> SweepResult:
        """The metrics of all cells so far."""
        found = {_run(trial): trial.user_attrs[trials.METRICS] for trial in trials.in_states(self.trials, "COMPLETE")}
        cells = []
        for number, values in enumerate(self.cells):
            runs = [(number, seed) for seed in range(self.settings.seeds)]
            metrics = {self.study.base.settings.seed + run[1]: found[run] for run in runs if run in found}
            cells.append(SweepCell(values, metrics, tuple(self.failures[run] for run in runs if run in self.failures)))
        metric = self.settings.metric or self.study.base.settings.validation.metric
        return SweepResult(tuple(self.study.space), tuple(cells), metric)

    def _score(self, trial: Trial) -> float:
        number, seed = (trial.suggest_int(key, 0, 2**31) for key in ("cell", "seed"))
        recipe = self.study.recipe(self.cells[number], seed=self.study.base.settings.seed + seed)
        name = _run_name(number, seed)
        self.runner.train(name, recipe, ALL)
        metrics = self.runner.evaluate(name, evaluation_words(self.study.base, self.settings))
        trial.set_user_attr(trials.METRICS, metrics)
        return next(iter(metrics.values()))

    def _end(self, trial: FrozenTrial) -> None:
        run = _run(trial)
        if trial.state.name == "FAIL":
            self.failures[run] = trial.user_attrs[trials.REASON]
            log(f"{_run_name(*run)} failed: {self.failures[run]}")
        else:
            self.runner.delete_checkpoints(_run_name(*run))


@dataclass(frozen=True)
class SweepCell:
    """A combination of settings.

    Args:
        values: the settings, by their keys.
        metrics: seed -> the metrics on the test split by name; of the seeds that have been evaluated.
        failures: why runs with other seeds failed.
    """

    values: dict[str, Any]
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    def difference(self, other: SweepCell, metric: str) -> tuple[float, float, float] | None:
        """The mean difference to another cell over the seeds that both have, and its 95 % interval (paired t).

        The interval shows how much of the difference may be due to the seeds. Classes are not resampled. None with
        fewer than two such seeds.
        """
        seeds = self.metrics.keys() & other.metrics.keys()
        if len(seeds) < 2:
            return None
        from scipy.stats import t as student_t

        found = np.array([self.metrics[seed][metric] - other.metrics[seed][metric] for seed in seeds])
        half = student_t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found))
        return float(found.mean()), float(found.mean() - half), float(found.mean() + half)

    def mean(self, metric: str) -> float:
        """The mean over the seeds; NaN without any."""
        return float(np.mean([each[metric] for each in self.metrics.values()])) if self.metrics else math.nan

    def std(self, metric: str) -> float:
        """The sample standard deviation over the seeds; NaN with fewer than two."""
        values = [each[metric] for each in self.metrics.values()]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class SweepResult:
    """The result of a grid.

    Attributes:
        keys: the settings that vary.
        cells: every combination of their values.
        metric: the metric of the picture.

    Example:
        >>> cells = [SweepCell({"dim": dim}, {0: {"recall@1": score}, 1: {"recall@1": score + 0.02}})
        ...          for dim, score in ((64, 0.5), (128, 0.6))]
        >>> print(SweepResult(("dim",), tuple(cells), "recall@1"))
        mean ± standard deviation over 2 seeds, in %
        dim   recall@1       recall@1 - first [95 %]
        64    51.00 ± 1.41
        128   61.00 ± 1.41   +10.00 [+10.00, +10.00]
    """

    keys: tuple[str, ...]
    cells: tuple[SweepCell, ...]
    metric: str

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics."""
        return list(dict.fromkeys(name for cell in self.cells for each in cell.metrics.values() for name in each))

    @property
    def failures(self) -> list[str]:
        """Why runs failed."""
        return [failure for cell in self.cells for failure in cell.failures]

    def to_frame(self) -> pd.DataFrame:
        """One row per cell: its settings, the number of seeds, and mean and standard deviation of every metric.

        Columns `METRIC difference low` and `METRIC difference high`, from the second row on, are the interval of the
        difference to the first cell.
        """
        rows = []
        for cell in self.cells:
            row: dict[str, Any] = {key: _plain(value) for key, value in cell.values.items()}
            row["num_seeds"] = len(cell.metrics)
            for name in self.metrics:
                low, high = (cell.difference(self.cells[0], name) or (math.nan,) * 3)[1:]
                row |= {name: cell.mean(name), f"{name} std": cell.std(name)}
                if cell is not self.cells[0]:
                    row |= {f"{name} difference low": low, f"{name} difference high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def to_csv(self) -> str:
        """:meth:`to_frame` as comma-separated values; missing values are empty."""
        return self.to_frame().to_csv(index=False, lineterminator="\n")

    def to_dict(self) -> dict[str, Any]:
        """The settings and metrics of every cell, with each seed, ready for JSON."""
        return {"keys": list(self.keys), "metric": self.metric, "cells": [self._summary(cell) for cell in self.cells]}

    def _summary(self, cell: SweepCell) -> dict[str, Any]:
        means = {name: _or_none(cell.mean(name)) for name in self.metrics}
        deviations = {name: _or_none(cell.std(name)) for name in self.metrics}
        return {**asdict(cell), "mean": means, "std": deviations}

    def __str__(self) -> str:
        most = max((len(cell.metrics) for cell in self.cells), default=0)
        first, shown = self.cells[:1], self.metric if self.metric in self.metrics else ""
        differences = [
            _difference(cell, first[0], shown) if shown and cell is not first[0] else "" for cell in self.cells
        ]
        rows = [[*self.keys, *self.metrics, *[f"{shown} - first [95 %]"] * any(differences)]]
        for cell, difference in zip(self.cells, differences, strict=True):
            settings = [shown_value(cell.values[key]) for key in self.keys]
            values = [*(_percent(cell, name) for name in self.metrics), *[difference] * any(differences)]
            rows.append([*settings, *values, *_remark(cell, most)])
        head = f"mean ± standard deviation over {most} seeds, in %" if most > 1 else "in %"
        return "\n".join([head, *_aligned(rows)])

    def draw(self, path: Path) -> bool:
        """Draw the metric over one or two settings; returns False if there are more settings or no metrics."""
        if not self.metrics or len(self.keys) > 2:
            return False
        from vicinal.report.contact_sheets import draw_grid

        shown = self.metric if self.metric in self.metrics else self.metrics[0]
        if shown != self.metric:
            log(f"{self.metric} is not among the metrics of the test split; the picture shows {shown}")
        draw_grid(self.to_frame(), self.keys, shown, path)
        return True


def _make_tables(study: StudyRecipe) -> dict[str, Table]:
    table = load_study_table(study.base)
    if "test" not in table.splits:
        raise InputError("the data has no split test, on which each cell is evaluated")
    for values in study.cells():
        with prefixed_errors("the cell " + ", ".join(f"{key} = {value}" for key, value in values.items())):
            check_table(study.recipe(values), table)
    return {ALL: table}


def _run_name(number: int, seed: int) -> str:
    return f"cells/{number:03d}_{seed}"


def _run(trial: FrozenTrial) -> tuple[int, int]:
    return trials.given(trial)["cell"], trials.given(trial)["seed"]


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _plain(value: Any) -> Any:
    return shown_value(value) if isinstance(value, list | dict) or value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(cell: SweepCell, name: str) -> str:
    mean, std = cell.mean(name), cell.std(name)
    if math.isnan(mean):
        return "–"
    return f"{100 * mean:.2f}" if math.isnan(std) else f"{100 * mean:.2f} ± {100 * std:.2f}"


def _difference(cell: SweepCell, first: SweepCell, name: str) -> str:
    found = cell.difference(first, name)
    return "" if found is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * each for each in found))


def _remark(cell: SweepCell, most: int) -> list[str]:
    """The missing seeds of a cell."""
    number = len(cell.metrics)
    remarks = [counted(number, "seed")] if 0 < number < most else []
    return [*remarks, *(f"failed: {failure}" for failure in cell.failures[:1])]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(max(map(len, rows)))]
    return ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
