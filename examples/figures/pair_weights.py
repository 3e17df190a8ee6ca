"""The weight that each pair loss gives a pair, by the similarity of the pair.

One pair of an anchor takes every similarity from -1 to 1 while the anchor's other pairs stay: 8 positives with
similarities around 0.6 and 40 negatives around 0.15, which are marked below the curves. Each curve is drawn relative to
its largest weight. A weight below 0 pushes a positive pair apart, or pulls a negative pair together.

Run `python examples/figures/pair_weights.py --out pair_weights.png`; for losses of your own, change LOSSES.
Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vicinal import losses
from vicinal.losses import Loss
from vicinal.report.drawing import DPI, INK, PALE, RIGHT, WRONG, tidy, write_figure
from vicinal.weighting import similarity_weights

NAMES = (
    *("ContrastiveLoss", "TripletLoss", "LiftedStructureLoss", "LiftedStructureStarLoss", "BinomialDevianceLoss"),
    *("BinLiftedLoss", "MultiSimilarityLoss", "CircleLoss", "NPairsLoss", "NTXentLoss", "NCALoss", "SupConLoss"),
    *("HistogramLoss", "MarginLoss", "RecallAtKLoss", "SmoothAPLoss", "SupAPLoss", "RoadmapLoss", "FastAPLoss"),
    *("SoftBinAPLoss", "BlackboxAPLoss"),
)
OPTIONS = {"HistogramLoss": {"bins": 10}, "MarginLoss": {"miner": None}}
LOSSES: dict[str, Loss] = {name: getattr(losses, name)(**OPTIONS.get(name, {})) for name in NAMES}
SIMILARITIES = torch.linspace(-0.99, 0.99, 199, dtype=torch.float64)  # at -1 and 1 some weights are infinite
PANEL_INCHES = 2.25, 1.75  # width and height
MAX_COLUMNS = 4


def weight_curves(losses: Mapping[str, Loss], path: str | Path) -> None:
    """Draw one panel per loss.

    Args:
        losses: name above the panel -> a loss that :func:`vicinal.weighting.pair_weights` takes.
        path: the picture; its suffix is the format.
    """
    columns = min(MAX_COLUMNS, len(losses))
    rows = math.ceil(len(losses) / columns)
    size = max(columns, 2) * PANEL_INCHES[0] + 0.4, rows * PANEL_INCHES[1] + 0.8
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, panel in enumerate(panels):
        panel.set_visible(number < len(losses))
        panel.tick_params(labelbottom=number + columns >= len(losses))
    for panel, (name, loss) in zip(panels, losses.items(), strict=False):
        draw_panel(panel, name, loss)
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    figure.supxlabel("similarity of the pair", fontsize=9, color=INK)
    figure.supylabel("weight of the pair, relative to its largest", fontsize=9, color=INK)
    write_figure(figure, Path(path))


def draw_panel(axes: Axes, name: str, loss: Loss) -> None:
    """Draw the curves of a positive and of a negative pair."""
    tidy(axes, "")
    axes.axhline(0, color=PALE, linewidth=0.6)
    positives, negatives = normal_quantiles(8, 0.6, 0.15), normal_quantiles(40, 0.15, 0.2)
    for is_positive, color, style in ((True, RIGHT, "-"), (False, WRONG, "--")):
        weights = torch.stack([weight(loss, each, is_positive, positives, negatives) for each in SIMILARITIES])
        relative = weights / weights.abs().max().clamp_min(torch.finfo(weights.dtype).tiny)
        label = f"{'positive' if is_positive else 'negative'} pair"
        axes.plot(SIMILARITIES, relative, style, color=color, linewidth=1.6, label=label)
    low = -1 if axes.dataLim.ymin < -0.01 else 0
    for similarities, color, offset in ((positives, RIGHT, 0.1), (negatives, WRONG, 0.17)):
        height = torch.full_like(similarities, low - offset * (1 - low))
        axes.plot(similarities, height, "|", color=color, markersize=3.5, markeredgewidth=0.7)
    axes.plot([], [], "|", color=PALE, markersize=6, label="the anchor's other pairs")
    axes.set_title(name.replace("$", r"\$"), fontsize=9, color=INK)
    axes.set(xlim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(low, 0, 1) if low else (0, 1))


def normal_quantiles(count: int, mean: float, deviation: float) -> Tensor:
    """Evenly spaced quantiles of a normal distribution."""
    quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return mean + deviation * torch.special.ndtri(quantiles)


def weight(loss: Loss, similarity: Tensor, is_positive: bool, positives: Tensor, negatives: Tensor) -> Tensor:
    """The weight of a pair of an anchor whose other pairs are given; below 0 if the loss moves it the wrong way."""
    row = torch.cat([similarity[None], positives, negatives])[None]
    positive = torch.arange(row.numel())[None] <= len(positives)
    positive[0, 0] = is_positive
    gradient = similarity_weights(loss, row, positive, signed=True)[0, 0]
    return -gradient if is_positive else gradient


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="pair_weights.png", help="the picture (png, jpg, webp, pdf, svg)")
    weight_curves(LOSSES, parser.parse_args().out)
