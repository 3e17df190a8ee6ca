from __future__ import annotations

import torch
from torch import Tensor

from examples.figures.contextual_circle import circle_curve
from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss, MultiSimilarityLoss
from vicinal.similarity.pair_source import PairSource


class Seen(Loss):
    """Remembers its batches, and says how far apart the last point and (1, 0) are."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[Tensor, Tensor]] = []

    def __deepcopy__(self, memo: object) -> Seen:
        return self

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        self.batches.append((source.anchors.detach(), source.labels))
        return {"Seen": 1 - source.anchors[-1, 0]}


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
    torch.testing.assert_close(curve.grad_angle, curve.angle.deg2rad().sin())


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
