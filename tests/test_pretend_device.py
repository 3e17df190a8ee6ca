"""The pretend device computes what the CPU computes, refuses what a GPU refuses, and counts."""

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


@pytest.mark.parametrize("wrong", [lambda x: x + X, lambda x: X @ x.T, lambda x: X[x[0].long()], lambda x: x.numpy()])
def test_devices_are_not_mixed(wrong) -> None:
    with pretend_device(), pytest.raises((RuntimeError, TypeError)):
        wrong(on_device(X))


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
