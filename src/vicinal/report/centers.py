"""Embeddings of two dimensions under losses with class centers: the center contrastive paper's way to see them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor, nn

from vicinal.errors import InputError
from vicinal.losses import CenterBasedLoss, CenterContrastiveLoss, CenterLoss, CrossEntropyLoss, NormSoftmaxLoss
from vicinal.report.drawing import DPI, INK, PALE, picture_format, write_figure

COLORS = tuple(TABLEAU_COLORS.values())
DIGITS, PIXELS, GREY_LEVELS = 10, 8, 16
UNSEEN = 1 / 3  # of the images, not trained on
CHANNELS, WIDTH = (16, 32), 84
EPOCHS, BATCH, LEARNING_RATE = 100, 64, 1e-3
PULLING_RATE = 1e-2  # of centers that are points, which have the farthest to go
PANEL_INCHES, FRAME = 2.6, "#d5d8dc"
BINS = 120  # of angles
BARS, HIGHEST = 1.06, 1.75  # between these radii are bars, around a circle of radius 1
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": PALE}


class PlaneEmbedding(NamedTuple):
    """Embeddings of two dimensions, and what they were drawn to.

    Attributes:
        embeddings: float [n, 2], of any length but 0.
        labels: int64 [n], from 0 to classes - 1; each class has a sample.
        centers: float [classes, 2], such as the weights of a classifier.
        are_points: whether the centers are points among the embeddings; else they are directions.
    """

    embeddings: Tensor
    labels: Tensor
    centers: Tensor
    are_points: bool = False


class Spread(NamedTuple):
    """How far apart classes are, and how wide, in both views.

    Attributes:
        nearest_mean: share of samples that are nearest to the mean of their own class.
        nearest_direction: share of samples that have the smallest angle to the mean direction of their own class.
        angle: root mean square of the angles to that direction, in degrees.
        radius: standard deviation of lengths within classes, where the mean length of each class is 1.
    """

    nearest_mean: float
    nearest_direction: float
    angle: float
    radius: float


def digit_embedding(loss: CenterBasedLoss, epochs: int = EPOCHS, seed: int = 0, unseen: bool = False) -> PlaneEmbedding:
    """Train a small LeNet with two outputs on scikit-learn's handwritten digits.

    Two convolutions and two linear layers learn two thirds of the images by AdamW with PyTorch's defaults, but that the
    points to which :class:`~vicinal.losses.CenterLoss` draws take steps ten times as large. Embeddings are not
    normalised; a loss of directions does that itself.

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Fig. 4. There it is MNIST, 60,000
    training images of 28 x 28 pixels, for 10 epochs; here 1,198 images of 8 x 8 pixels, for 100 epochs in batches
    of 64.

    Args:
        loss: of class centers; it is copied, and its centers are made here if it has none.
        epochs: passes through the training images; 100 take ten seconds on one core.
        seed: of the division, weights, centers and the order of images.
        unseen: embed the third of the images that was not trained on, not those of training.

    Returns:
        Embeddings, labels 0 to 9, and the loss's centers: of :class:`~vicinal.losses.CenterLoss` the points, not the
        classifier's weights.

    Raises:
        InputError: no epoch, a loss without class centers, or other centers than one of two dimensions for each digit.

    Example:
        >>> from vicinal.losses import NormSoftmaxLoss
        >>> digit_embedding(NormSoftmaxLoss(), epochs=1, unseen=True).embeddings.shape
        torch.Size([599, 2])
    """
    if epochs < 1:
        raise InputError(f"epochs = {epochs} must be at least 1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, loss = _lenet(), _with_centers(loss)
        images, labels = _digits()
        order = torch.randperm(len(images))
        rest = round(UNSEEN * len(images))
        _train(network, loss, images[order[rest:]], labels[order[rest:]], epochs)
    shown = order[:rest] if unseen else order[rest:]
    with torch.no_grad():
        return PlaneEmbedding(network(images[shown]), labels[shown], *_centers(loss))


def digit_embeddings(
    out_path: str | Path,
    losses: Mapping[str, CenterBasedLoss] | None = None,
    epochs: int = EPOCHS,
    seed: int = 0,
    unseen: bool = False,
) -> None:
    """Draw :func:`digit_embedding` of several losses by :func:`embedding_views`.

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Fig. 4, which has neither the scale nor
    the weight of its center loss: 16 and 0.05 are ours, and so are the numbers above the panels.

    Args:
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).
        losses: name above the column -> the loss. None: the paper's four, cross-entropy, NormSoftmax, center loss, and
            center contrastive loss without margin, with lambda = 2.
        epochs: passes through the training images.
        seed: of each training.
        unseen: draw the images that were not trained on, not those of training.

    Raises:
        InputError: as :func:`digit_embedding`, no losses, or an unknown suffix.
        OSError: the picture cannot be written.
    """
    picture_format(Path(out_path))  # before a minute of training
    losses = _papers_losses() if losses is None else losses
    embedding_views({name: digit_embedding(loss, epochs, seed, unseen) for name, loss in losses.items()}, out_path)


def embedding_views(embeddings: Mapping[str, PlaneEmbedding], out_path: str | Path) -> None:
    """Draw embeddings of two dimensions as they are, and below their directions alone.

    - Above: a point a sample in the colour of its class, whose label is at their mean. Lines lead in the directions of
      the centers; where these are points, they are white discs with the label.
    - Below: each sample on the unit circle. Around it a histogram of the angles, stacked by class, on one scale in all
      columns; inside it strokes in the directions of the centers, and the labels.

    The numbers above the panels are those of :func:`spread`.

    Args:
        embeddings: name above the column -> the embedding, of ten classes at most.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: no embeddings, more than ten classes, as :func:`spread`, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> points, labels = torch.tensor([[3.0, 0.0], [2.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     embedding_views({"mine": PlaneEmbedding(points, labels, torch.eye(2))}, f"{folder}/views.png")
    """
    if not embeddings:
        raise InputError("no embeddings to draw; give at least one, by name")
    embeddings = {name: _checked(embedding, name) for name, embedding in embeddings.items()}
    for name, embedding in embeddings.items():
        if len(embedding.centers) > len(COLORS):
            raise InputError(f"{name}: {len(embedding.centers)} classes and {len(COLORS)} colours; draw fewer classes")
    columns = len(embeddings)
    figure = Figure(figsize=(PANEL_INCHES * columns + 0.2, 2 * PANEL_INCHES + 0.2), dpi=DPI, layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False)
    highest = max(float(_histogram(embedding).sum(dim=0).max()) for embedding in embeddings.values())
    for (above, below), (name, embedding) in zip(panels.T, embeddings.items(), strict=True):
        _plane_panel(above, name, embedding)
        _circle_panel(below, embedding, highest)
    for panel, view in zip(panels[:, 0], ("Euclidean view", "angular view"), strict=True):
        panel.set_ylabel(view, fontsize=9, color=INK)
    figure.align_ylabels(panels[:, 0])
    write_figure(figure, Path(out_path))


def spread(embedding: PlaneEmbedding) -> Spread:
    """How far apart classes are, and how wide, in the plane and by angle.

    Raises:
        InputError: shapes, types or labels do not fit, a class without sample, or a sample at 0 or not finite.

    Example:
        >>> points = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
        >>> spread(PlaneEmbedding(points, torch.tensor([0, 0, 1, 1]), torch.eye(2)))
        Spread(nearest_mean=1.0, nearest_direction=1.0, angle=0.0, radius=0.5)
    """
    points, labels, _, _ = _checked(embedding, "embedding")
    means, directions = _class_means(points, labels), _class_means(nn.functional.normalize(points), labels)
    apart = _angles_between(points, directions)
    own = apart.gather(1, labels[:, None])
    lengths = points.norm(dim=1)
    relative = lengths / _class_means(lengths, labels)[labels]
    return Spread(
        nearest_mean=_share(torch.cdist(points, means).argmin(dim=1) == labels),
        nearest_direction=_share(apart.argmin(dim=1) == labels),
        angle=float(own.square().mean().sqrt().rad2deg()),
        radius=float(relative.std(correction=0)),
    )


def _papers_losses() -> dict[str, CenterBasedLoss]:
    """Those of Fig. 4; (b) and (d) differ by the center term alone."""
    return {
        "cross-entropy": CrossEntropyLoss(),
        "NormSoftmax": NormSoftmaxLoss(scale=16),
        "center loss": CenterLoss(center_weight=0.05),
        "center contrastive loss": CenterContrastiveLoss(scale=16, margin=0, center_weight=2, label_smoothing=0),
    }


def _digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 1, 8, 8] from 0 to 1, and labels."""
    from sklearn.datasets import load_digits  # takes a second to import, and few need it

    data = load_digits()
    images = torch.from_numpy(data.images).float() / GREY_LEVELS
    return images[:, None], torch.from_numpy(data.target).long()


def _lenet() -> nn.Sequential:
    first, second = CHANNELS
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * (PIXELS // 4) ** 2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)),
    )


def _with_centers(loss: CenterBasedLoss) -> CenterBasedLoss:
    """A copy of the loss, with its own centers or new ones."""
    if not isinstance(loss, CenterBasedLoss):
        raise InputError(f"the loss must have class centers, as those of CenterBasedLoss, not {type(loss).__name__}")
    loss = copy.deepcopy(loss).cpu()
    if loss.centers is None:
        loss.create(DIGITS, 2)
    shape = list(loss.all_centers().shape)
    if shape != [DIGITS, 2]:
        raise InputError(f"{type(loss).__name__}: centers are {shape} and must be [{DIGITS}, 2], one for each digit")
    return loss


def _train(network: nn.Module, loss: CenterBasedLoss, images: Tensor, labels: Tensor, epochs: int) -> None:
    learned = dict(loss.named_parameters())
    pulling = [learned.pop("means")] if isinstance(loss, CenterLoss) else []
    groups: list[dict[str, Any]] = [
        {"params": [*network.parameters(), *learned.values()]},
        {"params": pulling, "lr": PULLING_RATE},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images)), BATCH):
            optimizer.zero_grad()
            loss(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def _centers(loss: CenterBasedLoss) -> tuple[Tensor, bool]:
    """The loss's centers, and whether they are points."""
    if isinstance(loss, CenterLoss):
        assert loss.means is not None
        return loss.means.detach(), True
    return loss.all_centers(), False


def _checked(embedding: PlaneEmbedding, name: str) -> PlaneEmbedding:
    """The same as float64 numbers without gradient, on the CPU."""
    points, labels, centers, _ = embedding
    for what, numbers, form in (("embeddings", points, "n"), ("centers", centers, "classes")):
        is_plane = numbers.is_floating_point() and numbers.ndim == 2 and numbers.shape[1] == 2
        if not is_plane or not len(numbers):
            raise InputError(f"{name}: {what} must be float [{form}, 2], not {numbers.dtype} {list(numbers.shape)}")
        if not numbers.isfinite().all():
            raise InputError(f"{name}: {what} must be finite, and have {numbers[~numbers.isfinite()][0].item()}")
    if labels.shape != points.shape[:1] or labels.dtype != torch.int64:
        raise InputError(f"{name}: labels must be int64 [{len(points)}], not {labels.dtype} {list(labels.shape)}")
    if set(labels.tolist()) != set(range(len(centers))):
        raise InputError(f"{name}: labels must be 0 to {len(centers) - 1}, one for each center, each at least once")
    if not points.any(dim=1).all():
        raise InputError(f"{name}: sample {points.any(dim=1).tolist().index(False)} is at 0 and has no direction")
    points, centers = (numbers.detach().cpu().double() for numbers in (points, centers))
    return PlaneEmbedding(points, labels.cpu(), centers, embedding.are_points)


def _class_means(values: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([values[labels == label].mean(dim=0) for label in range(int(labels.max()) + 1)])


def _angles_between(points: Tensor, directions: Tensor) -> Tensor:
    """From 0 to pi, [points, directions]."""
    difference = _angles(points)[:, None] - _angles(directions)
    return math.pi - (difference.remainder(2 * math.pi) - math.pi).abs()


def _angles(points: Tensor) -> Tensor:
    """From 0 to 2 pi, from the first axis on."""
    return torch.atan2(points[:, 1], points[:, 0]).remainder(2 * math.pi)


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def _histogram(embedding: PlaneEmbedding) -> Tensor:
    """Share of all samples by class and angle, [classes, BINS]."""
    bins = (_angles(embedding.embeddings) * (BINS / (2 * math.pi))).long().clamp(max=BINS - 1)
    counts = torch.zeros(len(embedding.centers), BINS, dtype=torch.float64)
    one = torch.ones_like(bins, dtype=counts.dtype)
    return counts.index_put_((embedding.labels, bins), one, accumulate=True) / len(bins)


def _on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _plane_panel(axes: Axes, name: str, embedding: PlaneEmbedding) -> None:
    points, labels, centers, are_points = embedding
    numbers = spread(embedding)
    end = 1.08 * float(points.abs().max())
    _scatter(axes, points, labels)
    if are_points:
        _discs(axes, centers)
    else:
        _rays(axes, centers, end)
    for label, place in enumerate(centers if are_points else _class_means(points, labels)):
        _digit(axes, place, label)
    axes.set(xlim=(-end, end), ylim=(-end, end), aspect="equal")
    axes.locator_params(nbins=5)
    axes.tick_params(colors=PALE, labelsize=7, length=2)
    axes.spines[:].set_color(FRAME)
    axes.set_title(f"nearest mean {100 * numbers.nearest_mean:.1f} %, radius ± {100 * numbers.radius:.0f} %", **SMALL)
    above = (0.5, 1.11)
    axes.annotate(name.replace("$", r"\$"), above, xycoords="axes fraction", ha="center", fontsize=10, color=INK)


def _circle_panel(axes: Axes, embedding: PlaneEmbedding, highest: float) -> None:
    points, labels, centers, _ = embedding
    numbers = spread(embedding)
    unit = nn.functional.normalize(points)
    axes.plot(*_on_circle(torch.linspace(0, 2 * math.pi, 181)).T, color=FRAME, linewidth=0.8, zorder=1)
    _bars(axes, _histogram(embedding) * ((HIGHEST - BARS) / highest))
    _scatter(axes, unit, labels)
    for label, direction in enumerate(nn.functional.normalize(centers)):
        axes.plot(*torch.stack([0.76 * direction, 0.93 * direction]).T, color=COLORS[label], linewidth=1.6)
    for label, place in enumerate(0.62 * _on_circle(_apart(_angles(_class_means(unit, labels))))):
        _digit(axes, place, label)
    axes.set(xlim=(-HIGHEST, HIGHEST), ylim=(-HIGHEST, HIGHEST), xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_visible(False)
    share, angle = 100 * numbers.nearest_direction, numbers.angle
    axes.set_title(f"nearest direction {share:.1f} %, angle ± {angle:.1f}°", **SMALL)


def _scatter(axes: Axes, points: Tensor, labels: Tensor) -> None:
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))  # no class lies above the others
    colors = [COLORS[label] for label in labels[order]]
    x, y = points[order].T
    axes.scatter(x, y, s=7, c=colors, alpha=0.6, linewidths=0, zorder=2)


def _rays(axes: Axes, directions: Tensor, end: float) -> None:
    for color, direction in zip(COLORS, nn.functional.normalize(directions), strict=False):
        x, y = torch.stack([torch.zeros_like(direction), 2 * end * direction]).T
        axes.plot(x, y, color=color, linewidth=0.9, alpha=0.6, zorder=1)


def _discs(axes: Axes, points: Tensor) -> None:
    for color, (x, y) in zip(COLORS, points, strict=False):
        axes.plot(x, y, "o", color="white", markersize=11, markeredgecolor=color, markeredgewidth=1.6, zorder=4)


def _bars(axes: Axes, heights: Tensor) -> None:
    """A histogram around the circle, [classes, BINS], stacked."""
    edges = torch.linspace(0, 2 * math.pi, BINS + 1)
    outer = BARS + heights.cumsum(dim=0)
    for label, (low, high) in enumerate(zip(outer - heights, outer, strict=True)):
        for place in heights[label].nonzero()[:, 0]:
            arc = _on_circle(torch.linspace(float(edges[place]), float(edges[place + 1]), 4))
            axes.fill(*torch.cat([low[place] * arc, high[place] * arc.flip(0)]).T, color=COLORS[label], linewidth=0)


def _digit(axes: Axes, place: Tensor, label: int) -> None:
    x, y = place.tolist()
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    halo = [withStroke(linewidth=2.5, foreground="white")]
    axes.text(x, y, str(label), **middle, size=9, weight="bold", color=COLORS[label], path_effects=halo, zorder=5)


def _apart(angles: Tensor, least: float = 0.3) -> Tensor:
    """The angles, moved until neighbours are about `least` apart, in radians."""
    order = angles.argsort()
    moved = angles[order]
    for _ in range(200):
        gaps = (moved.roll(-1) - moved).remainder(2 * math.pi)
        lack = (least - gaps).clamp(min=0) / 2
        moved = moved - lack + lack.roll(1)
    return moved[order.argsort()]
