"""The pretend device computes what the CPU computes, refuses what a GPU refuses, and counts."""

from __future__ import annotations

import pytest
import torch

from tests.pretend_device import DEVICE, is_on_device, on_device, pretend_device

X = torch.arange(6.0).reshape(2, 3)


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    with pretend_device():
        x = on_device(X).requires_grad_()
        ((x @ x.T).exp().sum() / 1e20).backward()
        assert is_on_device(x.grad)
        found = x.grad.cpu()
    expected = X.clone().requires_grad_()
    ((expected @ expected.T).exp().sum() / 1e20).backward()
    assert torch.equal(found, expected.grad)


def test_views_share_memory_and_start_no_kernel() -> None:
    with pretend_device() as device:
        x = on_device(X)
        x[0].view(3)[1:].add_(10)
        assert (x.cpu()[0].tolist(), device.launches) == ([0.0, 11.0, 12.0], 2)  # and the copy to the CPU


@pytest.mark.parametrize("wrong", [lambda x: x + X, lambda x: X @ x.T, lambda x: X[x[0].long()], lambda x: x.numpy()])
def test_devices_are_not_mixed(wrong) -> None:
    with pretend_device(), pytest.raises((RuntimeError, TypeError)):
        wrong(on_device(X))


def test_numbers_and_indices_of_the_cpu_are_taken() -> None:
    with pretend_device():
        x = on_device(X) * torch.tensor(2.0)
        assert x[torch.tensor([1])].cpu().tolist() == [[6.0, 8.0, 10.0]]


@pytest.mark.parametrize(
    ("waits", "operation"),
    [
        (0, lambda x: x.softmax(1)),
        (0, lambda x: torch.zeros(3, device=DEVICE) + x),
        (0, lambda x: X.to(DEVICE, non_blocking=True)),
        (1, lambda x: X.to(DEVICE)),
        (1, lambda x: x.cpu()),
        (1, lambda x: x.sum().item()),
        (1, lambda x: bool((x > 0).any())),
        (1, lambda x: x[x > 2]),
        (1, lambda x: x.nonzero()),
        (1, lambda x: x.repeat_interleave(torch.tensor([1, 2]).to(DEVICE, non_blocking=True), 0)),
        (0, lambda x: x.repeat_interleave(torch.tensor([1, 2]).to(DEVICE, non_blocking=True), 0, output_size=3)),
        (0, lambda x: x.copy_(X, non_blocking=True)),
        (1, lambda x: x.copy_(X)),
    ],
)
def test_waits_are_counted(waits: int, operation) -> None:
    with pretend_device() as device:
        operation(on_device(X))
        assert device.waits.total() == waits


def test_a_wait_has_the_line_of_vicinal_that_waits() -> None:
    from vicinal.losses import TripletLoss

    with pretend_device() as device:
        TripletLoss()(on_device(torch.randn(6, 3)), on_device(torch.tensor([0, 0, 0, 1, 1, 1])))
        assert device.waits
        assert {place.partition(":")[0] for place in device.waits} <= {
            "item, similarity/pairs.py", "_local_scalar_dense, similarity/pairs.py"
        }  # fmt: skip


def test_the_device_is_there_within_the_block_only() -> None:
    with pretend_device():
        x = on_device(X)
    with pytest.raises(RuntimeError, match="outside of pretend_device"):
        x + 1
