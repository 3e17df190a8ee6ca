"""Every loss on a pretend GPU: the values of the CPU, tensors of one device, few waits and launches per step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses.every_loss import DIM, EVERY_LOSS, NUM_CLASSES
from tests.pretend_device import PretendDevice, module_on_device, on_device, pretend_device
from vicinal.losses import Loss

LABELS = torch.arange(24) % NUM_CLASSES
COUNTS = {
    "ArcFaceLoss": (0, 153),
    "BinLiftedLoss": (0, 107),
    "BinomialDevianceLoss": (0, 77),
    "BlackboxAPLoss": (6, 284),
    "CenterContrastiveLoss": (0, 150),
    "CenterLoss": (0, 116),
    "CircleLoss": (0, 83),
    "ClusterContrastLoss": (0, 136),
    "ContextualLoss": (0, 123),
    "ContrastiveLoss": (0, 84),
    "CosFaceLoss": (0, 121),
    "CrossBatchMemory": (0, 84),
    "CrossEntropyLoss": (0, 100),
    "FastAPLoss": (0, 154),
    "HistogramLoss": (0, 143),
    "LiftedStructureLoss": (0, 73),
    "LiftedStructureStarLoss": (0, 84),
    "MarginLoss": (0, 183),
    "MarginLoss, a beta per class": (0, 185),
    "Metrix": (2, 267),
    "MultiSimilarityLoss": (0, 90),
    "NCALoss": (0, 89),
    "NPairsLoss": (0, 74),
    "NTXentLoss": (0, 74),
    "NormSoftmaxLoss": (0, 119),
    "ProxyAnchorLoss": (0, 123),
    "ProxyNCALoss": (0, 117),
    "ProxyNCAPlusPlusLoss": (0, 119),
    "RecallAtKLoss": (4, 415),
    "RoadmapLoss": (3, 351),
    "SiMix": (8, 252),
    "SimilarityRegularizer": (0, 38),
    "SmoothAPLoss": (4, 305),
    "SoftBinAPLoss": (0, 154),
    "SoftTripleLoss": (0, 183),
    "SupAPLoss": (3, 283),
    "SupConLoss": (0, 108),
    "TripletLoss": (1, 136),
    "WeightedPairLoss": (0, 71),
    "a sum": (0, 106),
}
"""Loss -> the host's waits and the launches of a step, forward and backward; those below may become fewer, not more."""


def embeddings() -> Tensor:
    return torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(0))


def made(name: str) -> Loss:
    torch.manual_seed(0)
    return EVERY_LOSS[name]()


def step(loss: Loss, x: Tensor, labels: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    value = loss(x, labels)
    value.backward()
    gradients = [x.grad, *(parameter.grad for parameter in loss.parameters())]
    return [value.detach(), *(each for each in gradients if each is not None)]


def step_on_device(name: str) -> tuple[list[Tensor], PretendDevice]:
    with pretend_device() as device:
        x, labels = on_device(embeddings().requires_grad_()), on_device(LABELS)
        found = step(module_on_device(made(name)), x, labels)
    return [each.values for each in found], device


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_value_and_gradients_are_those_of_the_cpu(name: str) -> None:
    found, _ = step_on_device(name)
    for each, expected in zip(found, step(made(name), embeddings().requires_grad_(), LABELS), strict=True):
        torch.testing.assert_close(each, expected, rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_waits_and_launches_do_not_creep_up(name: str) -> None:
    _, device = step_on_device(name)
    waits, launches = COUNTS[name]
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches
