"""Figures of the contextual loss: a point on a circle, rings, and the course of a run."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from examples.figures import contextual_progress, contextual_rings
from examples.figures.contextual_circle import circle_curve
from examples.figures.contextual_progress import Progress, loss_against_error, loss_and_error, train_against_test
from examples.figures.contextual_rings import ring_embedding, ring_embeddings
from vicinal.losses import ContextualLoss, ContrastiveLoss, MultiSimilarityLoss


def test_figure_4() -> None:
    """The contextual loss ends at 0, and its gradient draws the point to its class until then."""
    curve = circle_curve(ContextualLoss())
    assert curve.loss[0] > 0.02
    assert curve.loss[-1] < 1e-4
    assert (curve.grad_angle[curve.loss > 1e-3] > 0.05).all()
    assert curve.grad_angle[-1].abs() < 1e-2
    contrastive = circle_curve(ContrastiveLoss())
    assert contrastive.loss[-1] > 0.05  # it goes on to margins


def test_the_curve_is_the_losses_own() -> None:
    """By finite differences, of a loss that is smooth."""
    curve = circle_curve(MultiSimilarityLoss(miner=None))
    slope = (curve.loss[2:] - curve.loss[:-2]) / (curve.angle[2:] - curve.angle[:-2]).deg2rad()
    torch.testing.assert_close(
        curve.grad_angle[1:-1], slope, rtol=0.02, atol=0.02 * curve.grad_angle.abs().max().item()
    )


def r_precision(embeddings: Tensor, labels: Tensor) -> float:
    """R-precision; each sample is its own neighbor too."""
    nearest = (embeddings @ embeddings.T).topk(80, dim=1).indices
    return (labels[nearest] == labels[:, None]).float().mean().item()


@pytest.mark.slow
def test_figure_11() -> None:
    """Step 1 alone sorts the circles, also where they are noisy."""
    for noise, least in ((0.0, 0.95), (0.3, 0.8)):
        ring = ring_embedding(ContextualLoss(intersection=False, expansion=False), noise)
        assert r_precision(ring.embeddings, ring.labels) > least
        assert ring.losses[-50:].mean() < 0.5 * ring.losses[:20].mean()


def test_rings() -> None:
    ring, same, other = (ring_embedding(ContextualLoss(), num_steps=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(ring.embeddings, same.embeddings)
    assert not torch.allclose(ring.embeddings, other.embeddings)
    assert ring.labels.bincount().tolist() == [80] * 5
    torch.testing.assert_close(ring.points.norm(dim=1), 1.0 + ring.labels)
    torch.testing.assert_close(ring.embeddings.norm(dim=1), torch.ones(400))
    assert (ring.losses.shape, ring.embeddings.requires_grad) == ((3,), False)


def test_ring_embeddings_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual_rings, "ring_embedding", lambda loss, noise, seed: ring_embedding(loss, noise, 1))
    ring_embeddings({"a": ContrastiveLoss()}, tmp_path / "rings.png", noises=(0.5,))
    image = np.asarray(Image.open(tmp_path / "rings.png").convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20


LOG = pd.DataFrame({"step": [5, 10, 15, 20], "loss": [4.0, 3.0, 2.0, 1.0], "ContextualLoss": [0.4, 0.2, 0.2, 0.0]})
METRICS = pd.DataFrame({"step": [0, 10, 20, 22], "epoch": [0, 1, 2, 3], "mAP": [0.1, 0.5, 0.75, 0.8]})


def test_loss_and_error_of_a_run() -> None:
    """The loss since the last evaluation; those without one, such as that before training, are left out."""
    assert loss_and_error(LOG, METRICS) == Progress([3.5, 1.5], [0.5, 0.25])
    assert loss_and_error(LOG, METRICS, "ContextualLoss").x == pytest.approx([0.3, 0.1])


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """The panels that are drawn from now on, by the name beside each panel."""
    panels: dict[str, Axes] = {}
    monkeypatch.setattr(contextual_progress, "tidy", lambda axes, name: panels.update({name: axes}))
    return panels


def test_progress_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"first": Progress([0.3, 0.2, 0.1], [0.9, 0.6, 0.5]), "second": Progress((0.5,), (0.25,))}
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
