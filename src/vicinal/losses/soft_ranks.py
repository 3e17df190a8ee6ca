"""Count the similarities in a row that are above others, exactly or with smooth steps that have a gradient.

Only positives are ranked, so time grows with positives x columns instead of the square of the columns, and memory does
not grow with the number of positives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from vicinal.losses.row_functions import flushed_sigmoid, inverse_temperature, max_positives, tolerance
from vicinal.similarity.rows import Rows
from vicinal.utils.devices import uses_kernel


def count_above(
    thresholds: Tensor, values: Tensor, temperature: float, linear_from: float = math.inf, slope: float = 0.0
) -> Tensor:
    """For each threshold the sum over the values of its row of a step function of `value - threshold`; 0 for padding.

    The step function is, differentiable once,

    - with temperature 0 the exact step, 1 from 0 on, without gradient: the number of values not below the threshold;
    - with a temperature the sigmoid of `difference / temperature`;
    - with `linear_from` too, an upper bound of the exact step: the sigmoid plus 0.5 from 0 on, and a straight line
      of slope `slope` from `linear_from` on.

    Thresholds are [rows, p], padded with +inf, and values [rows, q], padded with -inf.
    """
    return _count_above(thresholds, values, temperature, linear_from, slope)


def count_positives_above(rows: Rows, temperature: float) -> Tensor:
    """For each positive the (smooth) number of other positives of its anchor above it, [rows, p]."""
    values = torch.where(rows.positives < math.inf, rows.positives, -math.inf)
    own_step = 0.5 if temperature else 1.0
    above = count_above(rows.positives, values, temperature) - own_step
    return torch.where(rows.positives < math.inf, above, 0.0)


def count_thresholds_above(thresholds: Tensor, values: Tensor) -> Tensor:
    """For each value the exact number of thresholds above it, [rows, q]; without gradient."""
    return _count_thresholds_above(thresholds, values)


def _ascending(thresholds: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The column and value of the smallest threshold of each row, then of the second and so on, each [rows, 1].

    Rows with fewer thresholds than others continue with +inf.
    """
    max_thresholds = max_positives(thresholds)
    smallest = thresholds.topk(max_thresholds, dim=1, largest=False)
    for k in range(max_thresholds):
        yield smallest.indices[:, k, None], smallest.values[:, k, None]


def _fused(values: Tensor) -> ModuleType | None:
    """The module that computes a row in one pass, or None if none supports the device and type of the values."""
    if uses_kernel(values, "rank_kernels", _kernels_agree):
        from vicinal.losses import rank_kernels  # imports Triton

        return rank_kernels
    if values.device.type == "cpu" and values.dtype == torch.float32:
        from vicinal.losses import rank_loops  # imports numba

        return rank_loops
    return None


# Custom operators, so that memory does not grow with the number of thresholds: if torch.compile traced them, all
# differences would be held at once.
@torch.library.custom_op("vicinal::count_above", mutates_args=())
def _count_above(thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    if (fused := _fused(values)) is not None:
        return cast(Tensor, fused.count_above(thresholds, values, temperature, linear_from, slope))
    return _add_steps(thresholds, values, temperature, linear_from, slope)


def _add_steps(thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    counts = torch.zeros_like(thresholds)
    differences = torch.empty_like(values)
    for columns, threshold in _ascending(thresholds):
        torch.sub(values, threshold, out=differences)
        steps = _steps(differences, temperature, linear_from, slope)
        counts.scatter_(1, columns, steps.sum(dim=1, keepdim=True))
    return counts


@torch.library.custom_op("vicinal::count_thresholds_above", mutates_args=())
def _count_thresholds_above(thresholds: Tensor, values: Tensor) -> Tensor:
    if (fused := _fused(values)) is not None:
        return cast(Tensor, fused.count_thresholds_above(thresholds, values, tolerance(values)))
    return _add_thresholds(thresholds, values)


def _add_thresholds(thresholds: Tensor, values: Tensor) -> Tensor:
    counts = torch.zeros_like(values)
    for _, threshold in _ascending(thresholds):
        counts += threshold.where(threshold < math.inf, -math.inf) > values + tolerance(values)
    return counts


@torch.library.custom_op("vicinal::count_above_backward", mutates_args=())
def _count_above_backward(
    upstream: Tensor, thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    if (fused := _fused(values)) is not None:
        return cast(
            "tuple[Tensor, Tensor]",
            fused.count_above_backward(upstream, thresholds, values, temperature, linear_from, slope),
        )
    return _add_slopes(upstream, thresholds, values, temperature, linear_from, slope)


def _add_slopes(
    upstream: Tensor, thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    grad_thresholds, grad_values = torch.zeros_like(thresholds), torch.zeros_like(values)
    differences = torch.empty_like(values)
    for columns, threshold in _ascending(thresholds):
        torch.sub(values, threshold, out=differences)
        slopes = _slopes(differences, temperature, linear_from, slope)
        weights = upstream.gather(1, columns)
        grad_values.addcmul_(slopes, weights)
        grad_thresholds.scatter_(1, columns, -weights * slopes.sum(dim=1, keepdim=True))
    return grad_thresholds, grad_values


def _kernels_agree(device: torch.device) -> bool:
    """Whether the kernels compute the same as the functions above, on a small example with padding."""
    from vicinal.losses import rank_kernels

    values = torch.linspace(-1, 1, 42, device=device).cos().reshape(2, 21)
    thresholds = values[:, ::5].clone().index_fill_(1, torch.tensor([4], device=device), math.inf)
    pairs = [(rank_kernels.count_thresholds_above(thresholds, values, tolerance(values)),
              _add_thresholds(thresholds, values))]  # fmt: skip
    for step in ((0.0, math.inf, 0.0), (0.05, math.inf, 0.0), (0.05, 0.1, 20.0)):
        pairs.append((rank_kernels.count_above(thresholds, values, *step), _add_steps(thresholds, values, *step)))
        if step[0]:
            inputs = torch.ones_like(thresholds), thresholds, values
            gradients = rank_kernels.count_above_backward(*inputs, *step), _add_slopes(*inputs, *step)
            pairs += zip(*gradients, strict=True)
    return all(torch.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in pairs)


def _steps(differences: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """The step function of differences; overwrites them."""
    if temperature == 0:
        return differences.ge_(-tolerance(differences))
    if linear_from == math.inf:
        return flushed_sigmoid(differences, temperature)
    # Float masks are several times faster than bool masks.
    line = (differences - linear_from).relu_().mul_(slope)
    line.add_(differences.clone().ge_(-tolerance(differences)), alpha=0.5)
    return flushed_sigmoid(differences.clamp_max_(linear_from), temperature).add_(line)


def _slopes(differences: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """The derivative of the step function at differences; overwrites them."""
    line = differences.clone().gt_(linear_from) if linear_from < math.inf else None
    sigmoid = flushed_sigmoid(differences, temperature)
    slopes = sigmoid.addcmul_(sigmoid, sigmoid, value=-1).mul_(inverse_temperature(temperature))
    return slopes if line is None else slopes.addcmul_(slopes, line, value=-1).add_(line, alpha=slope)


@_count_above.register_fake
def _(thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    return torch.empty_like(thresholds)


@_count_thresholds_above.register_fake
def _(thresholds: Tensor, values: Tensor) -> Tensor:
    return torch.empty_like(values)


@_count_above_backward.register_fake
def _(
    upstream: Tensor, thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(thresholds), torch.empty_like(values)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    thresholds, values, ctx.temperature, ctx.linear_from, ctx.slope = inputs
    ctx.save_for_backward(thresholds, values)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.temperature == 0:
        return (None,) * 5
    thresholds, values = ctx.saved_tensors
    grad_thresholds, grad_values = _count_above_backward(
        upstream, thresholds, values, ctx.temperature, ctx.linear_from, ctx.slope
    )
    return grad_thresholds, grad_values, None, None, None


_count_above.register_autograd(_backward, setup_context=_save_inputs)
