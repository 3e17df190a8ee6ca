"""What each block of a context refiner brings, as numbers and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate
from vicinal.models.refiner import ContextRefiner
from vicinal.report.compared import compared, one_set
from vicinal.report.drawing import COLORS, DPI, INK, PALE, QUIET, picture_format, tidy, write_figure
from vicinal.retrieval.refine import Refinement
from vicinal.retrieval.scores import Array

METRICS = ("recall@1", "mAP@R")  # those that are drawn


def metrics_at_depths(refiner: ContextRefiner, embeddings: Array, table: Table) -> list[dict[str, float]]:
    """The scores of the embeddings after each block, e^0 to e^T, from one search for their neighbours.

    They are those of :func:`~vicinal.evaluation.evaluate` with ``rerank=Refinement(refiner, depth=t)``: the context is
    searched among all that is evaluated, queries and gallery together.

    Reference: Context Refiner, section 4.4 and Fig. 3.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding, with labels, and perhaps queries and gallery.

    Returns:
        depth + 1 times the metrics by name, `recall@1`, `mAP@R` and so on, from 0 to 1; the first are those of the
        embeddings as they were.

    Raises:
        InputError: another dimension or number of rows, no rows, or as :func:`~vicinal.evaluation.evaluate`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> refiner = ContextRefiner(dim=2, depth=2, heads=1)
        >>> [metrics["recall@1"] for metrics in metrics_at_depths(refiner, embeddings, table)]
        [1.0, 1.0, 1.0]
    """
    vectors, evaluated, _ = compared(refiner, embeddings, table)
    metrics = [evaluate(embeddings, table).metrics]
    neighbors = Refinement(refiner).neighbors_of_queries(one_set(vectors))
    for depth in range(1, refiner.depth + 1):
        refined = Refinement(refiner, depth=depth).refined(vectors, vectors, neighbors)
        metrics.append(evaluate(torch.from_numpy(refined).to(vectors.device), evaluated).metrics)
    return metrics


def depth_curve(refiner: ContextRefiner, embeddings: Array, table: Table, path: str | Path) -> None:
    """Draw what recall@1 and mAP@R gain over the base with every block; `vicinal refine` ends with this picture.

    The numbers are those of :func:`metrics_at_depths`; :func:`depth_curves` draws several sets or refiners in one
    picture.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding, with labels.
        path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: as :func:`metrics_at_depths`, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np, pandas as pd
        >>> table, refiner = Table(pd.DataFrame({"label": [0, 0, 1, 1]})), ContextRefiner(4, depth=2, heads=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     depth_curve(refiner, np.eye(4), table, f"{folder}/depths.png")
    """
    picture_format(Path(path))  # before the work
    depth_curves({"": metrics_at_depths(refiner, embeddings, table)}, path)


def depth_curves(curves: Mapping[str, Sequence[Mapping[str, float]]], path: str | Path) -> None:
    """Draw what recall@1 and mAP@R gain over the base with every block, a curve each in one picture.

    The legend says from where to where, and the depth that is best if it is not the last.

    Reference: Context Refiner, Fig. 3.

    Args:
        curves: name -> the metrics at each depth, from 0 on, as :func:`metrics_at_depths` gives them; a name may be "".
        path: the picture; its suffix says the format.

    Raises:
        InputError: no curves, one without numbers or without one of the two metrics, or an unknown suffix.
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
        raise InputError("nothing to draw; give at least one curve, and each the metrics at one depth or more")
    for name, curve in curves.items():
        for depth, metrics in enumerate(curve):
            for metric in METRICS:
                if metric not in metrics:
                    raise InputError(f"curve {name!r} has no {metric} at depth {depth}; give those of all depths")


def _gain_panel(axes: Axes, metric: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Percent at each depth, drawn as what is gained over depth 0."""
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
