"""A training run on a page: its recipe and its learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from vicinal.data.table import Table
from vicinal.report.page.charts import Line, line_chart, points_table
from vicinal.report.page.markup import Markup, Section, element, figure, section, without_home
from vicinal.utils.errors import InputError
from vicinal.utils.plain_yaml import load_yaml
from vicinal.utils.run_folder import LOWEST_GAIN, MAX_LOSS, TRAIN_RECALL, UPDATE_FACTOR, RunFolder, empty_log, read_log


@dataclass(frozen=True, eq=False)
class Run:
    """The existing contents of a run's folder."""

    recipe: str | None = None  # in which the home folder is written ~
    log: pd.DataFrame = field(default_factory=empty_log)
    metrics: pd.DataFrame = field(default_factory=empty_log)
    table: Table | None = None


def read_run(path: str | Path) -> Run:
    """Read a run's folder; files may be missing."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise InputError(f"{folder.path}: no such run; give the folder of a run")
    return Run(
        _read_recipe(folder.recipe) if folder.recipe.is_file() else None,
        read_log(folder.log),
        read_log(folder.metrics),
        Table.from_parquet(folder.table, path_column=None, label_column=None) if folder.table.is_file() else None,
    )


def settings(recipe: str | None) -> dict[str, str]:
    """The settings of a recipe by their names with dots, such as `loss.margin`."""
    try:
        values = yaml.safe_load(recipe or "")
    except yaml.YAMLError:
        return {}
    return _flatten(values) if isinstance(values, Mapping) else {}


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= _flatten(value, f"{name}.") if isinstance(value, Mapping) and value else {name: _format_value(value)}
    return flat


def _format_value(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _read_recipe(path: Path) -> str:
    try:
        return without_home(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the recipe as UTF-8 text") from None


def recipe_section(run: Run) -> Section | None:
    """The recipe as it was written; None if there is none."""
    if run.recipe is None:
        return None
    text = element("pre", element("code", run.recipe), tabindex="0", role="group", aria_label="The recipe, as YAML")
    return section("recipe", "Recipe", "Every setting that the run was trained with.", text)


def curves_section(runs: Mapping[str, Run]) -> Section | None:
    """Loss, metrics of both splits and learning rates over the steps; None if there are no logs."""
    charts = [_loss_chart(runs), _recall_chart(runs)]
    if len(runs) == 1:
        run = next(iter(runs.values()))
        metrics = [_metric_line(run, metric, metric) for metric in _validation_metrics(run)[1:]]
        rates = [_line(name, run.log["step"], run.log[name]) for name in run.log.columns if name.startswith("lr")]
        charts.append(_chart(metrics, "%", "Further metrics on the validation split."))
        charts.append(_chart(rates, "learning rate", "Learning rates, one for each group of parameters."))
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    kept = [
        f"{name}: epoch {each['epoch']:g}" for name, run in runs.items() if (each := _kept_evaluation(run)) is not None
    ]
    lead = "Losses, scores and learning rates over the steps of the optimizer."
    if kept:
        epochs = "; ".join(kept) if len(runs) > 1 else kept[0].partition(": ")[2]
        lead += f" A ring marks the evaluation whose weights were kept ({epochs})."
    if len(runs) == 1:
        lead += _zero_shot_text(run)
    return section("curves", "Learning curves", lead, element("div", *drawn, class_="charts"))


def _zero_shot_text(run: Run) -> str:
    """The meaning of the first two evaluations, where training began with pretrained weights."""
    metrics = _validation_metrics(run)
    if not metrics or len(run.metrics) < 2 or run.metrics["step"].iloc[:2].any():
        return ""
    metric = "mAP@R" if "mAP@R" in metrics else metrics[0]
    network, start = 100 * run.metrics[metric].iloc[:2]
    return f" The first two scores are {metric} {network:.1f} % zero-shot, and {start:.1f} % before training."


def _loss_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines: list[Line] = []
    for name, run in runs.items():
        if "loss" in run.log:
            loss, step = run.log["loss"], run.log["step"]
            smooth = loss.rolling(max(len(loss) // 20, 1), center=True, min_periods=1).mean()
            lines += [_line(name, step, loss, faint=True), _line(name, step, smooth, kept=_kept_step(run))]
    return _chart(lines, "loss", "Training loss: the running mean, and each step behind it.")


def _recall_chart(runs: Mapping[str, Run]) -> Markup | None:
    """The first metric on the validation split, recall@1 as a rule, and recall@1 on training images as thin lines."""
    lines: list[Line] = []
    for number, (name, run) in enumerate(runs.items()):
        for metric in [*_validation_metrics(run)[:1], *([TRAIN_RECALL] if TRAIN_RECALL in run.metrics else [])]:
            line = _metric_line(run, metric, metric if len(runs) == 1 else f"{name}: {metric}")
            lines.append(line._replace(color=number if len(runs) > 1 else None, thin=metric == TRAIN_RECALL))
    thin = [line.thin for line in lines]
    text = "Validation, and thin: training images. Where the one falls and the other rises, the model overfits."
    if not any(thin):
        text = "The first metric on the validation split."
    elif all(thin):
        text = "recall@1 on training images; there is no validation split."
    return _chart(lines, "%", text)


def _validation_metrics(run: Run) -> list[str]:
    excluded = ("step", "epoch", TRAIN_RECALL, LOWEST_GAIN, UPDATE_FACTOR)
    return [column for column in run.metrics.columns if column not in excluded]


def _metric_line(run: Run, metric: str, name: str) -> Line:
    return _line(name, run.metrics["step"], 100 * run.metrics[metric], kept=_kept_step(run))


def _kept_step(run: Run) -> float | None:
    kept = _kept_evaluation(run)
    return None if kept is None else float(kept["step"])


def _kept_evaluation(run: Run) -> pd.Series | None:
    """The line of the metrics with the weights of the model, the first of the best ones; None if it is unknown."""
    try:
        recipe = load_yaml(run.recipe or "") or {}
        metric, guardrails = recipe["validation"]["metric"], recipe.get("guardrail_metrics", [])
        passed = run.metrics[LOWEST_GAIN] >= -MAX_LOSS if guardrails else run.metrics["step"] >= 0
        passed.iloc[0] = True
        return run.metrics[passed].loc[lambda frame: frame[metric].idxmax()]
    except (yaml.YAMLError, LookupError, TypeError, ValueError):  # the folder of another program, or half a run
        return None


def _line(name: str, steps: pd.Series, values: pd.Series, faint: bool = False, kept: float | None = None) -> Line:
    return Line(name, steps.to_numpy(), values.to_numpy(), faint, kept)


def _chart(lines: Sequence[Line], y_name: str, text: str) -> Markup | None:
    chart = line_chart(lines, "step", y_name, f"{text} {_ends(lines)}") if lines else None
    return None if chart is None else figure(chart, text, points_table(text, lines, "step", y_name))


def _ends(lines: Sequence[Line]) -> str:
    ends = [(line.name, line.y[np.isfinite(line.y)]) for line in lines if not line.faint]
    return " ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}." for name, values in ends if len(values))
