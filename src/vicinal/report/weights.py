"""Pictures of losses: what weight they give a pair, by its similarity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses import Loss
from vicinal.report.drawing import DPI, INK, PALE, RIGHT, WRONG, tidy, write_figure
from vicinal.weighting import similarity_weights

OWN = torch.linspace(-0.99, 0.99, 199, dtype=torch.float64)
"""Similarities of the pair drawn; at -1 and 1 themselves some weights are infinite or cut off."""
PANEL_INCHES = 2.25, 1.75  # width and height
MOST_COLUMNS = 4


def weight_curves(losses: Mapping[str, Loss], out_path: str | Path) -> None:
    """Draw for each loss the weight of one pair against its similarity, while the anchor's other pairs stay.

    There are two curves, for a positive and for a negative pair, each relative to its own largest weight. The other
    pairs are 8 positives with similarities around 0.6 and 40 negatives around 0.15, marked below the curves. A weight
    below 0 pushes a positive pair apart, or pulls a negative one together.

    Args:
        losses: name above the panel -> a loss that :func:`vicinal.weighting.pair_weights` takes.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: no losses, a loss without pair weights or that needs labels, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> from vicinal.losses import BinomialDevianceLoss, NCALoss
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     weight_curves({"binomial": BinomialDevianceLoss(), "NCA": NCALoss()}, f"{folder}/weights.png")
    """
    if not losses:
        raise InputError("no losses to draw; give at least one, by name")
    columns = min(MOST_COLUMNS, len(losses))
    rows = math.ceil(len(losses) / columns)
    width, height = max(columns, 2) * PANEL_INCHES[0] + 0.4, rows * PANEL_INCHES[1] + 0.8
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, panel in enumerate(panels):
        panel.set_visible(number < len(losses))
        panel.tick_params(labelbottom=number + columns >= len(losses))
    for panel, (name, loss) in zip(panels, losses.items(), strict=False):
        _panel(panel, name, loss)
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    figure.supxlabel("similarity of the pair", fontsize=9, color=INK)
    figure.supylabel("weight of the pair, relative to its largest", fontsize=9, color=INK)
    write_figure(figure, Path(out_path))


def _panel(axes: Axes, name: str, loss: Loss) -> None:
    tidy(axes, "")
    axes.axhline(0, color=PALE, linewidth=0.6)
    others = _bell(8, 0.6, 0.15), _bell(40, 0.15, 0.2)
    for is_positive, color, style in ((True, RIGHT, "-"), (False, WRONG, "--")):
        try:
            weights = torch.stack([_weight(loss, similarity, is_positive, *others) for similarity in OWN])
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        relative = weights / weights.abs().max().clamp_min(torch.finfo(weights.dtype).tiny)
        axes.plot(
            OWN, relative, style, color=color, linewidth=1.6, label=f"{'positive' if is_positive else 'negative'} pair"
        )
    low = -1 if axes.dataLim.ymin < -0.01 else 0
    for similarity, color, below in ((others[0], RIGHT, 0.1), (others[1], WRONG, 0.17)):
        height = torch.full_like(similarity, low - below * (1 - low))
        axes.plot(similarity, height, "|", color=color, markersize=3.5, markeredgewidth=0.7)
    axes.plot([], [], "|", color=PALE, markersize=6, label="the anchor's other pairs")
    axes.set_title(name.replace("$", r"\$"), fontsize=9, color=INK)
    axes.set(xlim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(low, 0, 1) if low else (0, 1))


def _bell(count: int, center: float, width: float) -> Tensor:
    """Similarities that are spread like a normal distribution."""
    quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return center + width * torch.special.ndtri(quantiles)


def _weight(loss: Loss, own: Tensor, is_positive: bool, positives: Tensor, negatives: Tensor) -> Tensor:
    """Weight of the pair with the similarity `own`; below 0 if the loss moves it the wrong way."""
    similarity = torch.cat([own[None], positives, negatives])[None]
    positive = torch.arange(similarity.numel())[None] <= len(positives)
    positive[0, 0] = is_positive
    gradient = similarity_weights(loss, similarity, positive, signed=True)[0, 0]
    return -gradient if is_positive else gradient
