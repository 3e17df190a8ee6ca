"""Values with their gradients, and how near two of them are."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.losses.batches import Batch


def value_and_gradients(loss: Callable[..., Tensor], batch: Batch, parameters: Sequence[Tensor] = ()) -> list[Tensor]:
    """The loss, and its gradients by embeddings, by references where there are any, and by the parameters."""
    leaves = [x.detach().clone().requires_grad_() for x in (batch.embeddings, batch.references) if x is not None]
    batch = batch._replace(**dict(zip(("embeddings", "references"), leaves, strict=False)))
    value = loss(*(part for part in batch if part is not None))
    inputs = [*leaves, *(p for p in parameters if p.requires_grad)]
    if not value.requires_grad:  # a formula without a pair
        return [value, *(torch.zeros_like(x) for x in inputs)]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True))]


def assert_near(got: Sequence[Tensor], expected: Sequence[Tensor], relative: float) -> None:
    """Each tensor differs by no more than this fraction of its length, the measure that suits rounding of sums."""
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() <= relative * b.norm(), f"{a} is not {b}"
