"""Toy pictures of losses, and how a run went: the contextual paper's ways to see what a loss does."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from vicinal.errors import InputError
from vicinal.losses import Loss
from vicinal.report.drawing import DPI, INK, PALE, tidy, write_figure

COLORS = ("#3b6fb6", "#e08214", "#1a9850", "#7b3294", "#b2182b")
CIRCLE_POINTS, CIRCLE_SPREAD = 64, 0.15  # how many, and the deviation of their angles in radians
ANGLES = 181
RINGS, RING_POINTS, PER_CLASS = 5, 80, 4  # classes, drawn points of each, and those of each in a batch
WIDTH, STEPS, LEARNING_RATE = 64, 600, 3e-3
NOISES = (0.0, 0.2, 0.4, 0.6)  # deviations; neighbouring rings are 1 apart
PANEL_INCHES, MOST_COLUMNS = (2.7, 2.2), 3


class CircleCurve(NamedTuple):
    """A loss while one point moves along the unit circle to its class.

    Attributes:
        angle: float64 [v], degrees that the point is away from the center of its class: from 90, the center of the
            other class, to 0.
        loss: float64 [v].
        gradient: float64 [v], of the loss by the angle in radians: where it is above 0 training moves the point to
            its class.
    """

    angle: Tensor
    loss: Tensor
    gradient: Tensor


class RingEmbedding(NamedTuple):
    """What a small network made of concentric circles.

    Attributes:
        points: float [n, 2], without noise.
        labels: int [n], which circle each is on, from the inside.
        embeddings: float [n, 2], L2-normalised.
        losses: float [steps], those of the training.
    """

    points: Tensor
    labels: Tensor
    embeddings: Tensor
    losses: Tensor


class Course(NamedTuple):
    """Two numbers of a run, evaluation after evaluation.

    Attributes:
        x: [evaluations], such as the loss.
        y: [evaluations], such as 1 - mAP.
    """

    x: Sequence[float]
    y: Sequence[float]


def circle_curve(loss: Loss, seed: int = 0) -> CircleCurve:
    """The loss and its gradient while one point moves on a circle from the other class's center to that of its own.

    There are 64 points on the unit circle, half of each class, spread around (0, 1) and (1, 0). The point that moves
    is one of the second class.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Fig. 4.

    Args:
        loss: a function of a batch with labels.
        seed: of the other points.

    Returns:
        Three times float64 [181].

    Raises:
        InputError: the loss cannot be computed of 32 samples of each of two classes.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> curve = circle_curve(ContrastiveLoss())
        >>> bool(curve.loss[0] > curve.loss[-1])
        True
    """
    loss = copy.deepcopy(loss).double()  # as it may count its calls
    others, labels = _angles_on_circle(seed)
    away = torch.linspace(math.pi / 2, 0, ANGLES, dtype=torch.float64)
    values, gradients = zip(*(_at_angle(loss, angle, others, labels) for angle in away), strict=True)
    return CircleCurve(away.rad2deg(), torch.stack(values), torch.stack(gradients))


def circle_curves(losses: Mapping[str, Loss], out_path: str | Path, seed: int = 0) -> None:
    """Draw :func:`circle_curve` of several losses, beside the points.

    Args:
        losses: name above the panel -> the loss.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).
        seed: of the points.

    Raises:
        InputError: no losses, one that cannot be computed of these points, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> from vicinal.losses import ContrastiveLoss
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     circle_curves({"contrastive": ContrastiveLoss()}, f"{folder}/circle.png")
    """
    _check_any(losses)
    figure, panels = _grid(1 + len(losses))
    _circle_panel(panels[0], seed)
    for panel, (name, loss) in zip(panels[1:], losses.items(), strict=False):
        _curve_panel(panel, name, circle_curve(loss, seed))
    write_figure(figure, Path(out_path))


def ring_embedding(loss: Loss, noise: float = 0.0, steps: int = STEPS, seed: int = 0) -> RingEmbedding:
    """Train a network of three layers to tell five concentric circles apart, and embed points without noise.

    The circles have the radii 1 to 5. A batch has 4 points of each, and the two embedding dimensions are one angle, so
    five arcs apart from each other are the best that can be.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Fig. 11, which has no numbers: width, steps and noise are ours.

    Args:
        loss: a function of a batch with labels; it is copied, and what it learns is learned too.
        noise: standard deviation of what is added to both coordinates in training.
        steps: batches.
        seed: of points, noise and weights.

    Returns:
        Points, labels and embeddings of 80 points of each circle, and the losses.

    Raises:
        InputError: negative noise, no step, or the loss cannot be computed of 4 samples of each of five classes.

    Example:
        >>> from vicinal.losses import ContextualLoss
        >>> ring_embedding(ContextualLoss(), noise=0.1, steps=2).embeddings.shape
        torch.Size([400, 2])
    """
    if not 0 <= noise < math.inf or steps < 1:
        raise InputError(f"noise = {noise} must not be negative, and steps = {steps} at least 1")
    generator = torch.Generator().manual_seed(seed)
    network, loss = _network(generator), copy.deepcopy(loss)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=LEARNING_RATE)
    losses = [_step(network, loss, optimizer, noise, generator) for _ in range(steps)]
    points, labels = _rings(torch.linspace(0, 2 * math.pi, RING_POINTS + 1)[:-1].repeat(RINGS))
    with torch.no_grad():
        embeddings = nn.functional.normalize(network(points))
    return RingEmbedding(points, labels, embeddings, torch.stack(losses))


def ring_embeddings(
    losses: Mapping[str, Loss], out_path: str | Path, noises: Sequence[float] = NOISES, seed: int = 0
) -> None:
    """Draw :func:`ring_embedding` for several losses, a row each, and several amounts of noise.

    The first column has the points without noise, the others their embeddings. These are all on the unit circle; of
    outer circles of the input they are drawn farther outside, so that those which came to the same place are seen.

    Args:
        losses: name beside the row -> the loss.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).
        noises: the standard deviations, a column each.
        seed: of points, noise and weights.

    Raises:
        InputError: as for :func:`ring_embedding`, no losses, no noises, or an unknown suffix.
        OSError: the picture cannot be written.
    """
    _check_any(losses)
    if not noises:
        raise InputError("no noises to draw; give at least one, such as 0")
    size = (1.7 * len(noises) + 2.0, 1.7 * len(losses) + 0.3)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = figure.subplots(len(losses), 1 + len(noises), squeeze=False)
    for row, (name, loss) in zip(panels, losses.items(), strict=True):
        row[0].set_ylabel(_plain(name), color=INK)
        for panel, noise in zip(row[1:], noises, strict=True):
            ring = ring_embedding(loss, noise, seed=seed)
            _ring_panel(panel, ring.embeddings * (1 + 0.12 * ring.labels)[:, None], ring.labels)
        _ring_panel(row[0], ring.points * (1.5 / RINGS), ring.labels)
    for panel, title in zip(panels[0], ["points", *(f"noise {noise:g}" for noise in noises)], strict=True):
        panel.set_title(title, fontsize=9, color=INK)
    write_figure(figure, Path(out_path))


def loss_and_error(log: pd.DataFrame, metrics: pd.DataFrame, part: str = "loss") -> Course:
    """Training loss and 1 - mAP at each evaluation of a run, from its `log.csv` and `metrics.csv`.

    The loss of an evaluation is the mean of what was logged since the one before. So it is that of training batches,
    whereas the mAP is that of the validation split.

    Args:
        log: columns `step` and the part.
        metrics: columns `step` and `mAP`, a line an evaluation.
        part: which column of the log: "loss", or the name of a loss in a sum, such as "ContextualLoss"; times its
            weight in the sum, as it is logged.

    Returns:
        x the loss, y 1 - mAP; evaluations before the first logged step are left out.

    Raises:
        InputError: a column is missing, or no evaluation has a logged step before it.

    Example:
        >>> log = pd.DataFrame({"step": [1, 2, 3, 4], "loss": [4.0, 3.0, 2.0, 1.0]})
        >>> loss_and_error(log, pd.DataFrame({"step": [0, 2, 4], "mAP": [0.25, 0.5, 0.75]}))
        Course(x=[3.5, 1.5], y=[0.5, 0.25])
    """
    _require(log, ("step", part), "log")
    _require(metrics, ("step", "mAP"), "metrics")
    x, y, last = [], [], -math.inf
    for step, precision in zip(metrics["step"], metrics["mAP"], strict=True):
        logged = log[part][(log["step"] > last) & (log["step"] <= step)]
        if len(logged):
            x.append(float(logged.mean()))
            y.append(1 - float(precision))
        last = step
    if not x:
        raise InputError("no evaluation in metrics has a step of the log before it")
    return Course(x, y)


def loss_against_error(runs: Mapping[str, Course], out_path: str | Path) -> None:
    """Draw 1 - mAP against the loss over the course of runs, see :func:`loss_and_error`.

    A loss stands in well for the ranking where its courses are lines that fall together to the lower left. Each
    starts at the dot and ends at the star.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Fig. 3, left.

    Args:
        runs: name -> losses, and 1 - mAP of the same moments.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: no runs, other numbers of losses and mAPs, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loss_against_error({"a run": Course([0.3, 0.2, 0.1], [0.9, 0.6, 0.5])}, f"{folder}/loss.png")
    """
    _courses(runs, "loss", "1 - mAP", Path(out_path))


def train_against_test(runs: Mapping[str, Course], out_path: str | Path) -> None:
    """Draw recall@1 on test images against that on training images over the course of runs.

    Of two runs with the same recall on test images, the one with less on training images has overfitted less. A run
    folder has no recall on training images: it is to be measured on the way, by whoever trains.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Fig. 2.

    Args:
        runs: name -> recall@1 on training images, and that on test images of the same moments, from 0 to 1.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: no runs, other numbers of the two recalls, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_against_test({"a run": Course([0.5, 0.7, 0.9], [0.5, 0.6, 0.65])}, f"{folder}/recall.png")
    """
    percent = {name: Course([100 * x for x in run.x], [100 * y for y in run.y]) for name, run in runs.items()}
    _courses(percent, "recall@1 of training images (%)", "recall@1 of test images (%)", Path(out_path))


def _angles_on_circle(seed: int) -> tuple[Tensor, Tensor]:
    """Angles of all points but the one that moves, and the labels of all; that one comes last."""
    labels = torch.arange(CIRCLE_POINTS) // (CIRCLE_POINTS // 2)
    generator = torch.Generator().manual_seed(seed)
    spread = CIRCLE_SPREAD * torch.randn(CIRCLE_POINTS, generator=generator, dtype=torch.float64)
    return ((1 - labels) * math.pi / 2 + spread)[:-1], labels


def _on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _at_angle(loss: Loss, angle: Tensor, others: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    angle = angle.clone().requires_grad_()
    value = loss(_on_circle(torch.cat([others, angle[None]])), labels)
    (gradient,) = torch.autograd.grad(value, angle)
    return value.detach(), gradient


def _circle_panel(axes: Axes, seed: int) -> None:
    others, labels = _angles_on_circle(seed)
    for label, marker in ((0, "o"), (1, "s")):
        x, y = _on_circle(others[labels[:-1] == label]).T
        axes.plot(x, y, marker, color=COLORS[label], markersize=4, alpha=0.6, markeredgewidth=0)
    x, y = 1.13 * _on_circle(torch.linspace(1.4, 0.1, 60, dtype=torch.float64)).T
    axes.plot(x, y, color=INK, linewidth=1)
    axes.annotate("", (x[-1], y[-1]), (x[-4], y[-4]), arrowprops={"arrowstyle": "->", "color": INK})
    axes.plot(0, 1, "s", color=COLORS[1], markersize=8, markeredgecolor=INK)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _curve_panel(axes: Axes, name: str, curve: CircleCurve) -> None:
    tidy(axes, "loss")
    axes.plot(curve.angle, curve.loss, color=COLORS[0], linewidth=1.6)
    axes.set(xlim=(90, 0), xticks=(90, 60, 30, 0), ylim=(min(0.0, float(curve.loss.min())), None))
    axes.set_title(_plain(name), fontsize=9, color=INK)
    axes.set_xlabel("degrees from its class", fontsize=8, color=INK)
    axes.yaxis.label.set_color(COLORS[0])
    other = axes.twinx()
    other.plot(curve.angle, curve.gradient, color=COLORS[1], linewidth=1.2)
    other.axhline(0, color=PALE, linewidth=0.6)
    other.spines[["top", "left"]].set_visible(False)
    other.tick_params(colors=PALE, labelsize=8)
    other.set_ylabel("gradient", color=COLORS[1])


def _rings(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Points on the circles, as many of each, at the angles [n]; and which circle each is on."""
    labels = torch.arange(RINGS).repeat_interleave(len(angles) // RINGS)
    return (1 + labels)[:, None] * _on_circle(angles), labels


def _network(generator: torch.Generator) -> nn.Sequential:
    sizes = (2, WIDTH), (WIDTH, WIDTH), (WIDTH, 2)
    layers = [nn.utils.skip_init(nn.Linear, *size) for size in sizes]  # type: ignore[no-untyped-call]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        # Without biases the direction of an embedding would not depend on the radius.
        nn.init.normal_(layer.bias, generator=generator)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def _step(
    network: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, noise: float, generator: torch.Generator
) -> Tensor:
    points, labels = _rings(2 * math.pi * torch.rand(RINGS * PER_CLASS, generator=generator))
    value = loss(network(points + noise * torch.randn(points.shape, generator=generator)), labels)
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return value.detach()


def _ring_panel(axes: Axes, points: Tensor, labels: Tensor) -> None:
    for label in range(RINGS):
        x, y = points[labels == label].T
        axes.plot(x, y, "o", color=COLORS[label], markersize=2.5, alpha=0.5, markeredgewidth=0)
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_visible(False)


def _courses(runs: Mapping[str, Course], x_name: str, y_name: str, path: Path) -> None:
    if not runs:
        raise InputError("no runs to draw; give at least one, by name")
    figure = Figure(figsize=(5.2, 3.8), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    tidy(axes, y_name)
    axes.set_xlabel(x_name, color=INK)
    for number, (name, (x, y)) in enumerate(runs.items()):
        if len(x) != len(y) or not len(x):
            raise InputError(f"{name}: {len(x)} and {len(y)} numbers; give two of each evaluation, at least one")
        color = COLORS[number % len(COLORS)]
        axes.plot(x, y, "--", color=color, linewidth=1.4, label=_plain(name))
        axes.plot(x[0], y[0], "o", color=color, markersize=4)
        axes.plot(x[-1], y[-1], "*", color=color, markersize=11)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    write_figure(figure, path)


def _grid(panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with room for panels; those beyond are hidden."""
    columns = min(panels, MOST_COLUMNS)
    rows = math.ceil(panels / columns)
    size = columns * PANEL_INCHES[0] + 0.2, rows * PANEL_INCHES[1] + 0.2
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, panel in enumerate(axes):
        panel.set_visible(number < panels)
    return figure, axes


def _check_any(losses: Mapping[str, Loss]) -> None:
    if not losses:
        raise InputError("no losses to draw; give at least one, by name")


def _plain(name: str) -> str:
    return name.replace("$", r"\$")


def _require(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    for column in columns:
        if column not in frame:
            raise InputError(f"{name} has no column {column!r}; its columns are {', '.join(map(str, frame.columns))}")
