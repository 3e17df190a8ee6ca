import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.figures import center_embeddings
from examples.figures.center_embeddings import PlaneEmbedding, benchmark_digits, digit_embedding, spread
from tests.data.benchmarks.published_more import accept_small_more, write_mnist
from vicinal.losses import CenterContrastiveLoss, CenterLoss

CCL = CenterContrastiveLoss(scale=16, margin=0, center_weight=2, label_smoothing=0)


def at(*polar: tuple[float, float]) -> Tensor:
    """Points from their lengths and angles in degrees."""
    lengths, degrees = torch.tensor(polar, dtype=torch.float64).T
    return lengths[:, None] * torch.stack([degrees.deg2rad().cos(), degrees.deg2rad().sin()], dim=1)


def test_a_third_of_the_digits_is_not_trained_on() -> None:
    """And nothing but the digits in the plane comes out: seeded, with their lengths, and the loss as it was."""
    loss, before = CenterLoss(center_weight=0.05), torch.get_rng_state()
    learned, unseen = (digit_embedding(loss, epochs=1, test=unseen) for unseen in (False, True))
    assert torch.equal(torch.get_rng_state(), before)
    assert loss.centers is None
    assert torch.equal(learned.centers, unseen.centers)
    assert learned.are_points
    assert (learned.centers.norm(dim=1) > 0.03).all()  # they start at 0, and have a learning rate of their own
    assert learned.embeddings.norm(dim=1).std() > 1e-3
    everything = torch.cat([learned.labels, unseen.labels]).bincount().tolist()
    assert everything == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    both = torch.cat([learned.embeddings, unseen.embeddings])
    assert (len(learned.embeddings), len(both), len(both.unique(dim=0))) == (1198, 1797, 1797)  # none is in both
    assert not both.requires_grad


def test_the_digits_of_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)
    write_mnist(tmp_path)
    digits = benchmark_digits("mnist", tmp_path)
    assert (digits.images.shape, digits.test_images.shape) == ((30, 1, 8, 8), (12, 1, 8, 8))
    assert digits.images.max() <= 1
    assert digits.labels.bincount().tolist() == [5] * 6
    embedding = digit_embedding(CCL, epochs=1, test=True, digits=digits)
    assert torch.equal(embedding.labels, digits.test_labels)
    large = digits._replace(images=torch.rand(30, 1, 28, 28), test_images=torch.rand(12, 1, 28, 28))
    assert digit_embedding(CCL, epochs=1, digits=large).embeddings.shape == (30, 2)


@pytest.mark.slow
def test_figure_4() -> None:
    losses = center_embeddings.LOSSES.values()
    entropy, softmax, center, contrastive = (spread(digit_embedding(loss)) for loss in losses)
    assert contrastive.angle < 0.6 * entropy.angle
    assert contrastive.angle < 0.75 * center.angle
    assert contrastive.nearest_direction > 0.99
    # Center loss tells classes apart in the plane, less so by angle; in the plane no other has classes as compact.
    assert center.nearest_mean > 0.99
    assert center.nearest_mean > center.nearest_direction
    assert center.nearest_mean > max(entropy.nearest_mean, softmax.nearest_mean, contrastive.nearest_mean)
    assert center.radius < 0.7 * min(entropy.radius, softmax.radius, contrastive.radius)


def test_spread_by_hand() -> None:
    """Class 0 at 350, 10 and 0 degrees, class 1 at 60 and 80, and one of class 1 among class 0."""
    points = at((1, 350), (1, 10), (4, 0), (6, 60), (6, 80))
    found = spread(PlaneEmbedding(points, torch.tensor([0, 0, 0, 1, 1]), torch.eye(2)))
    assert found.nearest_direction == 1
    assert found.angle == pytest.approx(math.sqrt((100 + 100 + 0 + 100 + 100) / 5))
    assert found.radius == pytest.approx(math.sqrt((0.5**2 + 0.5**2 + 1) / 5))
    assert found.nearest_mean == 1
    mixed = spread(PlaneEmbedding(torch.cat([points, at((1, 0))]), torch.tensor([0, 0, 0, 1, 1, 1]), torch.eye(2)))
    assert mixed.nearest_direction == pytest.approx(5 / 6)
    far = spread(PlaneEmbedding(at((1, 0), (9, 0), (3, 20)), torch.tensor([0, 0, 1]), torch.eye(2)))
    assert far.nearest_direction == 1
    assert far.nearest_mean == pytest.approx(2 / 3)  # (1, 0) is nearer to the other class than to (5, 0)
