"""Center-based losses as special cases of each other and of pair losses, as CCL's Section 3.3 has them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch
from tests.losses.center_cases import BATCHES
from tests.losses.gradients import value_and_gradients
from vicinal.losses import (
    ArcFaceLoss,
    CenterBasedLoss,
    CenterContrastiveLoss,
    CenterLoss,
    CosFaceLoss,
    CrossEntropyLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
)
from vicinal.similarity.embeddings import normalize

BATCH, CLASSES, DIM = BATCHES["many classes"], 12, 8  # two of the classes are not in the batch
X, LABELS = BATCH.embeddings, BATCH.labels
CENTERS = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def made(kind: type[CenterBasedLoss], **arguments: object) -> CenterBasedLoss:
    """Such a loss with the centers above."""
    loss = kind(num_classes=CLASSES, dim=DIM, **arguments).double()
    centers_per_class = arguments.get("centers_per_class", 10 if kind is SoftTripleLoss else 1)
    loss.centers.data = CENTERS.repeat_interleave(centers_per_class, dim=0)
    return loss


def values(loss: CenterBasedLoss, batch: Batch = BATCH) -> list[Tensor]:
    return value_and_gradients(loss, batch, [loss.centers])


def assert_same(loss: CenterBasedLoss, other: CenterBasedLoss) -> None:
    torch.testing.assert_close(values(loss), values(other), rtol=1e-10, atol=1e-12)


CCL = {"label_smoothing": 0, "center_weight": 0}
SAME: dict[str, tuple[CenterBasedLoss, CenterBasedLoss]] = {
    "CCL without center term and margin is NormSoftmax": (
        made(CenterContrastiveLoss, **CCL),
        made(NormSoftmaxLoss, scale=16),
    ),
    "so it is with label smoothing": (
        made(CenterContrastiveLoss, center_weight=0),
        made(NormSoftmaxLoss, scale=16, label_smoothing=0.1),
    ),
    "CCL without center term is CosFace": (
        made(CenterContrastiveLoss, margin=0.3, **CCL),
        made(CosFaceLoss, scale=16, margin=0.3),
    ),
    "CosFace without margin is NormSoftmax": (made(CosFaceLoss, margin=0), made(NormSoftmaxLoss, scale=64)),
    "ArcFace without margin is NormSoftmax": (made(ArcFaceLoss, margin=0), made(NormSoftmaxLoss, scale=64)),
    "ProxyNCA++ is NormSoftmax": (made(ProxyNCAPlusPlusLoss), made(NormSoftmaxLoss, scale=18)),
    "SoftTriple with one center is NormSoftmax": (
        made(SoftTripleLoss, centers_per_class=1, margin=0),
        made(NormSoftmaxLoss),
    ),
    "SoftTriple with one center and margin is CosFace": (
        made(SoftTripleLoss, centers_per_class=1, margin=0.2),
        made(CosFaceLoss, scale=20, margin=0.2),
    ),
    "center loss without center term is cross-entropy": (made(CenterLoss, center_weight=0), made(CrossEntropyLoss)),
}


@pytest.mark.parametrize("name", SAME)
def test_same(name: str) -> None:
    assert_same(*SAME[name])


def test_cross_entropy_of_unit_vectors_is_norm_softmax() -> None:
    """With embeddings as long as the scale, and no biases."""
    loss = made(CrossEntropyLoss)
    loss.centers.data = normalize(CENTERS)
    torch.testing.assert_close(loss(16 * normalize(X), LABELS), made(NormSoftmaxLoss, scale=16)(X, LABELS))


def test_stopped_gradient_draws_centers_to_their_class() -> None:
    """Its steps end where the momentum of Eq. (14) ends: at the mean direction of the class."""
    loss = made(CenterContrastiveLoss, stop_gradient=True)
    optimizer = torch.optim.SGD(loss.parameters(), lr=50.0)
    for _ in range(20):
        optimizer.zero_grad()
        loss(X, LABELS).backward()
        optimizer.step()
    for y in range(10):
        mean = normalize(normalize(X[y == LABELS]).mean(dim=0, keepdim=True))
        torch.testing.assert_close(normalize(loss.centers.detach()[y : y + 1]), mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(loss.centers.detach()[10:], CENTERS[10:], rtol=0, atol=0)


def test_proxy_anchor_is_multi_similarity_of_centers_against_the_batch() -> None:
    """Without margin and where all classes are in the batch: the anchors are centers."""
    loss = ProxyAnchorLoss(10, DIM, alpha=6, margin=0).double()
    loss.centers.data = CENTERS[:10].clone()
    value, by_x, grad_centers = value_and_gradients(loss, BATCH, [loss.centers])
    of_pairs = 6 * MultiSimilarityLoss(alpha=6, beta=6, base=0, miner=None)
    expected = value_and_gradients(of_pairs, Batch(CENTERS[:10], torch.arange(10), X, LABELS))
    torch.testing.assert_close([value, grad_centers, by_x], expected, rtol=1e-9, atol=1e-12)
