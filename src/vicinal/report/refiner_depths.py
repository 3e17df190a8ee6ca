"""How much each block of a context refiner improves retrieval, drawn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
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

    The numbers are those of :func:`~vicinal.analysis.refiner.metrics_by_depth`. :func:`depth_curves` draws several
    tables or refiners in one picture.

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
        >>> import numpy as np, pandas as pd
        >>> table, refiner = Table(pd.DataFrame({"label": [0, 0, 1, 1]})), ContextRefiner(4, depth=2, num_heads=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     depth_curve(refiner, np.eye(4), table, f"{folder}/depths.png")
    """
    picture_format(Path(path))  # fails before the evaluation
    depth_curves({"": metrics_by_depth(refiner, embeddings, table)}, path)


def depth_curves(curves: Mapping[str, Sequence[Mapping[str, float]]], path: str | Path) -> None:
    """Draw several curves of the gain in recall@1 and mAP@R after each block.

    The legend names the first and the last value of each curve, and the best depth if it is not the last one.

    Reference: Context Refiner, Fig. 3.

    Args:
        curves: name -> the metrics at each depth from 0 on, as :func:`~vicinal.analysis.refiner.metrics_by_depth`
            returns them; a name may be "".
        path: the picture; its suffix is the format.

    Raises:
        InputError: no curves, a curve without values or without one of the two metrics, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> curve = [{"recall@1": 0.60, "mAP@R": 0.40}, {"recall@1": 0.65, "mAP@R": 0.42}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     depth_curves({"birds": curve}, f"{folder}/depths.png")
    """
    _check_curves(curves)
    figure = Figure(figsize=(8.4, 3.4 + 0.17 * len(curves)), dpi=DPI, layout="constrained")
    for panel, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        _gain_panel(panel, metric, {name: [100 * each[metric] for each in curve] for name, curve in curves.items()})
    write_figure(figure, Path(path))


def _check_curves(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    if not curves or not all(len(curve) for curve in curves.values()):
        raise InputError("nothing to draw; give at least one curve, each with the metrics of at least one depth")
    for name, curve in curves.items():
        for depth, metrics in enumerate(curve):
            for metric in METRICS:
                if metric not in metrics:
                    raise InputError(f"curve {name!r} has no {metric} at depth {depth}; every depth needs it")


def _gain_panel(axes: Axes, metric: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Percentages at each depth, drawn as the gain over depth 0."""
    tidy(axes, "points gained over the base")
    axes.axhline(0, color=PALE, linewidth=0.9, linestyle="--")
    for (name, curve), color in zip(curves.items(), itertools.cycle(COLORS), strict=False):
        gains = np.array(curve) - curve[0]
        axes.plot(gains, "-o", color=color, linewidth=1.6, markersize=4, label=_from_to(name, curve))
    axes.set_title(metric, fontsize=10, color=INK)
    axes.set_xlabel("blocks", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), **QUIET)


def _from_to(name: str, curve: Sequence[float]) -> str:
    best = int(np.argmax(curve))
    text = f"{curve[0]:.2f} % → {curve[-1]:.2f} % ({curve[-1] - curve[0]:+.2f})"
    if curve[best] > curve[-1]:
        text += f", best {curve[best]:.2f} % at {best}"
    return f"{name.replace('$', chr(92) + '$')}: {text}" if name else text
