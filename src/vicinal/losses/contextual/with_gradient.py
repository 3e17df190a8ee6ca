"""Functions whose gradient is computed with their value, from the same matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def with_gradient(function: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]], x: Tensor) -> Tensor:
    """The value of a function of one tensor; differentiable once, whatever autocast is in the backward pass.

    Args:
        function: computes, from `x` detached, its value and, if the second argument says so, its gradient.
        x: float, any shape.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with_gradient(lambda x, needs_gradient: (x.square().sum(), 2 * x if needs_gradient else None), x).backward()
        >>> x.grad
        tensor([2., 4.])
    """
    return _WithGradient.apply(function, x)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]], x: Tensor) -> Tensor:
        value, gradient = function(x.detach(), ctx.needs_input_grad[1])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        (gradient,) = ctx.saved_tensors
        return None, gradient * upstream
