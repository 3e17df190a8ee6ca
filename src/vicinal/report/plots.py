"""Pictures of the course of training, and of what it reached on training and on test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vicinal.report.drawing import COLORS, DPI, INK, PALE, QUIET, tidy, write_figure
from vicinal.utils.errors import InputError

MARKERS = "osD^vP*X<>hp"  # so that methods differ by more than their colors


def learning_curves(
    log: pd.DataFrame, metrics: pd.DataFrame, path: str | Path, kept_epoch: float | None = None
) -> None:
    """Draw the training loss and the recall on the validation split and on training images over the steps.

    Args:
        log: columns `step` and `loss`.
        metrics: columns `step` and `recall@...` or `train recall@...`, one curve per column; may have no rows.
        path: the picture; its suffix is the format.
        kept_epoch: the epoch whose weights are kept, in the column `epoch` of `metrics`; a line marks it.

    Raises:
        InputError: a column is missing, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> log = pd.DataFrame({"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     learning_curves(log, pd.DataFrame({"step": [3], "recall@1": [0.5]}), f"{folder}/curves.png")
    """
    _require(log, ("step", "loss"), "log")
    recalls = [column for column in metrics.columns if str(column).startswith(("recall@", "train recall@"))]
    if len(metrics):
        _require(metrics, ("step",), "metrics")
    figure = Figure(figsize=(7.5, 5.2 if recalls else 3.0), dpi=DPI, layout="constrained")
    panels = figure.subplots(2 if recalls else 1, 1, sharex=True, squeeze=False)[:, 0]
    _loss_panel(panels[0], log)
    if recalls:
        _recall_panel(panels[1], metrics, recalls)
        if kept_epoch is not None:
            _mark_kept(list(panels), metrics, kept_epoch)
    panels[-1].set_xlabel("step", color=INK)
    write_figure(figure, Path(path))


def training_against_test(scores: pd.DataFrame, path: str | Path, metric: str = "recall@1") -> None:
    """Draw the scores of runs on test images (up) against those on training images (across).

    A run is a point or, if it has several rows, a line over the course of training that ends in a star. Methods that
    are far to the right and no higher than others learn their training images by heart; the dotted diagonal is where
    both scores are the same. Reference: Fig. 2 and 14 of Liao et al., "Supervised Metric Learning to Rank for Retrieval
    via Contextual Similarity Optimization", ICML 2023.

    Args:
        scores: the columns `train` and `test`, from 0 to 1; `method`, if there are several methods; and `run`, if runs
            have several rows, which are in the order of training. Rows without one of the scores are left out.
        path: the picture; its suffix is the format.
        metric: the name of the scores.

    Raises:
        InputError: a column is missing, no row has both scores, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> runs = pd.DataFrame({"method": ["A", "A", "B"], "train": [0.8, 0.9, 1.0], "test": [0.6, 0.7, 0.5]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     training_against_test(runs, f"{folder}/runs.png")
    """
    _require(scores, ("train", "test"), "scores")
    drawn = scores.dropna(subset=["train", "test"])
    if drawn.empty:
        raise InputError("no run has scores on training and on test images; see validation.train_images")
    drawn = drawn.assign(method=drawn.get("method", ""), run=drawn.get("run", drawn.index))
    figure = Figure(figsize=(5.6, 4.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, (method, of_method) in enumerate(drawn.groupby("method", sort=False)):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        for _, run in of_method.groupby("run", sort=False):
            _draw_run(axes, 100 * run["train"], 100 * run["test"], color, marker)
        axes.scatter([], [], color=color, marker=marker, label=str(method))
    _draw_diagonal(axes)
    axes.set_xlabel(f"{metric} on training images (%)", color=INK)
    tidy(axes, f"{metric} on test images (%)")
    if drawn["method"].nunique() > 1:
        axes.legend(**QUIET)
    write_figure(figure, Path(path))


def _draw_run(axes: Axes, train: pd.Series, test: pd.Series, color: str, marker: str) -> None:
    """One point, or a line of small points that ends in a star."""
    is_course = len(train) > 1
    if is_course:
        axes.plot(train, test, color=color, linewidth=1.0, linestyle="--", marker=marker, markersize=3, alpha=0.7)
    end = "*" if is_course else marker
    axes.scatter(train.iloc[-1], test.iloc[-1], color=color, marker=end, s=130 if is_course else 44, zorder=3)


def _draw_diagonal(axes: Axes) -> None:
    """The part of the diagonal within the axes, if there is one."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    low, high = max(left, bottom), min(right, top)
    if low < high:
        axes.plot([low, high], [low, high], color=PALE, linewidth=0.8, linestyle=":", zorder=0)


def _loss_panel(axes: Axes, log: pd.DataFrame) -> None:
    smooth = log["loss"].rolling(max(len(log) // 20, 1), center=True, min_periods=1).mean()
    axes.plot(log["step"], log["loss"], color="#3b6fb6", alpha=0.3, linewidth=0.8)
    axes.plot(log["step"], smooth, color="#3b6fb6", linewidth=1.8)
    tidy(axes, "training loss")


def _recall_panel(axes: Axes, metrics: pd.DataFrame, recalls: Sequence[str]) -> None:
    for number, column in enumerate(recalls):
        green = ("#1a7f4b", "#5aa469", "#8fbf7f", "#b8d59f")[min(number, 3)]
        color, line = ("#3b6fb6", "o:") if column.startswith("train ") else (green, "o-")
        axes.plot(metrics["step"], 100 * metrics[column], line, color=color, markersize=3.5, label=column)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    tidy(axes, "validation recall (%)" if not recalls[-1].startswith("train ") else "recall (%)")


def _mark_kept(panels: Sequence[Axes], metrics: pd.DataFrame, epoch: float) -> None:
    """Draw a line at the evaluation after an epoch, and name it."""
    step = metrics.loc[metrics["epoch"] == epoch, "step"].iloc[0]
    for axes in panels:
        axes.axvline(step, color=INK, linestyle="--", linewidth=0.9, label=f"kept: epoch {epoch:g}")
    panels[-1].legend(frameon=False, fontsize=8, labelcolor=INK)


def _require(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    for column in columns:
        if column not in frame:
            raise InputError(f"{name} has no column {column!r}; its columns are {', '.join(map(str, frame.columns))}")
