"""Embeddings of two dimensions under losses with class centers: Fig. 4 of the center contrastive paper.

A small LeNet with two outputs is trained on scikit-learn's handwritten digits with each loss.

- Above: one point per sample in the color of its class, with the label at the mean of the class. Lines lead in the
  directions of the centers; centers that are points are white discs with the label.
- Below: each sample on the unit circle. Around it is a histogram of the angles, stacked by class, on one scale in all
  columns; inside it are strokes in the directions of the centers, and the labels.

Run `python examples/figures/center_embeddings.py --out center_losses.png` (a minute); for other losses, change LOSSES.
Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023. There it is MNIST, 60,000 training images of
28 x 28 pixels, for 10 epochs: `--benchmark mnist --root DATA --epochs 10`. By default it is 1,198 images of 8 x 8
pixels, for 100 epochs. The paper gives neither the scale nor the weight of its center loss: 16 and 0.05 are ours, and
so are the numbers above the panels.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vicinal.data import load_table, read_image
from vicinal.losses import CenterBasedLoss, CenterContrastiveLoss, CenterLoss, CrossEntropyLoss, NormSoftmaxLoss
from vicinal.report.drawing import DPI, INK, PALE, picture_format, write_figure

LOSSES: dict[str, CenterBasedLoss] = {
    "cross-entropy": CrossEntropyLoss(),
    "NormSoftmax": NormSoftmaxLoss(scale=16),
    "center loss": CenterLoss(center_weight=0.05),
    "center contrastive loss": CenterContrastiveLoss(scale=16, margin=0, center_weight=2, label_smoothing=0),
}
COLORS = tuple(TABLEAU_COLORS.values())
NUM_CLASSES, MAX_GRAY = 10, 16
TEST_FRACTION = 1 / 3  # of the images, not trained on
EPOCHS, BATCH_SIZE, LEARNING_RATE = 100, 64, 1e-3
MEANS_LEARNING_RATE = 1e-2  # of centers that are points, which have the farthest to go
PANEL_INCHES, FRAME = 2.6, "#d5d8dc"
NUM_BINS = 120  # of angles
BARS, HIGHEST = 1.06, 1.75  # the histogram lies between these radii, around a circle of radius 1
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": PALE}


class PlaneEmbedding(NamedTuple):
    """Embeddings of two dimensions, and the centers they were trained with.

    Attributes:
        embeddings: float [n, 2], of any length except 0.
        labels: int64 [n], from 0 to classes - 1; each class has a sample.
        centers: float [classes, 2], such as the weights of a classifier; of ten classes at most.
        are_points: whether the centers are points among the embeddings; otherwise they are directions.
    """

    embeddings: Tensor
    labels: Tensor
    centers: Tensor
    are_points: bool = False


class Digits(NamedTuple):
    """Images of ten digits: float [n, 1, size, size] from 0 to 1, and int64 [n], for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class Spread(NamedTuple):
    """How far apart classes are, and how wide, in the plane and by angle.

    Attributes:
        nearest_mean: fraction of samples that are nearest to the mean of their own class.
        nearest_direction: fraction of samples that have the smallest angle to the mean direction of their own class.
        angle: root mean square of the angles to that direction, in degrees.
        radius: standard deviation of lengths within classes, relative to the mean length of the class.
    """

    nearest_mean: float
    nearest_direction: float
    angle: float
    radius: float


def digit_embedding(
    loss: CenterBasedLoss, epochs: int = EPOCHS, seed: int = 0, test: bool = False, digits: Digits | None = None
) -> PlaneEmbedding:
    """Train the LeNet with a loss on digits, and embed them.

    AdamW has PyTorch's defaults, except that the points of :class:`~vicinal.losses.CenterLoss` have ten times the
    learning rate. Embeddings are not normalized; losses that compare directions do it themselves.

    Args:
        loss: a loss with one center per class; it is copied, and its centers are created if it has none.
        epochs: passes through the training images.
        seed: of the split, weights, centers and the order of images.
        test: embed the images that are not trained on, instead of the training images.
        digits: the images; None: those of scikit-learn, of which a third is not trained on.

    Returns:
        Embeddings, labels 0 to 9, and the loss's centers: of :class:`~vicinal.losses.CenterLoss` the points, not the
        classifier's weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, loss = lenet(size=8 if digits is None else digits.images.shape[-1]), with_centers(loss)
        digits = digits or small_digits()
        train(network, loss, digits.images, digits.labels, epochs)
    images, labels = (digits.test_images, digits.test_labels) if test else (digits.images, digits.labels)
    with torch.no_grad():
        embeddings = torch.cat([network(part) for part in images.split(1024)])
        return PlaneEmbedding(embeddings, labels, *centers_of(loss))


def small_digits() -> Digits:
    """The digits of scikit-learn, of 8 x 8 pixels, divided at random by torch's generator."""
    data = load_digits()
    images, labels = torch.from_numpy(data.images).float()[:, None] / MAX_GRAY, torch.from_numpy(data.target).long()
    order = torch.randperm(len(images))
    rows, test_rows = order[round(TEST_FRACTION * len(images)) :], order[: round(TEST_FRACTION * len(images))]
    return Digits(images[rows], labels[rows], images[test_rows], labels[test_rows])


def benchmark_digits(name: str, root: str | Path | None = None) -> Digits:
    """The digits of a benchmark such as `mnist`, with its splits train and test.

    Raises:
        InputError: the files are not there or damaged.
    """
    table = load_table(name, root)
    parts = []
    for split in ("train", "test"):
        part = table.subset(split)
        images = np.stack([np.asarray(read_image(path).convert("L")) for path in part.paths])
        parts += [torch.from_numpy(images).float()[:, None] / 255, torch.from_numpy(part.labels)]
    return Digits(*parts)


def lenet(channels: tuple[int, int] = (16, 32), width: int = 84, size: int = 8) -> nn.Sequential:
    """Two convolutions and two linear layers, for square images of `size` pixels."""
    first, second = channels
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear((size // 4) ** 2 * second, width), nn.ReLU(), nn.Linear(width, 2)),
    )


def with_centers(loss: CenterBasedLoss) -> CenterBasedLoss:
    """A copy of the loss, with its own centers or new ones."""
    loss = copy.deepcopy(loss).cpu()
    if loss.centers is None:
        loss.create_centers(NUM_CLASSES, 2)
    return loss


def train(network: nn.Module, loss: CenterBasedLoss, images: Tensor, labels: Tensor, epochs: int) -> None:
    """Train network and loss."""
    learned = dict(loss.named_parameters())
    means = [learned.pop("means")] if isinstance(loss, CenterLoss) else []
    groups: list[dict[str, Any]] = [
        {"params": [*network.parameters(), *learned.values()]},
        {"params": means, "lr": MEANS_LEARNING_RATE},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images)), BATCH_SIZE):
            optimizer.zero_grad()
            loss(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def centers_of(loss: CenterBasedLoss) -> tuple[Tensor, bool]:
    """The loss's centers, and whether they are points."""
    if isinstance(loss, CenterLoss):
        return loss.means.detach(), True
    return loss.all_centers(), False


def digit_embeddings(
    path: str | Path,
    losses: Mapping[str, CenterBasedLoss] = LOSSES,
    epochs: int = EPOCHS,
    seed: int = 0,
    test: bool = False,
    digits: Digits | None = None,
) -> None:
    """Train with each of the losses (name above the column -> loss), and draw the embeddings."""
    picture_format(Path(path))  # fails before a minute of training
    embedding_views({name: digit_embedding(loss, epochs, seed, test, digits) for name, loss in losses.items()}, path)


def embedding_views(embeddings: Mapping[str, PlaneEmbedding], path: str | Path) -> None:
    """Draw embeddings (name above the column -> embedding) with the numbers of :func:`spread`."""
    embeddings = {name: as_float64(embedding) for name, embedding in embeddings.items()}
    columns = len(embeddings)
    figure = Figure(figsize=(PANEL_INCHES * columns + 0.2, 2 * PANEL_INCHES + 0.2), dpi=DPI, layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False)
    highest = max(float(histogram(embedding).sum(dim=0).max()) for embedding in embeddings.values())
    for (above, below), (name, embedding) in zip(panels.T, embeddings.items(), strict=True):
        draw_plane(above, name, embedding)
        draw_circle(below, embedding, highest)
    for panel, view in zip(panels[:, 0], ("Euclidean view", "angular view"), strict=True):
        panel.set_ylabel(view, fontsize=9, color=INK)
    figure.align_ylabels(panels[:, 0])
    write_figure(figure, Path(path))


def spread(embedding: PlaneEmbedding) -> Spread:
    """Measure how far apart classes are, and how wide, in the plane and by angle."""
    points, labels, _, _ = as_float64(embedding)
    means, directions = class_means(points, labels), class_means(nn.functional.normalize(points), labels)
    between = angles_between(points, directions)
    own = between.gather(1, labels[:, None])
    lengths = points.norm(dim=1)
    relative = lengths / class_means(lengths, labels)[labels]
    return Spread(
        nearest_mean=float((torch.cdist(points, means).argmin(dim=1) == labels).double().mean()),
        nearest_direction=float((between.argmin(dim=1) == labels).double().mean()),
        angle=float(own.square().mean().sqrt().rad2deg()),
        radius=float(relative.std(correction=0)),
    )


def as_float64(embedding: PlaneEmbedding) -> PlaneEmbedding:
    """The same on the CPU, without gradient."""
    points, centers = (each.detach().cpu().double() for each in (embedding.embeddings, embedding.centers))
    return PlaneEmbedding(points, embedding.labels.cpu(), centers, embedding.are_points)


def class_means(values: Tensor, labels: Tensor) -> Tensor:
    """The mean of each class."""
    return torch.stack([values[labels == label].mean(dim=0) for label in range(int(labels.max()) + 1)])


def angles_between(points: Tensor, directions: Tensor) -> Tensor:
    """Angles from 0 to pi, [points, directions]."""
    difference = angles_of(points)[:, None] - angles_of(directions)
    return math.pi - (difference.remainder(2 * math.pi) - math.pi).abs()


def angles_of(points: Tensor) -> Tensor:
    """Angles from 0 to 2 pi, from the first axis on."""
    return torch.atan2(points[:, 1], points[:, 0]).remainder(2 * math.pi)


def histogram(embedding: PlaneEmbedding) -> Tensor:
    """The fraction of all samples in each class and bin of angles, [classes, NUM_BINS]."""
    bins = (angles_of(embedding.embeddings) * (NUM_BINS / (2 * math.pi))).long().clamp(max=NUM_BINS - 1)
    counts = torch.zeros(len(embedding.centers), NUM_BINS, dtype=torch.float64)
    one = torch.ones_like(bins, dtype=counts.dtype)
    return counts.index_put_((embedding.labels, bins), one, accumulate=True) / len(bins)


def on_circle(angles: Tensor) -> Tensor:
    """The points of the unit circle at the angles."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def draw_plane(axes: Axes, name: str, embedding: PlaneEmbedding) -> None:
    """Draw the embeddings as they are."""
    points, labels, centers, are_points = embedding
    numbers = spread(embedding)
    end = 1.08 * float(points.abs().max())
    scatter(axes, points, labels)
    if are_points:
        draw_discs(axes, centers)
    else:
        draw_rays(axes, centers, end)
    for label, place in enumerate(centers if are_points else class_means(points, labels)):
        draw_label(axes, place, label)
    axes.set(xlim=(-end, end), ylim=(-end, end), aspect="equal")
    axes.locator_params(nbins=5)
    axes.tick_params(colors=PALE, labelsize=7, length=2)
    axes.spines[:].set_color(FRAME)
    axes.set_title(f"nearest mean {100 * numbers.nearest_mean:.1f} %, radius ± {100 * numbers.radius:.0f} %", **SMALL)
    above = (0.5, 1.11)
    axes.annotate(name.replace("$", r"\$"), above, xycoords="axes fraction", ha="center", fontsize=10, color=INK)


def draw_circle(axes: Axes, embedding: PlaneEmbedding, highest: float) -> None:
    """Draw the directions of the embeddings; `highest` is the largest fraction of samples in one bin."""
    points, labels, centers, _ = embedding
    numbers = spread(embedding)
    unit = nn.functional.normalize(points)
    axes.plot(*on_circle(torch.linspace(0, 2 * math.pi, 181)).T, color=FRAME, linewidth=0.8, zorder=1)
    draw_bars(axes, histogram(embedding) * ((HIGHEST - BARS) / highest))
    scatter(axes, unit, labels)
    for label, direction in enumerate(nn.functional.normalize(centers)):
        axes.plot(*torch.stack([0.76 * direction, 0.93 * direction]).T, color=COLORS[label], linewidth=1.6)
    for label, place in enumerate(0.62 * on_circle(spread_out(angles_of(class_means(unit, labels))))):
        draw_label(axes, place, label)
    axes.set(xlim=(-HIGHEST, HIGHEST), ylim=(-HIGHEST, HIGHEST), xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_visible(False)
    title = f"nearest direction {100 * numbers.nearest_direction:.1f} %, angle ± {numbers.angle:.1f}°"
    axes.set_title(title, **SMALL)


def scatter(axes: Axes, points: Tensor, labels: Tensor) -> None:
    """Draw points in the colors of their classes."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))  # no class covers the others
    colors = [COLORS[label] for label in labels[order]]
    x, y = points[order].T
    axes.scatter(x, y, s=7, c=colors, alpha=0.6, linewidths=0, zorder=2)


def draw_rays(axes: Axes, directions: Tensor, end: float) -> None:
    """Draw lines from the origin to beyond the edge of the panel."""
    for color, direction in zip(COLORS, nn.functional.normalize(directions), strict=False):
        x, y = torch.stack([torch.zeros_like(direction), 2 * end * direction]).T
        axes.plot(x, y, color=color, linewidth=0.9, alpha=0.6, zorder=1)


def draw_discs(axes: Axes, points: Tensor) -> None:
    """Draw white discs with a rim in the color of the class."""
    for color, (x, y) in zip(COLORS, points, strict=False):
        axes.plot(x, y, "o", color="white", markersize=11, markeredgecolor=color, markeredgewidth=1.6, zorder=4)


def draw_bars(axes: Axes, heights: Tensor) -> None:
    """Draw the stacked histogram around the circle, from its heights [classes, NUM_BINS]."""
    edges = torch.linspace(0, 2 * math.pi, NUM_BINS + 1)
    outer = BARS + heights.cumsum(dim=0)
    for label, (low, high) in enumerate(zip(outer - heights, outer, strict=True)):
        for place in heights[label].nonzero()[:, 0]:
            arc = on_circle(torch.linspace(float(edges[place]), float(edges[place + 1]), 4))
            axes.fill(*torch.cat([low[place] * arc, high[place] * arc.flip(0)]).T, color=COLORS[label], linewidth=0)


def draw_label(axes: Axes, place: Tensor, label: int) -> None:
    """Write a label with a white halo."""
    x, y = place.tolist()
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    halo = [withStroke(linewidth=2.5, foreground="white")]
    axes.text(x, y, str(label), **middle, size=9, weight="bold", color=COLORS[label], path_effects=halo, zorder=5)


def spread_out(angles: Tensor, min_gap: float = 0.3) -> Tensor:
    """The angles, moved until neighbors are about `min_gap` apart, in radians."""
    order = angles.argsort()
    moved = angles[order]
    for _ in range(200):
        gaps = (moved.roll(-1) - moved).remainder(2 * math.pi)
        lack = (min_gap - gaps).clamp(min=0) / 2
        moved = moved - lack + lack.roll(1)
    return moved[order.argsort()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="center_embeddings.png", help="the picture (png, jpg, webp, pdf, svg)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes through the training images")
    parser.add_argument("--seed", type=int, default=0, help="of each training")
    parser.add_argument("--test", action="store_true", help="draw the images that were not trained on")
    parser.add_argument("--benchmark", help="mnist, or another benchmark of ten classes in its format")
    parser.add_argument("--root", help="the folder that holds the benchmark's files")
    given = parser.parse_args()
    benchmark = benchmark_digits(given.benchmark, given.root) if given.benchmark else None
    digit_embeddings(given.out, LOSSES, given.epochs, given.seed, given.test, benchmark)
