"""Arithmetic of losses beyond + and *, and what they say of themselves."""

from __future__ import annotations

import pytest
import torch

from vicinal.losses import ContrastiveLoss, NCALoss, TripletLoss, WeightedSum
from vicinal.memory import CrossBatchMemory
from vicinal.mining import HardestMiner
from vicinal.utils.errors import InputError
from vicinal.weighting import EqualWeights, WeightedPairLoss

X, LABELS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) // 2
A, B = ContrastiveLoss(), NCALoss()


def test_losses_sum_subtract_negate_and_divide() -> None:
    a, b = A(X, LABELS), B(X, LABELS)
    summed = sum([A, B, A])
    assert isinstance(summed, WeightedSum)
    torch.testing.assert_close(summed(X, LABELS), 2 * a + b)
    torch.testing.assert_close((A - B / 4)(X, LABELS), a - b / 4)
    torch.testing.assert_close((-A)(X, LABELS), -a)


def test_numbers_are_no_losses() -> None:
    for wrong in (lambda: A + 1, lambda: 1 + A, lambda: A - 1):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContrastiveLoss(miner=HardestMiner), "miner must be a Miner such as"),
        (lambda: WeightedPairLoss(EqualWeights), "rule must be a WeightingRule such as"),
        (lambda: CrossBatchMemory(3, 10), "loss must be a loss"),
        (lambda: CrossBatchMemory(CrossBatchMemory(A, 10), 10), "without a memory of its own"),
        (lambda: HardestMiner(num_positives=1.5), "num_positives = 1.5 must be at least 1, a whole number"),
    ],
)
def test_the_wrong_kind_of_thing_is_named(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_gradients_asked_for_under_autocast_are_as_precise_as_others() -> None:
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(B(x, LABELS), x)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = torch.autograd.grad(B(x, LABELS), x)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_triplets_compiled_take_no_cubic_memory() -> None:
    largest = 0

    def look(graph: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        nonlocal largest
        values = [node.meta.get("example_value") for node in graph.graph.nodes]
        largest = max(value.numel() for value in values if isinstance(value, torch.Tensor))
        return graph

    loss, x, labels = TripletLoss(), torch.randn(300, 8, requires_grad=True), torch.arange(300) % 3
    value = torch.compile(loss, fullgraph=True, backend=look)(x, labels)
    torch.testing.assert_close(value, loss(x, labels))
    assert largest == 300 * 300
