"""What losses learn of concentric circles, with and without noise: Fig. 11 of the contextual paper.

A network of three layers is trained to tell five concentric circles with radii 1 to 5 apart, in batches of 4 points of
each, and embeds points without noise. The two embedding dimensions are one angle, so five separate arcs are the best
possible result. All embeddings are on the unit circle; those of outer circles of the input are drawn farther outside,
so that embeddings at the same place can be told apart.

Run `python examples/figures/contextual_rings.py --out rings.png` (a minute); for other losses, change LOSSES.
Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization", ICML
2023, which gives no numbers: width, steps and noise are ours.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss
from vicinal.report.drawing import DPI, INK, write_figure

LOSSES: dict[str, Loss] = {
    "contextual, step 1 only": ContextualLoss(intersection=False, expansion=False),
    "contrastive": ContrastiveLoss(),
}
NOISES = (0.0, 0.2, 0.4, 0.6)  # standard deviations; neighboring circles are 1 apart
NUM_RINGS, NUM_POINTS, SAMPLES_PER_RING = 5, 80, 4  # drawn points of each circle, and those of each in a batch
WIDTH, NUM_STEPS, LEARNING_RATE = 64, 600, 3e-3
COLORS = "#3b6fb6", "#e08214", "#1a9850", "#7b3294", "#b2182b"


class RingEmbedding(NamedTuple):
    """What a network made of concentric circles.

    Attributes:
        points: float [n, 2], without noise.
        labels: int [n], the circle of each point, from the inside.
        embeddings: float [n, 2], L2-normalized.
        losses: float [steps], of the training.
    """

    points: Tensor
    labels: Tensor
    embeddings: Tensor
    losses: Tensor


def ring_embedding(loss: Loss, noise: float = 0.0, num_steps: int = NUM_STEPS, seed: int = 0) -> RingEmbedding:
    """Train a network on noisy circles, and embed circles without noise.

    Args:
        loss: a loss of a batch with labels; it is copied, and its parameters are trained too.
        noise: standard deviation of the noise added to both coordinates in training.
        num_steps: batches.
        seed: of points, noise and weights.
    """
    generator = torch.Generator().manual_seed(seed)
    network, loss = make_network(generator), copy.deepcopy(loss)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=LEARNING_RATE)
    losses = []
    for _ in range(num_steps):
        points, labels = rings(2 * math.pi * torch.rand(NUM_RINGS * SAMPLES_PER_RING, generator=generator))
        value = loss(network(points + noise * torch.randn(points.shape, generator=generator)), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    points, labels = rings(torch.linspace(0, 2 * math.pi, NUM_POINTS + 1)[:-1].repeat(NUM_RINGS))
    with torch.no_grad():
        embeddings = nn.functional.normalize(network(points))
    return RingEmbedding(points, labels, embeddings, torch.stack(losses))


def rings(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Points at the angles [n], as many of each circle, and the circle of each."""
    labels = torch.arange(NUM_RINGS).repeat_interleave(len(angles) // NUM_RINGS)
    return (1 + labels)[:, None] * torch.stack([angles.cos(), angles.sin()], dim=-1), labels


def make_network(generator: torch.Generator) -> nn.Sequential:
    """Three linear layers with ReLU."""
    layers = [nn.utils.skip_init(nn.Linear, *size) for size in ((2, WIDTH), (WIDTH, WIDTH), (WIDTH, 2))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        # Without biases the direction of an embedding would not depend on the radius.
        nn.init.normal_(layer.bias, generator=generator)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def ring_embeddings(
    losses: Mapping[str, Loss], path: str | Path, noises: Sequence[float] = NOISES, seed: int = 0
) -> None:
    """Draw one row per loss: the points, and their embeddings for each amount of noise.

    Args:
        losses: name beside the row -> the loss.
        path: the picture; its suffix is the format.
        noises: standard deviations, one column each.
        seed: of points, noise and weights.
    """
    size = (1.7 * len(noises) + 2.0, 1.7 * len(losses) + 0.3)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = figure.subplots(len(losses), 1 + len(noises), squeeze=False)
    for row, (name, loss) in zip(panels, losses.items(), strict=True):
        row[0].set_ylabel(name.replace("$", r"\$"), color=INK)
        for panel, noise in zip(row[1:], noises, strict=True):
            ring = ring_embedding(loss, noise, seed=seed)
            draw_rings(panel, ring.embeddings * (1 + 0.12 * ring.labels)[:, None], ring.labels)
        draw_rings(row[0], ring.points * (1.5 / NUM_RINGS), ring.labels)
    for panel, title in zip(panels[0], ["points", *(f"noise {noise:g}" for noise in noises)], strict=True):
        panel.set_title(title, fontsize=9, color=INK)
    write_figure(figure, Path(path))


def draw_rings(axes: Axes, points: Tensor, labels: Tensor) -> None:
    """Draw points in the colors of their circles."""
    for label, color in enumerate(COLORS):
        x, y = points[labels == label].T
        axes.plot(x, y, "o", color=color, markersize=2.5, alpha=0.5, markeredgewidth=0)
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="contextual_rings.png", help="the picture (png, jpg, webp, pdf, svg)")
    ring_embeddings(LOSSES, parser.parse_args().out)
