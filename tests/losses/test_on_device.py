"""Every loss on a pretend GPU: the values of the CPU, tensors of one device, few waits and launches per step."""

import pytest
import torch
from torch import Tensor

from tests.losses.every_loss import DIM, EVERY_LOSS, NUM_CLASSES
from tests.pretend_device import PretendDevice, module_on_device, on_device, pretend_device
from vicinal import mining
from vicinal.losses import Loss, MultiSimilarityLoss

LABELS = torch.arange(24) % NUM_CLASSES
COUNTS = {
    "ArcFaceLoss": (0, 153),
    "BinLiftedLoss": (1, 122),
    "BinomialDevianceLoss": (1, 92),
    "BlackboxAPLoss": (1, 295),
    "CenterContrastiveLoss": (0, 150),
    "CenterLoss": (0, 116),
    "CircleLoss": (1, 98),
    "ClusterContrastLoss": (0, 136),
    "ContextualLoss": (0, 124),
    "ContrastiveLoss": (1, 101),
    "CosFaceLoss": (0, 121),
    "CrossBatchMemory": (1, 101),
    "CrossEntropyLoss": (0, 100),
    "FastAPLoss": (1, 169),
    "HistogramLoss": (1, 165),
    "LiftedStructureLoss": (1, 88),
    "LiftedStructureStarLoss": (1, 99),
    "MarginLoss": (1, 198),
    "MarginLoss, a beta per class": (1, 200),
    "MultiSimilarityLoss": (1, 105),
    "NCALoss": (1, 104),
    "NPairsLoss": (1, 89),
    "NTXentLoss": (1, 89),
    "NormSoftmaxLoss": (0, 119),
    "ProxyAnchorLoss": (0, 124),
    "ProxyNCALoss": (0, 117),
    "ProxyNCAPlusPlusLoss": (0, 119),
    "RecallAtKLoss": (1, 446),
    "RoadmapLoss": (1, 396),
    "SiMix": (1, 151),
    "SimilarityRegularizer": (0, 38),
    "SmoothAPLoss": (1, 336),
    "SoftBinAPLoss": (1, 169),
    "SoftTripleLoss": (0, 185),
    "SupAPLoss": (1, 317),
    "SupConLoss": (1, 123),
    "TripletLoss": (1, 159),
    "WeightedPairLoss": (1, 86),
    "a sum": (1, 123),
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


def step_on_device(name: str, has_kernels: bool = False) -> tuple[list[Tensor], PretendDevice]:
    with pretend_device(has_kernels) as device:
        x, labels = on_device(embeddings().requires_grad_()), on_device(LABELS)
        found = step(module_on_device(made(name)), x, labels)
    return [each.values for each in found], device


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_values_are_those_of_the_cpu_with_few_waits_and_launches(name: str) -> None:
    found, device = step_on_device(name)
    for each, expected in zip(found, step(made(name), embeddings().requires_grad_(), LABELS), strict=True):
        torch.testing.assert_close(each, expected, rtol=5e-7, atol=5e-7)
    waits, launches = COUNTS[name]
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches


@pytest.mark.parametrize(
    ("name", "launches"), [("RecallAtKLoss", 230), ("SmoothAPLoss", 120), ("SupAPLoss", 113), ("TripletLoss", 81)]
)
def test_kernels_replace_launches_that_grow_with_the_positives(name: str, launches: int) -> None:
    found, device = step_on_device(name, has_kernels=True)
    for each, expected in zip(found, step(made(name), embeddings().requires_grad_(), LABELS), strict=True):
        torch.testing.assert_close(each, expected, rtol=5e-7, atol=5e-7)
    assert device.waits.total() <= COUNTS[name][0]
    assert device.launches <= launches


@pytest.mark.parametrize(
    ("miner", "launches"),
    [
        (mining.MultiSimilarityMiner(epsilon=0.1), 105),
        (mining.HardestMiner(), 105),
        (mining.EasyPositiveMiner(), 103),
        (mining.SemiHardMiner(), 104),
        (mining.DistanceWeightedMiner(), 161),
        (mining.IntersectionMiner(mining.HardestMiner(), mining.SemiHardMiner()), 130),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, mining.Miner) else "",
)
def test_miners(miner: mining.Miner, launches: int) -> None:
    expected = step(MultiSimilarityLoss(miner=miner), embeddings().requires_grad_(), LABELS)
    with pretend_device() as device:
        found = step(MultiSimilarityLoss(miner=miner), on_device(embeddings().requires_grad_()), on_device(LABELS))
    for each, by_cpu in zip(found, expected, strict=True):
        torch.testing.assert_close(each.values, by_cpu, rtol=5e-7, atol=5e-7)
    assert device.waits.total() <= 1, device.waits
    assert device.launches <= launches
