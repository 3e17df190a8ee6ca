from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples.figures import pair_weights
from examples.figures.pair_weights import weight_curves
from vicinal.losses import ContrastiveLoss, LiftedStructureLoss, Loss, SupConLoss


@pytest.fixture(autouse=True)
def _few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_weights, "SIMILARITIES", torch.linspace(-0.9, 0.9, 19, dtype=torch.float64))


def curves(loss: Loss, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Label -> x and y of each line of the one panel."""
    panels = []
    monkeypatch.setattr(pair_weights, "tidy", lambda axes, name: panels.append(axes))
    weight_curves({"a loss": loss}, folder / "one.png")
    (axes,) = panels
    assert axes.get_title() == "a loss"
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_curves_are_the_formulas_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrastive: steps at the margins. Lifted structure: w- = exp(s) / (exp(s) + the others), Eq. (8)."""
    shown = curves(ContrastiveLoss(0.85, 0.55, reduction="sum"), monkeypatch, tmp_path)
    x, y = shown["positive pair"]
    np.testing.assert_allclose(x, np.linspace(-0.9, 0.9, 19), atol=1e-12)
    np.testing.assert_allclose(y, np.less(x, 0.85))
    np.testing.assert_allclose(shown["negative pair"][1], np.greater(x, 0.55))
    shown = curves(LiftedStructureLoss(), monkeypatch, tmp_path)
    for kind, center, width, count, sign in (("positive", 0.6, 0.15, 8, -1), ("negative", 0.15, 0.2, 40, 1)):
        quantiles = torch.distributions.Normal(center, width).icdf((torch.arange(count, dtype=float) + 0.5) / count)
        expected = np.exp(sign * np.array(x)) / (np.exp(sign * np.array(x)) + np.exp(sign * quantiles.numpy()).sum())
        np.testing.assert_allclose(shown[f"{kind} pair"][1], expected / expected.max(), rtol=1e-6)


def test_a_positive_that_is_pushed_apart_is_drawn_below_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = curves(SupConLoss(), monkeypatch, tmp_path)
    assert min(shown["positive pair"][1]) == -1
    assert min(shown["negative pair"][1]) >= 0
    assert max(shown["negative pair"][1]) == 1


@pytest.mark.slow
def test_the_losses_of_the_figure_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_weights, "SIMILARITIES", torch.tensor([-0.5, 0.1, 0.7], dtype=torch.float64))
    weight_curves(pair_weights.LOSSES, tmp_path / "all.png")
    assert Image.open(tmp_path / "all.png").size == (1410, 1695)
