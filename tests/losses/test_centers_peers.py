"""Beside pytorch-metric-learning 2.9: equal where its formula is ours, explained where it is not."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import regularizers
from torch import Tensor, nn

from tests.losses.batches import Batch
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal.losses import ArcFaceLoss, CenterBasedLoss, CosFaceLoss, NormSoftmaxLoss, ProxyAnchorLoss, SoftTripleLoss

CLASSES, DIM = 9, 16


def batch_of(seed: int) -> Batch:
    """Of all classes but the last two, unequal ones, around centers of their own."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, DIM, generator=generator)
    labels = torch.randint(CLASSES - 2, (40,), generator=generator)
    return Batch(means[labels] + torch.randn(40, DIM, generator=generator), labels)


def centers_of(peer: nn.Module) -> Tensor:
    """Its centers, [centers, d]; some of its losses have them as columns."""
    (centers,) = peer.parameters()
    return centers if len(centers) != DIM else centers.T


def assert_equal(ours: CenterBasedLoss, peer: nn.Module, relative: float = 1e-4) -> None:
    """The same value and gradients by embeddings and centers from the peer's centers, in float32 as it is used."""
    ours.centers.data = centers_of(peer).detach().clone()
    for seed in range(3):
        batch = batch_of(seed)
        got = value_and_gradients(ours, batch, [ours.centers])
        value, grad_embeddings, grad_centers = value_and_gradients(peer, batch, list(peer.parameters()))
        expected = [value, grad_embeddings, grad_centers if len(grad_centers) != DIM else grad_centers.T]
        assert_near(got, expected, relative)


def made(kind: type[nn.Module], **arguments: object) -> nn.Module:
    torch.manual_seed(0)
    dim = {"dim" if issubclass(kind, CenterBasedLoss) else "embedding_size": DIM}
    return kind(num_classes=CLASSES, **dim, **arguments)


PAIRS = {
    "NormSoftmax": (made(NormSoftmaxLoss), made(peers.NormalizedSoftmaxLoss)),
    "CosFace": (made(CosFaceLoss), made(peers.CosFaceLoss)),
    # Their margin is in degrees, 28.6 by default, and beyond pi the exponent is the same.
    "ArcFace": (made(ArcFaceLoss), made(peers.ArcFaceLoss, margin=math.degrees(0.5))),
    # Theirs has the own class in the sum: it is normalized softmax, at scale 2 for squared distances.
    "ProxyNCA": (made(NormSoftmaxLoss, scale=2), made(peers.ProxyNCALoss)),
    "ProxyAnchor": (made(ProxyAnchorLoss), made(peers.ProxyAnchorLoss)),
    "SoftTriple, 3": (
        made(SoftTripleLoss, centers_per_class=3, gamma=0.5, margin=0.2, scale=8, regularizer=0),
        made(peers.SoftTripleLoss, centers_per_class=3, gamma=0.5, margin=0.2, la=8),
    ),
    # Theirs comes without the paper's regulariser, which is a part of its own: the distance of centers, halved.
    "SoftTriple, regularised": (
        made(SoftTripleLoss, centers_per_class=5, regularizer=0.2),
        made(
            peers.SoftTripleLoss,
            centers_per_class=5,
            weight_regularizer=regularizers.SparseCentersRegularizer(CLASSES, 5),
            weight_reg_weight=0.2,
        ),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_same_formula(name: str) -> None:
    assert_equal(*PAIRS[name])
