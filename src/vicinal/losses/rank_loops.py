"""Compiled loops of the sums over all pairs of a positive and another similarity of its row, for a CPU.

The sigmoid of `(value - threshold) / temperature` is `1 / (1 + a b)` with an exponential a of the threshold and b of
the value. So a pair costs a division, and no exponential.

The functions compute what their counterparts in :mod:`~vicinal.losses.soft_ranks` do, in float32. Importing this module
imports numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vicinal.losses.row_functions import inverse_temperature, lowest_exponent, tolerance
from vicinal.utils.arrays import Floats
from vicinal.utils.compiled import compiled
from vicinal.utils.threads import run_parts

MIN_PAIRS_PER_THREAD = 2**16
SPREAD, LIMIT = 28.0, 57.2
"""In units of the temperature: thresholds share the exponentials of values if no further from their center than the
first. Exponents are clamped to the second, where the sigmoid is 0 or 1 in float32."""

# Sums may be reordered, or they would not be vectorized; infinities are padding.
loop = partial(compiled, error_model="numpy", fastmath={"reassoc", "contract", "arcp", "nsz"})
f32 = np.float32


class Step(NamedTuple):
    """The step function of a difference, see :func:`vicinal.losses.soft_ranks.count_above`."""

    is_exact: bool  # whether the temperature is 0
    is_linear: bool  # whether the function is linear from a difference on
    factor: np.float32  # the inverse of the temperature
    tolerance: np.float32  # difference up to which similarities are equal
    flushed: np.float32  # `a b` from which on the sigmoid is 0
    lowest: np.float32  # `a b` below which the function is linear
    linear_from: np.float32  # the difference of this `a b`
    slope: np.float32  # of the linear part


def count_above(thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float) -> Tensor:
    """See :func:`vicinal.losses.soft_ranks.count_above`."""
    counts = torch.zeros_like(thresholds, memory_format=torch.contiguous_format)
    _run(_count_above, thresholds, values, counts, step=_step(values, temperature, linear_from, slope))
    return counts


def count_above_backward(
    upstream: Tensor, thresholds: Tensor, values: Tensor, temperature: float, linear_from: float, slope: float
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`count_above` with respect to thresholds and values."""
    gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (thresholds, values)]
    step = _step(values, temperature, linear_from, slope)
    _run(_count_above_backward, thresholds, values, upstream.contiguous(), *gradients, step=step)
    return gradients[0], gradients[1]


def count_thresholds_above(thresholds: Tensor, values: Tensor, tolerance: float) -> Tensor:
    """See :func:`vicinal.losses.soft_ranks.count_thresholds_above`."""
    counts = torch.zeros_like(values, memory_format=torch.contiguous_format)
    _run(_count_thresholds_above, thresholds, values, counts, step=f32(tolerance))
    return counts


def _step(values: Tensor, temperature: float, linear_from: float, slope: float) -> Step:
    factor = inverse_temperature(temperature)
    return Step(
        is_exact=temperature == 0,
        is_linear=linear_from < math.inf,
        factor=f32(factor),
        tolerance=f32(tolerance(values)),
        flushed=f32(math.exp(-lowest_exponent(values.dtype))),
        lowest=f32(math.exp(-min(linear_from * factor, 80.0))),
        linear_from=f32(linear_from),
        slope=f32(slope),
    )


def _run(loop: Callable[..., None], thresholds: Tensor, values: Tensor, *tensors: Tensor, step: Any) -> None:
    """Run a loop over all rows, divided among as many threads as PyTorch uses."""
    arrays = [tensor.detach().numpy() for tensor in (thresholds.contiguous(), values.contiguous(), *tensors)]
    rows = len(values)
    threads = min(torch.get_num_threads(), thresholds.shape[1] * values.numel() // MIN_PAIRS_PER_THREAD, rows)
    if threads <= 1:
        loop(*arrays, step, 0, rows)
        return
    run_parts(partial(loop, *arrays, step), [rows * i // threads for i in range(threads + 1)], threads)


@loop
def _count_above(thresholds: Floats, values: Floats, counts: Floats, step: Step, begin: int, end: int) -> None:
    rates = np.empty(values.shape[1], np.float32)
    for row in range(begin, end):
        if step.is_exact:
            _count_exactly(thresholds[row], values[row], counts[row], step.tolerance)
            continue
        low, center = _next_group(thresholds[row], f32(-np.inf), step.factor)
        while low < np.inf:
            _exponentials(values[row], center, step.factor, rates)
            last = low
            for k in range(thresholds.shape[1]):
                threshold = thresholds[row, k]
                exponent = (threshold - center) * step.factor
                if threshold >= low and exponent <= SPREAD:
                    a = f32(math.exp(exponent))
                    if step.is_linear:
                        counts[row, k] = _sum_of_bounds(values[row], rates, a, threshold, step)
                    else:
                        counts[row, k] = _sum_of_sigmoids(rates, a, step.flushed)
                    last = max(last, threshold)
            low, center = _next_group(thresholds[row], last, step.factor)


@loop
def _count_above_backward(
    thresholds: Floats,
    values: Floats,
    upstream: Floats,
    grad_thresholds: Floats,
    grad_values: Floats,
    step: Step,
    begin: int,
    end: int,
) -> None:
    rates = np.empty(values.shape[1], np.float32)
    for row in range(begin, end):
        low, center = _next_group(thresholds[row], f32(-np.inf), step.factor)
        while low < np.inf:
            _exponentials(values[row], center, step.factor, rates)
            last = low
            for k in range(thresholds.shape[1]):
                threshold = thresholds[row, k]
                exponent = (threshold - center) * step.factor
                if threshold >= low and exponent <= SPREAD:
                    a, weight = f32(math.exp(exponent)), upstream[row, k] * step.factor
                    if step.is_linear:
                        total = _add_bounds(values[row], rates, a, threshold, step, weight, grad_values[row])
                    else:
                        total = _add_sigmoids(rates, a, step.flushed, weight, grad_values[row])
                    grad_thresholds[row, k] = -weight * total
                    last = max(last, threshold)
            low, center = _next_group(thresholds[row], last, step.factor)


@loop
def _count_thresholds_above(
    thresholds: Floats, values: Floats, counts: Floats, tolerance: np.float32, begin: int, end: int
) -> None:
    for row in range(begin, end):
        for k in range(thresholds.shape[1]):
            threshold = thresholds[row, k]
            if threshold < np.inf:
                for z in range(values.shape[1]):
                    counts[row, z] += f32(threshold > values[row, z] + tolerance)


@loop
def _next_group(thresholds: Floats, last: np.float32, factor: np.float32) -> tuple[np.float32, np.float32]:
    """The lowest threshold above the last one, inf if there is none, and the center of the group that it begins."""
    low = f32(np.inf)
    for k in range(len(thresholds)):
        if thresholds[k] > last:
            low = min(low, thresholds[k])
    return low, low + f32(SPREAD) / factor


@loop
def _exponentials(values: Floats, center: np.float32, factor: np.float32, rates: Floats) -> None:
    """Write `exp((center - value) * factor)`, exact to float32, by a polynomial, which is vectorized."""
    for z in range(len(rates)):
        x = min(max((center - values[z]) * factor, f32(-LIMIT)), f32(LIMIT))
        n = np.floor(x * f32(1.44269504) + f32(0.5))  # x = n log 2 + f
        f = (x - n * f32(0.693359375)) - n * f32(-2.12194440e-4)
        p = f32(1.9875691500e-4) * f + f32(1.3981999507e-3)
        p = (p * f + f32(8.3334519073e-3)) * f + f32(4.1665795894e-2)
        p = (p * f + f32(1.6666665459e-1)) * f + f32(5.0000001201e-1)
        power = np.int32((np.int32(n) + 127) << 23).view(np.float32)  # 2^n
        rates[z] = (p * f * f + f + f32(1.0)) * power


@loop
def _count_exactly(thresholds: Floats, values: Floats, counts: Floats, tolerance: np.float32) -> None:
    for k in range(len(thresholds)):
        threshold, count = thresholds[k], f32(0.0)
        for z in range(len(values)):
            count += f32(values[z] - threshold >= -tolerance)
        if threshold < np.inf:
            counts[k] = count


@loop
def _sum_of_sigmoids(rates: Floats, a: np.float32, flushed: np.float32) -> np.float32:
    total = f32(0.0)
    for z in range(len(rates)):
        ab = a * rates[z]
        total += f32(1.0) / (f32(1.0) + ab) if ab < flushed else f32(0.0)
    return total


@loop
def _add_sigmoids(
    rates: Floats, a: np.float32, flushed: np.float32, weight: np.float32, gradient: Floats
) -> np.float32:
    """Add the weighted derivatives of the sigmoids, in units of the factor; return their sum without the weight."""
    total = f32(0.0)
    for z in range(len(rates)):
        ab = a * rates[z]
        sigmoid = f32(1.0) / (f32(1.0) + ab) if ab < flushed else f32(0.0)
        slope = sigmoid - sigmoid * sigmoid
        total += slope
        gradient[z] += slope * weight
    return total


@loop
def _sum_of_bounds(values: Floats, rates: Floats, a: np.float32, threshold: np.float32, step: Step) -> np.float32:
    total = f32(0.0)
    for z in range(len(rates)):
        ab, difference = a * rates[z], values[z] - threshold
        sigmoid = f32(1.0) / (f32(1.0) + max(ab, step.lowest)) if ab < step.flushed else f32(0.0)
        half = f32(0.5) if difference >= -step.tolerance else f32(0.0)
        total += sigmoid + half + step.slope * max(difference - step.linear_from, f32(0.0))
    return total


@loop
def _add_bounds(
    values: Floats,
    rates: Floats,
    a: np.float32,
    threshold: np.float32,
    step: Step,
    weight: np.float32,
    gradient: Floats,
) -> np.float32:
    """Like `_add_sigmoids`, for the step function with a linear part."""
    total, linear = f32(0.0), step.slope / step.factor
    for z in range(len(rates)):
        ab = a * rates[z]
        sigmoid = f32(1.0) / (f32(1.0) + ab) if ab < step.flushed else f32(0.0)
        slope = linear if values[z] - threshold > step.linear_from else sigmoid - sigmoid * sigmoid
        total += slope
        gradient[z] += slope * weight
    return total
