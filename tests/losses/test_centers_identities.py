"""The losses of class centers as special cases of each other and of losses of pairs, as CCL's Section 3.3 has them."""

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
    ClusterContrastLoss,
    CosFaceLoss,
    CrossEntropyLoss,
    Loss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    NPairsLoss,
    NTXentLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
    SupConLoss,
)
from vicinal.similarity.embeddings import normalize
from vicinal.similarity.pair_source import PairSource

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


def test_soft_triple_with_centers_that_are_the_same() -> None:
    """They have the gradient of one in equal parts; their distance is at its floor."""
    value, by_x, grad_centers = values(made(SoftTripleLoss, centers_per_class=3, margin=0, regularizer=0))
    expected = values(made(NormSoftmaxLoss))
    torch.testing.assert_close([value, by_x, grad_centers.view(-1, 3, DIM).sum(1)], expected, rtol=1e-10, atol=1e-12)


# CCL's equations ------------------------------------------------------------------------------------------------------


def similarities(scale: float) -> tuple[Tensor, Tensor]:
    """S(x, c) of Eq. (10), [n, classes], and those to the own class, [n, 1]."""
    s = scale * normalize(X) @ normalize(CENTERS).T
    return s, s.gather(1, LABELS[:, None])


def of_others(s: Tensor) -> Tensor:
    """The sum over the other classes, [n]."""
    return s.scatter(1, LABELS[:, None], 0.0).sum(dim=1)


def anchor_values(loss: CenterBasedLoss) -> Tensor:
    return loss.anchor_values(PairSource.from_batch(X, LABELS))


def test_eq_4_the_center_term_is_the_squared_distance() -> None:
    """Less its constant, value and gradients."""
    whole, contrast = (values(made(CenterContrastiveLoss, center_weight=weight)) for weight in (1.5, 0))

    def squares(x: Tensor, labels: Tensor) -> Tensor:
        return (normalize(x) - normalize(centers)[labels]).square().sum(dim=1).mean()

    centers = CENTERS.clone().requires_grad_()
    expected = value_and_gradients(squares, BATCH, [centers])
    expected[0] -= 2
    differences = [a - b for a, b in zip(whole, contrast, strict=True)]
    torch.testing.assert_close(differences, [1.5 * part for part in expected], rtol=1e-9, atol=1e-12)


def test_eq_9_proxy_nca_is_without_the_positive_in_the_sum() -> None:
    contrast, nca = anchor_values(made(CenterContrastiveLoss, **CCL, scale=2)), anchor_values(made(ProxyNCALoss))
    torch.testing.assert_close(nca, contrast.expm1().log(), rtol=1e-10, atol=1e-12)
    s, own = similarities(2)
    torch.testing.assert_close(nca, -(own[:, 0].exp() / of_others(s.exp())).log(), rtol=1e-10, atol=1e-12)


def test_cross_entropy_of_unit_vectors_is_norm_softmax() -> None:
    """With embeddings as long as the scale, and no biases."""
    loss = made(CrossEntropyLoss)
    loss.centers.data = normalize(CENTERS)
    torch.testing.assert_close(loss(16 * normalize(X), LABELS), made(NormSoftmaxLoss, scale=16)(X, LABELS))


@pytest.mark.parametrize("more", [{}, {"margin": 0.3}, {"label_smoothing": 0.0}, {"center_weight": 0.0}])
def test_stopped_gradient(more: dict[str, float]) -> None:
    """The same value and gradient by embeddings; the centers' is that of the center term alone."""
    value, by_x, grad_centers = values(
        made(CenterContrastiveLoss, **{"center_weight": 1.5, **more}, stop_gradient=True)
    )
    expected = values(made(CenterContrastiveLoss, **{"center_weight": 1.5, **more}))
    torch.testing.assert_close([value, by_x], expected[:2], rtol=1e-10, atol=1e-12)
    without = values(made(CenterContrastiveLoss, **{**more, "center_weight": 0.0}))
    torch.testing.assert_close(grad_centers, expected[2] - without[2], rtol=1e-9, atol=1e-12)


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


# Centers are references -----------------------------------------------------------------------------------------------

AGAINST_CENTERS: dict[str, tuple[CenterBasedLoss, Loss]] = {
    "NormSoftmax is NT-Xent": (made(NormSoftmaxLoss), NTXentLoss(temperature=1 / 20)),
    "NormSoftmax is SupCon": (made(NormSoftmaxLoss), SupConLoss(temperature=1 / 20, reduction="anchors")),
    "NormSoftmax is NCA": (made(NormSoftmaxLoss), NCALoss(scale=20, reduction="anchors")),
    "NormSoftmax is N-pairs": (made(NormSoftmaxLoss), NPairsLoss(scale=20)),
    "cluster contrast is NT-Xent": (made(ClusterContrastLoss).eval(), NTXentLoss(temperature=1 / 20)),
}


def test_proxy_anchor_is_multi_similarity_of_centers_against_the_batch() -> None:
    """Without margin and where all classes are in the batch: the anchors are centers."""
    loss = ProxyAnchorLoss(10, DIM, alpha=6, margin=0).double()
    loss.centers.data = CENTERS[:10].clone()
    value, by_x, grad_centers = value_and_gradients(loss, BATCH, [loss.centers])
    of_pairs = 6 * MultiSimilarityLoss(alpha=6, beta=6, base=0, miner=None)
    expected = value_and_gradients(of_pairs, Batch(CENTERS[:10], torch.arange(10), X, LABELS))
    torch.testing.assert_close([value, grad_centers, by_x], expected, rtol=1e-9, atol=1e-12)
