"""Triton kernels of the sums over all pairs of a positive and another similarity of its row, for a GPU.

Each program computes one row. The positives stay in registers while the similarities are read once; PyTorch operations
read them once per positive. The sums along the row stay there too, and their parts are added up once at the end. The
functions compute the same as :mod:`~vicinal.losses.soft_ranks` and :mod:`~vicinal.losses.triplets`, in float32; they
need no workspace, and do not synchronize.

Importing this module imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vicinal.losses.row_functions import inverse_temperature, lowest_exponent, tolerance
from vicinal.utils.devices import block_sizes

Kernel = Callable[..., Any]


def count_above(thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """See :func:`vicinal.losses.soft_ranks.count_above`."""
    thresholds, values = thresholds.contiguous(), values.contiguous()
    counts = torch.zeros_like(thresholds)
    step = _step_arguments(values, temperature, linear_from, slope)
    _launch(_count_above, thresholds, values, counts, **step)
    return counts


def count_above_backward(
    upstream: Tensor, thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`count_above` with respect to thresholds and values."""
    upstream, thresholds, values = upstream.contiguous(), thresholds.contiguous(), values.contiguous()
    grad_thresholds, grad_values = torch.zeros_like(thresholds), torch.zeros_like(values)
    step = _step_arguments(values, temperature, linear_from, slope)
    _launch(_count_above_backward, thresholds, values, upstream, grad_thresholds, grad_values, **step)
    return grad_thresholds, grad_values


def count_thresholds_above(thresholds: Tensor, values: Tensor, tolerance: float) -> Tensor:
    """See :func:`vicinal.losses.soft_ranks.count_thresholds_above`."""
    thresholds, values = thresholds.contiguous(), values.contiguous()
    counts = torch.zeros_like(values)
    _launch(_count_thresholds_above, thresholds, values, counts, tolerance=tolerance)
    return counts


def sum_over_triplets(
    positives: Tensor, negatives: Tensor, margin: float, soft: bool, semi_hard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `vicinal.losses.triplets`."""
    positives, negatives = positives.contiguous(), negatives.contiguous()
    total, violating = positives.new_zeros(len(positives)), positives.new_zeros(len(positives))
    gradients = torch.zeros_like(positives), torch.zeros_like(negatives)
    options = {"margin": margin, "soft": soft, "semi_hard": semi_hard}
    _launch(_sum_over_triplets, positives, negatives, total, violating, *gradients, **options)
    return total, violating, *gradients


def _step_arguments(values: Tensor, temperature: float, linear_from: float, slope: float) -> dict[str, Any]:
    return {
        "factor": inverse_temperature(temperature),
        "lowest": lowest_exponent(values.dtype),
        "tolerance": tolerance(values),
        "linear_from": linear_from,
        "slope": slope,
        "exact": temperature == 0,
        "linear": linear_from < float("inf"),
    }


def _launch(kernel: Kernel, thresholds: Tensor, values: Tensor, *tensors: Tensor, **arguments: Any) -> None:
    """Start a kernel with one program per row."""
    rows, (p, q) = len(thresholds), (thresholds.shape[1], values.shape[1])
    if rows and p and q:
        with torch.cuda.device_of(values):  # Triton takes the current one
            kernel[rows,](thresholds, values, *tensors, p, q, **arguments, **block_sizes(p, q))  # type: ignore[index]


@triton.jit
def _load(pointer, row, width, start, block: tl.constexpr, padding):
    """The values of a part of a row of a matrix."""
    return _locate(pointer, row, width, start, block, padding)[2]


@triton.jit
def _locate(pointer, row, width, start, block: tl.constexpr, padding):
    """A part of a row of a matrix: its pointers, the mask of existing columns, and its values."""
    columns = start + tl.arange(0, block)
    inside = columns < width
    where = pointer + row.to(tl.int64) * width + columns
    return where, inside, tl.load(where, mask=inside, other=padding)


@triton.jit
def _sigmoid(x, lowest):
    return tl.where(x > lowest, 1.0 / (1.0 + tl.exp(-x)), 0.0)


@triton.jit
def _step(difference, factor, lowest, tolerance, linear_from, slope, exact: tl.constexpr, linear: tl.constexpr):
    """The step function, as in `soft_ranks._steps`."""
    if exact:
        result = tl.where(difference >= -tolerance, 1.0, 0.0)
    elif linear:
        result = _sigmoid(tl.minimum(difference, linear_from) * factor, lowest)
        result += tl.maximum(difference - linear_from, 0.0) * slope + tl.where(difference >= -tolerance, 0.5, 0.0)
    else:
        result = _sigmoid(difference * factor, lowest)
    return result


@triton.jit
def _count_above(
    thresholds, values, counts, p, q, factor, lowest, tolerance, linear_from, slope,
    exact: tl.constexpr, linear: tl.constexpr, block_p: tl.constexpr, block_q: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    for first in range(0, p, block_p):
        threshold = _load(thresholds, row, p, first, block_p, float("inf"))
        total = tl.zeros([block_p, block_q], tl.float32)
        for start in range(0, q, block_q):
            value = _load(values, row, q, start, block_q, -float("inf"))
            difference = value[None, :] - threshold[:, None]
            total += _step(difference, factor, lowest, tolerance, linear_from, slope, exact, linear)
        where, inside, _ = _locate(counts, row, p, first, block_p, 0.0)
        tl.store(where, tl.where(threshold < float("inf"), tl.sum(total, 1), 0.0), mask=inside)


@triton.jit
def _count_above_backward(
    thresholds, values, upstream, grad_thresholds, grad_values, p, q, factor, lowest, tolerance, linear_from, slope,
    exact: tl.constexpr, linear: tl.constexpr, block_p: tl.constexpr, block_q: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    for first in range(0, p, block_p):
        threshold = _load(thresholds, row, p, first, block_p, float("inf"))
        weight = _load(upstream, row, p, first, block_p, 0.0)
        weight = tl.where(threshold < float("inf"), weight, 0.0)
        total = tl.zeros([block_p, block_q], tl.float32)
        for start in range(0, q, block_q):
            value = _load(values, row, q, start, block_q, -float("inf"))
            difference = value[None, :] - threshold[:, None]
            sigmoid = _sigmoid(difference * factor, lowest)
            slopes = sigmoid * (1.0 - sigmoid) * factor
            if linear:
                slopes = tl.where(difference > linear_from, slope, slopes)
            total += slopes
            where, inside, gradient = _locate(grad_values, row, q, start, block_q, 0.0)
            tl.store(where, gradient + tl.sum(slopes * weight[:, None], 0), mask=inside)
        where, inside, _ = _locate(grad_thresholds, row, p, first, block_p, 0.0)
        tl.store(where, -weight * tl.sum(total, 1), mask=inside)


@triton.jit
def _count_thresholds_above(thresholds, values, counts, p, q, tolerance, block_p: tl.constexpr, block_q: tl.constexpr):
    row = tl.program_id(0)
    for first in range(0, p, block_p):
        threshold = _load(thresholds, row, p, first, block_p, float("inf"))
        threshold = tl.where(threshold < float("inf"), threshold, -float("inf"))
        for start in range(0, q, block_q):
            value = _load(values, row, q, start, block_q, float("inf"))
            above = tl.where(threshold[:, None] > value[None, :] + tolerance, 1.0, 0.0)
            where, inside, count = _locate(counts, row, q, start, block_q, 0.0)
            tl.store(where, count + tl.sum(above, 0), mask=inside)


@triton.jit
def _sum_over_triplets(
    positives, negatives, totals, violating, grad_positives, grad_negatives, p, q, margin,
    soft: tl.constexpr, semi_hard: tl.constexpr, block_p: tl.constexpr, block_q: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    total = tl.zeros([block_p, block_q], tl.float32)
    number = tl.zeros([block_p, block_q], tl.float32)
    for first in range(0, p, block_p):
        positive = _load(positives, row, p, first, block_p, float("inf"))
        grad_positive = tl.zeros([block_p, block_q], tl.float32)
        for start in range(0, q, block_q):
            negative = _load(negatives, row, q, start, block_q, -float("inf"))
            difference = negative[None, :] - positive[:, None]
            violation = difference + margin
            if soft:
                tail = tl.exp(-tl.abs(violation))
                # log(1 + x) - x is lost where 1 + x is rounded; Kahan's correction keeps it.
                above_one = 1.0 + tail
                logarithm = tl.where(above_one == 1.0, tail, tl.log(above_one) * (tail / (above_one - 1.0)))
                losses = tl.maximum(violation, 0.0) + logarithm
                slopes = tl.where(violation >= 0.0, 1.0 / above_one, tail / above_one)
            else:
                losses = tl.maximum(violation, 0.0)
                slopes = tl.where(violation > 0.0, 1.0, 0.0)
            if semi_hard:
                is_selected = (difference < 0.0) & (violation > 0.0)
                losses, slopes = tl.where(is_selected, losses, 0.0), tl.where(is_selected, slopes, 0.0)
            total += losses
            number += tl.where(losses > 0.0, 1.0, 0.0)
            grad_positive += slopes
            where, inside, gradient = _locate(grad_negatives, row, q, start, block_q, 0.0)
            tl.store(where, gradient + tl.sum(slopes, 0), mask=inside)
        where, inside, _ = _locate(grad_positives, row, p, first, block_p, 0.0)
        tl.store(where, -tl.sum(grad_positive, 1), mask=inside)
    tl.store(totals + row, tl.sum(total))
    tl.store(violating + row, tl.sum(number))
