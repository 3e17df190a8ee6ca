"""Losses and their gradients while one point moves along a circle to its class: Fig. 4 of the contextual paper.

64 points are on the unit circle, half of each of two classes, around (0, 1) and (1, 0). A point of the second class
moves from the center of the first class to that of its own.

Run `python examples/figures/contextual_circle.py --out contextual.png`; for other losses, change LOSSES.
Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization", ICML
2023.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss
from vicinal.report.drawing import DPI, INK, PALE, tidy, write_figure

LOSSES: dict[str, Loss] = {"ContextualLoss": ContextualLoss(), "ContrastiveLoss": ContrastiveLoss()}
NUM_POINTS, DEVIATION = 64, 0.15  # standard deviation of the angles, in radians
NUM_ANGLES = 181
COLORS = "#3b6fb6", "#e08214"
PANEL_INCHES, MAX_COLUMNS = (2.7, 2.2), 3


class CircleCurve(NamedTuple):
    """A loss while one point moves along the unit circle to its class.

    Attributes:
        angle: float64 [v], degrees between the point and the center of its class: from 90, the center of the other
            class, to 0.
        loss: float64 [v].
        grad_angle: float64 [v], by the angle in radians; where it is positive, training moves the point to its class.
    """

    angle: Tensor
    loss: Tensor
    grad_angle: Tensor


def circle_curve(loss: Loss, seed: int = 0) -> CircleCurve:
    """Compute a loss and its gradient at each angle.

    Args:
        loss: a loss of a batch with labels; it is copied.
        seed: of the other points.
    """
    loss = copy.deepcopy(loss).double()  # a loss may count its calls
    others, labels = other_points(seed)
    angles = torch.linspace(math.pi / 2, 0, NUM_ANGLES, dtype=torch.float64)
    values, gradients = zip(*(value_and_gradient(loss, angle, others, labels) for angle in angles), strict=True)
    return CircleCurve(angles.rad2deg(), torch.stack(values), torch.stack(gradients))


def value_and_gradient(loss: Loss, angle: Tensor, others: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss with the moving point at an angle, and its gradient by the angle."""
    angle = angle.clone().requires_grad_()
    value = loss(on_circle(torch.cat([others, angle[None]])), labels)
    (gradient,) = torch.autograd.grad(value, angle)
    return value.detach(), gradient


def other_points(seed: int) -> tuple[Tensor, Tensor]:
    """The angles of all points except the moving one, and the labels of all; the moving point is the last."""
    labels = torch.arange(NUM_POINTS) // (NUM_POINTS // 2)
    generator = torch.Generator().manual_seed(seed)
    noise = DEVIATION * torch.randn(NUM_POINTS, generator=generator, dtype=torch.float64)
    return ((1 - labels) * math.pi / 2 + noise)[:-1], labels


def on_circle(angles: Tensor) -> Tensor:
    """The points of the unit circle at the angles."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def circle_curves(losses: Mapping[str, Loss], path: str | Path, seed: int = 0) -> None:
    """Draw the points, and the curves of each loss.

    Args:
        losses: name above the panel -> the loss.
        path: the picture; its suffix is the format.
        seed: of the points.
    """
    count = 1 + len(losses)
    columns = min(count, MAX_COLUMNS)
    rows = math.ceil(count / columns)
    size = columns * PANEL_INCHES[0] + 0.2, rows * PANEL_INCHES[1] + 0.2
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    draw_points(panels[0], seed)
    for panel, (name, loss) in zip(panels[1:], losses.items(), strict=False):
        draw_curve(panel, name, circle_curve(loss, seed))
    write_figure(figure, Path(path))


def draw_points(axes: Axes, seed: int) -> None:
    """Draw the points, and the way of the one that moves."""
    others, labels = other_points(seed)
    for label, marker in ((0, "o"), (1, "s")):
        x, y = on_circle(others[labels[:-1] == label]).T
        axes.plot(x, y, marker, color=COLORS[label], markersize=4, alpha=0.6, markeredgewidth=0)
    x, y = 1.13 * on_circle(torch.linspace(1.4, 0.1, 60, dtype=torch.float64)).T
    axes.plot(x, y, color=INK, linewidth=1)
    axes.annotate("", (x[-1], y[-1]), (x[-4], y[-4]), arrowprops={"arrowstyle": "->", "color": INK})
    axes.plot(0, 1, "s", color=COLORS[1], markersize=8, markeredgecolor=INK)
    axes.set_aspect("equal")
    axes.set_axis_off()


def draw_curve(axes: Axes, name: str, curve: CircleCurve) -> None:
    """Draw a loss and its gradient."""
    tidy(axes, "loss")
    axes.plot(curve.angle, curve.loss, color=COLORS[0], linewidth=1.6)
    axes.set(xlim=(90, 0), xticks=(90, 60, 30, 0), ylim=(min(0.0, float(curve.loss.min())), None))
    axes.set_title(name.replace("$", r"\$"), fontsize=9, color=INK)
    axes.set_xlabel("degrees from its class", fontsize=8, color=INK)
    axes.yaxis.label.set_color(COLORS[0])
    other = axes.twinx()
    other.plot(curve.angle, curve.grad_angle, color=COLORS[1], linewidth=1.2)
    other.axhline(0, color=PALE, linewidth=0.6)
    other.spines[["top", "left"]].set_visible(False)
    other.tick_params(colors=PALE, labelsize=8)
    other.set_ylabel("gradient", color=COLORS[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="contextual_circle.png", help="the picture (png, jpg, webp, pdf, svg)")
    circle_curves(LOSSES, parser.parse_args().out)
