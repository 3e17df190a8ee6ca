"""Memory of center-based losses: no matrix batch x classes is made, and none is kept for the backward pass."""

import gc
import weakref
from typing import Any

import pytest
import torch

from tests.losses.allocations import largest_allocation, peak_and_kept
from tests.losses.center_cases import CASES
from vicinal.losses import CenterBasedLoss, NormSoftmaxLoss, proxy_anchor
from vicinal.similarity import center_sum

MANY = [
    "NormSoftmax",
    "CCL, margin",
    "CCL, stopped",
    "ProxyNCA",
    "ProxyAnchor",
    "SoftTriple, 2",
    "cross-entropy, smoothed",
]
MEGABYTE = 2**20
TILES = 40 * MEGABYTE
"""A few tiles of 4 MB, whatever the number of classes."""


def batch(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, generator=generator, requires_grad=True)
    return x, torch.randint(classes, (n,), generator=generator)


def largest_parameter(loss: CenterBasedLoss) -> int:
    return max(parameter.nbytes for parameter in loss.parameters())


@pytest.mark.parametrize("case", MANY)
def test_a_step_holds_tiles_and_gradients(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are a million classes: nothing is kept from tile to tile."""
    monkeypatch.setattr(center_sum, "MAX_KEPT", 0)
    classes, n = 30_000, 256 if case.startswith("SoftTriple") else 512
    loss, (x, labels) = CASES[case].loss(classes, 8), batch(n, classes)
    peak, kept = peak_and_kept(lambda: loss(x, labels))
    gradients = sum(parameter.nbytes for parameter in loss.parameters())
    assert peak <= gradients + TILES
    assert peak < n * len(loss.centers) * 4
    # The norm of each center; for the regularizer of several centers per class their distances.
    assert kept <= (4 if case.startswith("SoftTriple") else 1) * gradients + 4 * len(loss.centers) + MEGABYTE
    assert largest_allocation(lambda: loss(x, labels)) <= max(largest_parameter(loss), 5 * MEGABYTE)


def test_a_few_classes_are_kept_from_tile_to_tile_only_within_a_call() -> None:
    loss, (x, labels) = NormSoftmaxLoss(20_000, 8), batch(256, 20_000)
    peak, kept = peak_and_kept(lambda: loss(x, labels))
    assert 256 * 20_000 * 4 < peak < 2 * 256 * 20_000 * 4
    assert kept <= loss.centers.nbytes + 4 * len(loss.centers) + MEGABYTE


def test_frozen_centers_have_no_gradient() -> None:
    loss, (x, labels) = NormSoftmaxLoss(500_000, 8).requires_grad_(False), batch(8, 500_000)
    assert largest_allocation(lambda: loss(x, labels).backward()) < loss.centers.nbytes


@pytest.mark.parametrize("case", ["NormSoftmax", "CCL", "CCL, stopped", "SoftTriple", "ProxyAnchor", "center loss"])
def test_nothing_outlives_the_backward_pass(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for Python's search for cycles."""
    walks = []
    for kind in (center_sum.CenterBlocks, proxy_anchor._Pass):

        def made(self: object, *arguments: object, original: Any = kind.__init__, **more: object) -> None:
            walks.append(weakref.ref(self))
            original(self, *arguments, **more)

        monkeypatch.setattr(kind, "__init__", made)
    loss, (x, labels) = CASES[case].loss(20, 8), batch(6, 20)
    gc.disable()
    try:
        loss(x, labels).backward()
        assert len(walks) == 1
        assert walks[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("case", ["NormSoftmax", "CCL, margin", "ProxyAnchor"])
def test_the_gradient_is_handed_over_and_not_copied(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name, original in (("empty_like", torch.empty_like), ("zeros_like", torch.zeros_like)):

        def create(*args: Any, original: Any = original, **kwargs: Any) -> torch.Tensor:
            tensor = original(*args, **kwargs)
            made.append(tensor.data_ptr())
            return tensor

        monkeypatch.setattr(torch, name, create)
    loss, (x, labels) = CASES[case].loss(20, 8), batch(6, 20)
    loss(x, labels).backward()
    assert loss.centers.grad.data_ptr() in made


@pytest.mark.slow
@pytest.mark.parametrize("case", ["NormSoftmax", "CCL, margin", "ProxyAnchor"])
def test_a_million_classes(case: str) -> None:
    """Beyond centers and their gradient at most 200 MB are to be held; it is a quarter of that."""
    classes = 1_000_000
    loss, (x, labels) = CASES[case].loss(classes, 8), batch(128, classes)
    peak, kept = peak_and_kept(lambda: loss(x, labels).backward())
    assert peak <= loss.centers.nbytes + 50 * MEGABYTE
    assert kept <= loss.centers.nbytes + MEGABYTE
