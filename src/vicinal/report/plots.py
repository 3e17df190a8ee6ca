"""Pictures of the course of training, and of the depths of a refiner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vicinal.analysis.refiner import metrics_by_depth
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.report.drawing import COLORS, DPI, INK, PALE, QUIET, picture_format, tidy, write_figure
from vicinal.retrieval.scores import Array
from vicinal.utils.errors import InputError

METRICS = ("recall@1", "mAP@R")


def depth_curve(refiner: ContextRefiner, embeddings: Array, table: Table, path: str | Path) -> None:
    """Draw the gain in recall@1 and mAP@R after each block; `vicinal refine` ends with this picture.

    The numbers are those of :func:`~vicinal.analysis.refiner.metrics_by_depth`. The legend names the first and the last
    value, and the best depth if it is not the last one.

    Reference: Context Refiner, Fig. 3.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        path: the picture; its suffix is the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: as :func:`~vicinal.analysis.refiner.metrics_by_depth`, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> table, refiner = Table(pd.DataFrame({"label": [0, 0, 1, 1]})), ContextRefiner(4, depth=2, num_heads=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     depth_curve(refiner, np.eye(4), table, f"{folder}/depths.png")
    """
    picture_format(Path(path))  # fails before the evaluation
    by_depth = metrics_by_depth(refiner, embeddings, table)
    figure = Figure(figsize=(8.4, 3.6), dpi=DPI, layout="constrained")
    for panel, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        _gain_panel(panel, metric, [100 * each[metric] for each in by_depth])
    write_figure(figure, Path(path))


def _gain_panel(axes: Axes, metric: str, curve: Sequence[float]) -> None:
    """Percentages at each depth, drawn as the gain over depth 0."""
    tidy(axes, "points gained over the base")
    axes.axhline(0, color=PALE, linewidth=0.9, linestyle="--")
    axes.plot(np.array(curve) - curve[0], "-o", color=COLORS[0], linewidth=1.6, markersize=4, label=_from_to(curve))
    axes.set_title(metric, fontsize=10, color=INK)
    axes.set_xlabel("blocks", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), **QUIET)


def _from_to(curve: Sequence[float]) -> str:
    best = int(np.argmax(curve))
    text = f"{curve[0]:.2f} % → {curve[-1]:.2f} % ({curve[-1] - curve[0]:+.2f})"
    return f"{text}, best {curve[best]:.2f} % at {best}" if curve[best] > curve[-1] else text


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
    step = metrics.loc[metrics["epoch"] == epoch, "step"].iloc[0]
    for axes in panels:
        axes.axvline(step, color=INK, linestyle="--", linewidth=0.9, label=f"kept: epoch {epoch:g}")
    panels[-1].legend(frameon=False, fontsize=8, labelcolor=INK)


def _require(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    for column in columns:
        if column not in frame:
            raise InputError(f"{name} has no column {column!r}; its columns are {', '.join(map(str, frame.columns))}")
