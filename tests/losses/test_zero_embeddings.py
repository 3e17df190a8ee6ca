"""The gradient of an embedding that is zero or very short is bounded, in every loss and number type; it is not zero."""

import pytest
import torch
from torch import Tensor

from tests.losses.every_loss import DIM, EVERY_LOSS
from tests.refusals import refused_call
from vicinal.losses import CrossEntropyLoss, Loss, check_finite

LABELS = torch.arange(16) // 4
BOUND = 2e4
"""1e3, the bound of the derivative of the normalization, times the gradient of an embedding of norm 1; the largest of
these, about 18, is that of SupConLoss, a sum over anchors. float16 ends at 65504."""


def gradient(loss: Loss, first: Tensor, dtype: torch.dtype, autocast: torch.dtype | None = None) -> Tensor:
    """The gradient of the first embedding, the others having a norm of 1."""
    x = torch.nn.functional.normalize(torch.randn(16, DIM, generator=torch.Generator().manual_seed(0)))
    x = torch.cat([first[None], x[1:]]).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        value = loss(x, LABELS)
    value.backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    return x.grad[0].float()


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_it_is_bounded_and_not_zero(name: str) -> None:
    """A network whose last layer is zero at first can be trained."""
    torch.manual_seed(0)
    assert gradient(EVERY_LOSS[name](), torch.zeros(DIM), torch.float32).any()
    for dtype, autocast in (
        (torch.float32, None),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float16),
    ):
        for length in (0.0, 1e-7):
            first = torch.full((DIM,), length)
            assert gradient(EVERY_LOSS[name](), first, dtype, autocast).norm() < BOUND, (dtype, length)


def test_ordinary_embeddings_are_not_changed_by_the_limit_of_entries() -> None:
    torch.manual_seed(0)
    loss, x = CrossEntropyLoss(4, DIM), torch.randn(16, DIM) * 1e6
    expected = torch.nn.functional.cross_entropy(x @ loss.centers.T, LABELS)
    torch.testing.assert_close(loss(x, LABELS), expected)


def test_rows_that_are_not_finite_are_named_on_request() -> None:
    x = torch.randn(8, 4)
    check_finite(x)
    check_finite(x[:0])
    x[3, 1], x[5] = torch.nan, torch.inf
    refused_call(r"^embeddings: row 3 is not finite \(2 of 8 rows\)$", check_finite, x)
    refused_call(r"embeddings must be a tensor, not list", check_finite, x.tolist())
