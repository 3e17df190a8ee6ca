"""How a run was trained: its recipe, and its curves over the steps; of several runs, on common axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vicinal.report.page.charts import Line, line_chart, points_table
from vicinal.report.page.markup import Markup, Section, element, figure, section
from vicinal.report.page.run import Run, numbers


def recipe_section(run: Run) -> Section | None:
    """The recipe as it was written; None without one."""
    if run.recipe is None:
        return None
    text = element("pre", element("code", run.recipe), tabindex="0", role="group", aria_label="The recipe, as YAML")
    return section("recipe", "Recipe", "Every setting that the run was trained with.", text)


def curves_section(runs: Mapping[str, Run]) -> Section | None:
    """Loss, learning rates and validation metrics over the steps; None without logs."""
    charts = [_loss_chart(runs), _metrics_chart(runs)]
    if len(runs) == 1:
        charts.append(_rates_chart(next(iter(runs.values()))))
    there = [chart for chart in charts if chart is not None]
    if not there:
        return None
    lead = "How training went, over the steps of the optimiser."
    return section("curves", "Learning curves", lead, element("div", *there, class_="charts"))


def _loss_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines: list[Line] = []
    for name, run in runs.items():
        if run.log is not None and "loss" in run.log:
            step, loss = numbers(run.log, "step"), numbers(run.log, "loss")
            smooth = pd.Series(loss).rolling(max(len(loss) // 20, 1), center=True, min_periods=1).mean().to_numpy()
            lines += [Line(name, step, loss, faint=True), Line(name, step, smooth)]
    return _curve(lines, "loss", "Training loss: the running mean, and each step behind it.")


def _metrics_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines = []
    for name, run in runs.items():
        if run.metrics is not None:
            chosen = [column for column in run.metrics.columns if column not in ("step", "epoch")]
            for column in chosen if len(runs) == 1 else chosen[:1]:
                label = str(column) if len(runs) == 1 else f"{name}: {column}"
                lines.append(Line(label, numbers(run.metrics, "step"), 100 * numbers(run.metrics, str(column))))
    return _curve(lines, "%", "Metrics on the validation split.")


def _rates_chart(run: Run) -> Markup | None:
    if run.log is None:
        return None
    names = [str(column) for column in run.log.columns if str(column).startswith("lr")]
    lines = [Line(name, numbers(run.log, "step"), numbers(run.log, name)) for name in names]
    return _curve(lines, "learning rate", "Learning rates, one for each group of parameters.")


def _curve(lines: Sequence[Line], y_name: str, text: str) -> Markup | None:
    chart = line_chart(lines, "step", y_name, f"{text} {_ends(lines)}") if lines else None
    return None if chart is None else figure(chart, text, points_table(text, lines, "step", y_name))


def _ends(lines: Sequence[Line]) -> str:
    """Where each line begins and ends, in words."""
    ends = [(line.name, line.y[np.isfinite(line.y)]) for line in lines if not line.faint]
    return " ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}." for name, values in ends if len(values))
