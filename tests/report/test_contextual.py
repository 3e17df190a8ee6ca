from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss, MarginLoss, MultiSimilarityLoss
from vicinal.mining import DistanceWeightedMiner
from vicinal.report import contextual
from vicinal.report.contextual import (
    Course,
    circle_curve,
    circle_curves,
    loss_against_error,
    loss_and_error,
    ring_embedding,
    ring_embeddings,
    train_against_test,
)
from vicinal.similarity import Source


class Seen(Loss):
    """Remembers what it is shown, and says how far apart the last point and (1, 0) are."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[Tensor, Tensor]] = []

    def __deepcopy__(self, memo: object) -> Seen:
        return self

    def _parts(self, source: Source) -> dict[str, Tensor]:
        self.batches.append((source.anchors.detach(), source.labels))
        return {"Seen": 1 - source.anchors[-1, 0]}


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """What is drawn from now on, by the name beside each panel."""
    panels: dict[str, Axes] = {}
    monkeypatch.setattr(contextual, "tidy", lambda axes, name: panels.update({name: axes}))
    return panels


# One point on a circle ------------------------------------------------------------------------------------------------


def test_one_point_moves_from_the_other_class_to_its_own() -> None:
    seen = Seen()
    curve = circle_curve(seen)
    assert curve.angle[0] == 90
    assert curve.angle[-1] == 0
    assert len(seen.batches) == len(curve.angle) == 181
    first, labels = seen.batches[0]
    assert len(first) == 64
    assert labels.bincount().tolist() == [32, 32]
    torch.testing.assert_close(first.norm(dim=1), torch.ones(64, dtype=torch.float64))
    for angle, (points, _) in zip(curve.angle.deg2rad(), seen.batches, strict=True):
        torch.testing.assert_close(points[-1], torch.stack([angle.cos(), angle.sin()]))
        assert torch.equal(points[:-1], first[:-1])
    for label, center in ((0, [0.0, 1.0]), (1, [1.0, 0.0])):
        mean = first[:-1][labels[:-1] == label].mean(dim=0)
        torch.testing.assert_close(mean, torch.tensor(center, dtype=torch.float64), atol=0.1, rtol=0)
    # 1 - cos(angle) and its derivative.
    torch.testing.assert_close(curve.loss, 1 - curve.angle.deg2rad().cos())
    torch.testing.assert_close(curve.gradient, curve.angle.deg2rad().sin())


def test_figure_4() -> None:
    """The contextual loss ends at 0, and its gradient draws the point to its class until then."""
    curve = circle_curve(ContextualLoss())
    assert curve.loss[0] > 0.02
    assert curve.loss[-1] < 1e-4
    assert (curve.gradient[curve.loss > 1e-3] > 0.05).all()
    assert curve.gradient[-1].abs() < 1e-2
    contrastive = circle_curve(ContrastiveLoss())
    assert contrastive.loss[-1] > 0.05  # it goes on to margins


def test_the_curve_is_the_losses_own() -> None:
    """By finite differences, of a loss that is smooth."""
    curve = circle_curve(MultiSimilarityLoss(miner=None))
    slope = (curve.loss[2:] - curve.loss[:-2]) / (curve.angle[2:] - curve.angle[:-2]).deg2rad()
    torch.testing.assert_close(curve.gradient[1:-1], slope, rtol=0.02, atol=0.02 * curve.gradient.abs().max().item())


def test_seed_and_state() -> None:
    loss = MarginLoss(miner=DistanceWeightedMiner())
    state = copy.deepcopy(loss.state_dict())
    before = torch.get_rng_state()
    first, same, other = (circle_curve(loss, seed) for seed in (0, 0, 1))
    assert torch.equal(first.loss, same.loss)
    assert not torch.allclose(first.loss, other.loss)
    assert torch.equal(torch.get_rng_state(), before)
    assert state.keys() == loss.state_dict().keys()
    assert all(torch.equal(state[name], part) for name, part in loss.state_dict().items())
    assert loss.beta.dtype == torch.float32


def test_circle_curves_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = drawn(monkeypatch)
    circle_curves({"contextual $": ContextualLoss()}, tmp_path / "circle.png")
    curve, line = circle_curve(ContextualLoss()), panels["loss"].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), curve.angle)
    np.testing.assert_array_equal(line.get_ydata(), curve.loss)
    (twin,) = [axes for axes in panels["loss"].figure.axes if axes.get_ylabel() == "gradient"]
    np.testing.assert_array_equal(twin.lines[0].get_ydata(), curve.gradient)
    assert panels["loss"].get_xlim() == (90, 0)
    assert Image.open(tmp_path / "circle.png").width > 600
    losses = {str(number): ContrastiveLoss() for number in range(4)}
    circle_curves(losses, tmp_path / "more.pdf")
    assert (tmp_path / "more.pdf").read_bytes().startswith(b"%PDF")


# Concentric circles ---------------------------------------------------------------------------------------------------


def share_of_own_class(embeddings: Tensor, labels: Tensor) -> float:
    """R-precision, each sample among its own."""
    nearest = (embeddings @ embeddings.T).topk(80, dim=1).indices
    return (labels[nearest] == labels[:, None]).float().mean().item()


@pytest.mark.slow
def test_figure_11() -> None:
    """Step 1 alone sorts the circles, also where they are noisy."""
    for noise, least in ((0.0, 0.95), (0.3, 0.8)):
        ring = ring_embedding(ContextualLoss(intersection=False, expansion=False), noise)
        assert share_of_own_class(ring.embeddings, ring.labels) > least
        assert ring.losses[-50:].mean() < 0.5 * ring.losses[:20].mean()


def test_rings() -> None:
    ring = ring_embedding(ContextualLoss(), steps=3)
    assert ring.points.shape == ring.embeddings.shape == (400, 2)
    assert ring.labels.bincount().tolist() == [80] * 5
    torch.testing.assert_close(ring.points.norm(dim=1), 1.0 + ring.labels)
    assert ring.points.unique(dim=0).shape == (400, 2)
    torch.testing.assert_close(ring.embeddings.norm(dim=1), torch.ones(400))
    assert ring.losses.shape == (3,)
    assert not ring.embeddings.requires_grad


def test_batches_of_rings_have_four_of_each() -> None:
    seen = Seen()
    ring_embedding(seen, steps=2, noise=0.5)
    assert [labels.bincount().tolist() for _, labels in seen.batches] == [[4] * 5] * 2
    assert not torch.equal(seen.batches[0][0], seen.batches[1][0])


def test_noise_is_that_of_training_alone() -> None:
    quiet, noisy = (ring_embedding(ContextualLoss(), noise, steps=1) for noise in (0.0, 1.0))
    assert torch.equal(quiet.points, noisy.points)
    assert quiet.losses != noisy.losses


def test_rings_are_seeded_and_change_nothing() -> None:
    loss, before = MarginLoss(), torch.get_rng_state()
    first, same, other = (ring_embedding(loss, 0.1, steps=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.embeddings, same.embeddings)
    assert not torch.allclose(first.embeddings, other.embeddings)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loss.beta, MarginLoss().beta)


def test_ring_embeddings_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(contextual, "STEPS", 1)
    monkeypatch.setattr(contextual, "_ring_panel", lambda axes, points, labels: shown.append(points))
    given = []
    monkeypatch.setattr(
        contextual, "ring_embedding", lambda loss, noise, seed: given.append(noise) or ring_embedding(loss, noise, 1)
    )
    ring_embeddings({"a": ContrastiveLoss(), "b": ContextualLoss()}, tmp_path / "rings.png", noises=(0, 0.5))
    assert given == [0, 0.5] * 2
    assert len(shown) == 6
    radii = shown[0].norm(dim=1).view(5, 80)
    torch.testing.assert_close(radii, (1 + 0.12 * torch.arange(5.0))[:, None].expand(5, 80))
    monkeypatch.undo()
    monkeypatch.setattr(contextual, "ring_embedding", lambda loss, noise, seed: ring_embedding(loss, noise, 1))
    ring_embeddings({"a": ContrastiveLoss()}, tmp_path / "rings.png", noises=(0.5,))
    image = np.asarray(Image.open(tmp_path / "rings.png").convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20


# Courses of runs ------------------------------------------------------------------------------------------------------

LOG = pd.DataFrame({"step": [5, 10, 15, 20], "loss": [4.0, 3.0, 2.0, 1.0], "ContextualLoss": [0.4, 0.2, 0.2, 0.0]})
METRICS = pd.DataFrame({"step": [0, 10, 20, 22], "epoch": [0, 1, 2, 3], "mAP": [0.1, 0.5, 0.75, 0.8]})


def test_loss_and_error_of_a_run() -> None:
    """The loss since the last evaluation; those without one, such as that before training, are left out."""
    assert loss_and_error(LOG, METRICS) == Course([3.5, 1.5], [0.5, 0.25])
    assert loss_and_error(LOG, METRICS, "ContextualLoss").x == pytest.approx([0.3, 0.1])


def test_loss_and_error_of_other_tables() -> None:
    with pytest.raises(InputError, match="log has no column 'Contextual'; its columns are step, loss, ContextualLoss"):
        loss_and_error(LOG, METRICS, "Contextual")
    with pytest.raises(InputError, match="metrics has no column 'mAP'"):
        loss_and_error(LOG, METRICS.drop(columns="mAP"))
    for metrics in (METRICS[:1], METRICS[:0]):
        with pytest.raises(InputError, match="no evaluation in metrics has a step of the log before it"):
            loss_and_error(LOG, metrics)


def test_courses_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"first": Course([0.3, 0.2, 0.1], [0.9, 0.6, 0.5]), "second": Course((0.5,), (0.25,))}
    for draw, name, factor in (
        (loss_against_error, "1 - mAP", 1),
        (train_against_test, "recall@1 of test images (%)", 100),
    ):
        panels = drawn(monkeypatch)
        draw(runs, tmp_path / "course.png")
        line, start, end, *others = panels[name].lines
        assert line.get_label() == "first"
        np.testing.assert_allclose(line.get_xdata(), factor * np.array([0.3, 0.2, 0.1]))
        np.testing.assert_allclose(line.get_ydata(), factor * np.array([0.9, 0.6, 0.5]))
        assert (start.get_marker(), end.get_marker()) == ("o", "*")
        assert end.get_xdata()[0] == pytest.approx(0.1 * factor)
        assert len(others) == 3
        assert Image.open(tmp_path / "course.png").size == (780, 570)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [circle_curves, ring_embeddings, loss_against_error, train_against_test])
def test_nothing_to_draw(draw: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no (losses|runs) to draw; give at least one, by name"):
        draw({}, tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path: Path) -> None:
    for noise, steps in ((-0.1, 5), (math.nan, 5), (math.inf, 5), (0.1, 0)):
        with pytest.raises(InputError, match=f"noise = {noise} must not be negative, and steps = {steps} at least 1"):
            ring_embedding(ContrastiveLoss(), noise, steps)
    with pytest.raises(InputError, match="no noises to draw"):
        ring_embeddings({"a": ContrastiveLoss()}, tmp_path / "rings.png", noises=())
    for x, y in (([0.1], [0.2, 0.3]), ([], [])):
        with pytest.raises(InputError, match=f"^bad: {len(x)} and {len(y)} numbers"):
            loss_against_error({"bad": Course(x, y)}, tmp_path / "course.png")
    with pytest.raises(InputError, match="pictures end in"):
        train_against_test({"a": Course([0.1], [0.2])}, tmp_path / "course.doc")
    assert not list(tmp_path.iterdir())
