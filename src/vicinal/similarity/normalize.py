"""L2 normalization, exact for vectors of any length, and the floating-point type that losses compute in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MIN_NORM = 1e-12
"""Vectors whose entries are all below it are divided by it instead of their norm."""
MIN_GRADIENT_NORM = 1e-3
"""The derivative of the normalization of a shorter vector is that of a vector of this norm in the same direction."""


def normalize(vectors: Tensor) -> Tensor:
    """L2-normalize the rows of a float tensor [n, d] without overflow or underflow; a zero row stays zero.

    Rows are first divided by their largest absolute entry, so that squares of very large or very small entries neither
    overflow nor underflow. Rows whose entries are all below 1e-12 are divided by 1e-12 instead of their norm.

    The gradient with respect to x is ``(g - u (u g)) / max(|x|, 1e-3)`` with u the result and g the gradient with
    respect to it; without ``u (u g)`` for rows whose entries are all below 1e-12. For rows of norm 1e-3 or more this is
    the derivative. The derivative grows as 1 / norm and does not exist at zero, so that without the bound the gradient
    of one zero row would exceed all others by orders of magnitude and be infinite in float16. The gradient of a zero
    row is not zero, so that training can move it.

    Example:
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]], requires_grad=True)
        >>> normalize(x).detach()
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000],
                [0.6000, 0.8000]])
        >>> normalize(x)[1, 0].backward()
        >>> x.grad[1].round()
        tensor([1000.,    0.])
    """
    return _compiled(vectors) if torch.compiler.is_compiling() else _Normalize.apply(vectors)


def _unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized rows, and the two numbers that each was divided by in turn."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scaled = vectors / largest.clamp_min(MIN_NORM)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(largest < MIN_NORM, 1.0)
    return scaled / norm, largest, norm


def _compiled(vectors: Tensor) -> Tensor:
    """The same as `_Normalize` in plain operations, which the compiler fuses."""
    unit, largest, norm = _unit_rows(vectors.detach())
    zero = (vectors - vectors.detach()) / norm / largest.maximum(MIN_GRADIENT_NORM / norm)  # adds only its gradient
    along = (unit * zero).sum(dim=-1, keepdim=True).masked_fill(largest < MIN_NORM, 0.0)
    return unit + (zero - unit * along)


class _Normalize(torch.autograd.Function):
    """Saves only the result for the backward pass, which then has fewer steps than that of the separate operations."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        unit, largest, norm = _unit_rows(vectors)
        ctx.save_for_backward(unit, largest, norm)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        unit, largest, norm = ctx.saved_tensors
        with torch.autocast(unit.device.type, enabled=False):  # backward may run under autocast
            along = torch.linalg.vecdot(unit, upstream)[..., None].masked_fill(largest < MIN_NORM, 0.0)
        divisor = largest.maximum(MIN_GRADIENT_NORM / norm)
        return torch.addcmul(upstream, unit, along, value=-1).div_(norm).div_(divisor)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert a tensor to float32, unless it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
