"""Cluster contrast: centers that follow their classes, by CCL's Eq. (14)."""

import pytest
import torch
from torch import Tensor

from tests.losses.center_cases import BATCHES
from vicinal.losses import ClusterContrastLoss

BATCH = BATCHES["shuffled"]
X, LABELS = BATCH.embeddings, BATCH.labels
CLASSES, DIM = 6, 5  # two of the classes are not in the batch


def made(momentum: float = 0.3) -> ClusterContrastLoss:
    torch.manual_seed(1)
    return ClusterContrastLoss(CLASSES, DIM, momentum=momentum).double()


def unit(x: Tensor) -> Tensor:
    return x / x.norm()


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_centers_move_by_the_mean_of_their_class(momentum: float) -> None:
    loss = made(momentum)
    before = loss.centers.clone()
    loss(X, LABELS)
    for y in range(CLASSES):
        members = [unit(x) for x, label in zip(X, LABELS.tolist(), strict=True) if label == y]
        moved = before[y]
        if members:
            moved = unit(momentum * unit(before[y]) + (1 - momentum) * sum(members) / len(members))
        torch.testing.assert_close(loss.centers[y], moved, rtol=1e-12, atol=1e-14)


def test_embeddings_are_compared_with_the_centers_before_they_move() -> None:
    loss, still = made(), made().eval()
    assert loss(X, LABELS) == still(X, LABELS)
    assert loss(X, LABELS) < still(X, LABELS)  # they are nearer now


def test_half_precision_embeddings_move_centers_in_float32() -> None:
    loss = ClusterContrastLoss(CLASSES, DIM)
    for dtype in (torch.float16, torch.bfloat16):
        expected = ClusterContrastLoss(CLASSES, DIM)
        expected.load_state_dict(loss.state_dict())
        expected(X.to(dtype).float(), LABELS)
        with torch.autocast("cpu", dtype=dtype):
            loss(X.to(dtype), LABELS)
        assert loss.centers.dtype == torch.float32
        assert torch.equal(loss.centers, expected.centers)


def test_an_empty_batch_moves_nothing() -> None:
    loss = made()
    before = loss.centers.clone()
    value = loss(X[:0].requires_grad_(), LABELS[:0])
    value.backward()
    assert value == 0
    assert torch.equal(loss.centers, before)
