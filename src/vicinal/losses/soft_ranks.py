"""How many similarities of a row lie above another: counted exactly, or with smooth steps that have a gradient.

Only positives are ranked, so time grows with positives x columns and not with the square of the columns; and memory
does not grow with the number of positives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vicinal.losses.row_functions import SMALLEST_TEMPERATURE, count_positives, cut_sigmoid
from vicinal.similarity import Rows


def count_above(
    points: Tensor, others: Tensor, temperature: float, linear_from: float = math.inf, slope: float = 0.0
) -> Tensor:
    """For each point the sum over the others of its row of a step function of `other - point`; differentiable once.

    - With temperature 0 the exact step, 1 from 0 on, without gradient: how many others are at least as large.
    - With a temperature the sigmoid of `difference / temperature`.
    - With `linear_from` too, a bound from above of the exact step: 0.5 is added to the sigmoid from 0 on, and beyond
      `linear_from` it goes on as a straight line.

    Args:
        points: float [rows, p], of which +inf ones are none.
        others: float [rows, q], of which -inf ones are none.
        temperature: not negative.
        linear_from: difference from which on the function is a line.
        slope: of that line.

    Returns:
        float [rows, p]; 0 for a point that is none.

    Example:
        >>> count_above(torch.tensor([[0.5, math.inf]]), torch.tensor([[0.7, 0.5, 0.3, -math.inf]]), temperature=0)
        tensor([[2., 0.]])
        >>> count_above(torch.tensor([[0.5]]), torch.tensor([[0.7, 0.5, 0.3]]), temperature=0.01)
        tensor([[1.5000]])
    """
    return _count_above(points, others, temperature, linear_from, slope)


def count_positives_above(rows: Rows, temperature: float) -> Tensor:
    """For each positive the (smooth) number of its anchor's other positives above it, [rows, p]."""
    others = torch.where(rows.positives < math.inf, rows.positives, -math.inf)
    itself = 0.5 if temperature else 1.0
    above = count_above(rows.positives, others, temperature) - itself
    return torch.where(rows.positives < math.inf, above, 0.0)


def count_points_above(points: Tensor, others: Tensor) -> Tensor:
    """For each other the exact number of points above it, [rows, q]; without gradient.

    Example:
        >>> count_points_above(torch.tensor([[0.5]]), torch.tensor([[0.7, 0.5, 0.3, -math.inf]]))
        tensor([[0., 0., 1., 1.]])
    """
    return _count_points_above(points, others)


def _ascending(points: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The smallest point of each row, then the second and so on: its column and its value, [rows, 1] both.

    Rows with fewer points than others go on with +inf.
    """
    most = int(count_positives(points).amax())  # on a GPU this waits for it, for columns are work
    smallest = points.topk(most, dim=1, largest=False)
    for k in range(most):
        yield smallest.indices[:, k, None], smallest.values[:, k, None]


# Operators of their own: memory does not grow with the number of points, nor does torch.compile look inside, which
# would hold all differences at once.
@torch.library.custom_op("vicinal::count_above", mutates_args=())
def _count_above(points: Tensor, others: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    counts = torch.zeros_like(points)
    differences = torch.empty_like(others)
    for columns, values in _ascending(points):
        torch.sub(others, values, out=differences)
        steps = _steps(differences, temperature, linear_from, slope)
        counts.scatter_(1, columns, steps.sum(dim=1, keepdim=True))
    return counts


@torch.library.custom_op("vicinal::count_points_above", mutates_args=())
def _count_points_above(points: Tensor, others: Tensor) -> Tensor:
    counts = torch.zeros_like(others)
    for _, values in _ascending(points):
        counts += values.where(values < math.inf, -math.inf) > others + _rounding(others)
    return counts


@torch.library.custom_op("vicinal::count_above_backward", mutates_args=())
def _count_above_backward(
    upstream: Tensor, points: Tensor, others: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    by_points, by_others = torch.zeros_like(points), torch.zeros_like(others)
    differences = torch.empty_like(others)
    for columns, values in _ascending(points):
        torch.sub(others, values, out=differences)
        slopes = _slopes(differences, temperature, linear_from, slope)
        weights = upstream.gather(1, columns)
        by_others.addcmul_(slopes, weights)
        by_points.scatter_(1, columns, -weights * slopes.sum(dim=1, keepdim=True))
    return by_points, by_others


def _steps(differences: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """The step function of differences, which it overwrites."""
    if temperature == 0:
        return differences.ge_(-_rounding(differences))
    if linear_from == math.inf:
        return cut_sigmoid(differences, temperature)
    # Masks of numbers are several times faster than those of bools.
    line = (differences - linear_from).relu_().mul_(slope)
    line.add_(differences.clone().ge_(-_rounding(differences)), alpha=0.5)
    return cut_sigmoid(differences.clamp_max_(linear_from), temperature).add_(line)


def _rounding(similarity: Tensor) -> float:
    """How far apart similarities count as equal: those of the same two vectors may differ so much from tile to tile."""
    return 16 * torch.finfo(similarity.dtype).eps


def _slopes(differences: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """The derivative of the step function at differences, which it overwrites."""
    line = differences.clone().gt_(linear_from) if linear_from < math.inf else None
    sigmoid = cut_sigmoid(differences, temperature)
    slopes = sigmoid.addcmul_(sigmoid, sigmoid, value=-1).mul_(1 / max(temperature, SMALLEST_TEMPERATURE))
    return slopes if line is None else slopes.addcmul_(slopes, line, value=-1).add_(line, alpha=slope)


@_count_above.register_fake
def _(points: Tensor, others: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    return torch.empty_like(points)


@_count_points_above.register_fake
def _(points: Tensor, others: Tensor) -> Tensor:
    return torch.empty_like(others)


@_count_above_backward.register_fake
def _(
    upstream: Tensor, points: Tensor, others: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(points), torch.empty_like(others)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    points, others, *ctx.step = inputs
    ctx.save_for_backward(points, others)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.step[0] == 0:
        return (None,) * 5
    by_points, by_others = _count_above_backward(upstream, *ctx.saved_tensors, *ctx.step)
    return by_points, by_others, None, None, None


_count_above.register_autograd(_backward, setup_context=_keep_inputs)
