"""How runs were trained: the recipe, and the learning curves on common axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import yaml

from vicinal.report.page.charts import Line, line_chart, points_table
from vicinal.report.page.markup import Markup, Section, element, figure, section
from vicinal.report.page.run import Run
from vicinal.utils.plain_yaml import load_yaml


def recipe_section(run: Run) -> Section | None:
    """The recipe as it was written; None if there is none."""
    if run.recipe is None:
        return None
    text = element("pre", element("code", run.recipe), tabindex="0", role="group", aria_label="The recipe, as YAML")
    return section("recipe", "Recipe", "Every setting that the run was trained with.", text)


def curves_section(runs: Mapping[str, Run]) -> Section | None:
    """Loss, learning rates and validation metrics over the steps; None if there are no logs."""
    charts = [_loss_chart(runs), _metrics_chart(runs)]
    if len(runs) == 1:
        charts.append(_rates_chart(next(iter(runs.values()))))
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    lead = "How training went, over the steps of the optimizer."
    return section("curves", "Learning curves", lead, element("div", *drawn, class_="charts"))


def _loss_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines: list[Line] = []
    for name, run in runs.items():
        if "loss" in run.log:
            loss = run.log["loss"]
            smooth = loss.rolling(max(len(loss) // 20, 1), center=True, min_periods=1).mean()
            lines += [_line(name, run.log["step"], loss, faint=True), _line(name, run.log["step"], smooth)]
    return _chart(lines, "loss", "Training loss: the running mean, and each step behind it.")


def _metrics_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines = []
    has_training = any("train recall@1" in run.metrics for run in runs.values())
    text = "Metrics on the validation split" + (", and recall@1 on training images." if has_training else ".")
    for name, run in runs.items():
        metrics = [column for column in run.metrics.columns if column not in ("step", "epoch")]
        for metric in metrics if len(runs) == 1 else metrics[:1]:
            label = metric if len(runs) == 1 else f"{name}: {metric}"
            lines.append(_line(label, run.metrics["step"], 100 * run.metrics[metric]))
    kept = _kept_evaluation(next(iter(runs.values()))) if len(runs) == 1 else None
    if kept is None:
        return _chart(lines, "%", text)
    values = np.concatenate([line.y for line in lines])
    ends = np.array([np.nanmin(values), np.nanmax(values)])
    lines.append(Line(f"kept: epoch {kept['epoch']:g}", np.full(2, float(kept["step"])), ends))
    return _chart(lines, "%", f"{text} The weights after epoch {kept['epoch']:g} were kept.")


def _kept_evaluation(run: Run) -> pd.Series | None:
    """The line of the metrics whose weights are the model's: the first that is the best; None if it is unknown."""
    try:
        recipe = load_yaml(run.recipe or "") or {}
        metric, guardrails = recipe["validation"]["metric"], recipe.get("guardrail_metrics", [])
        first = run.metrics.iloc[0]
        passed = [(line.name == first.name or all(line[name] >= first[name] for name in guardrails))
                  for _, line in run.metrics.iterrows()]  # fmt: skip
        return run.metrics[passed].loc[lambda frame: frame[metric].idxmax()]
    except (yaml.YAMLError, LookupError, TypeError, ValueError):  # the folder of another program, or half a run
        return None


def _rates_chart(run: Run) -> Markup | None:
    rates = [column for column in run.log.columns if column.startswith("lr")]
    lines = [_line(name, run.log["step"], run.log[name]) for name in rates]
    return _chart(lines, "learning rate", "Learning rates, one for each group of parameters.")


def _line(name: str, steps: pd.Series, values: pd.Series, faint: bool = False) -> Line:
    return Line(name, steps.to_numpy(), values.to_numpy(), faint)


def _chart(lines: Sequence[Line], y_name: str, text: str) -> Markup | None:
    chart = line_chart(lines, "step", y_name, f"{text} {_ends(lines)}") if lines else None
    return None if chart is None else figure(chart, text, points_table(text, lines, "step", y_name))


def _ends(lines: Sequence[Line]) -> str:
    """Where each line begins and ends, in words."""
    ends = [(line.name, line.y[np.isfinite(line.y)]) for line in lines if not line.faint]
    return " ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}." for name, values in ends if len(values))
