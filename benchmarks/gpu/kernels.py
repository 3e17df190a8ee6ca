"""The Triton kernels of the losses and of evaluation, beside the PyTorch operations that they replace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.rows import Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings, measured
from vicinal.evaluation import Relevance
from vicinal.evaluation.counting import counter as counting
from vicinal.evaluation.counting.counter import MAX_KERNEL_POSITIVES, DeviceCounter
from vicinal.evaluation.counting.positives import Positives
from vicinal.losses import soft_ranks, triplets

KERNEL, REFERENCE = "kernel", "PyTorch"
SIZES, SMALL_SIZES = ((4096, 3, 4096), (4096, 63, 4096), (2048, 600, 16384)), ((6, 3, 20), (6, 11, 70))
"""Rows, positives of each and other numbers of each."""


@dataclass(frozen=True)
class Operation:
    """An operation that has a kernel.

    Attributes:
        name: such as count_above.
        make: inputs on a device -> a function that computes it, and returns tensors or arrays.
        exact: whether kernel and PyTorch give the same numbers, or only nearly so.
    """

    name: str
    make: Callable[[tuple[int, int, int], torch.device], Callable[[], Any]]
    exact: bool = False


def measurements(settings: Settings) -> Iterator[Measurement]:
    """Each operation by its kernel and by PyTorch, at each size."""
    for operation in OPERATIONS:
        for size in SMALL_SIZES if settings.small else SIZES:
            for who in (KERNEL, REFERENCE):
                key = Key("kernels", operation.name, who, describe(size))
                yield Measurement(key, partial(_measure, operation, size, who, settings))


def describe(size: tuple[int, int, int]) -> str:
    """A size in words."""
    return f"{size[0]:,} rows, {size[1]:,} positives, {size[2]:,} others"


def with_kernels(used: bool) -> AbstractContextManager[object]:
    """The operations take their kernels, or do not, whatever the device."""
    stack = ExitStack()
    for module in (soft_ranks, triplets, counting):
        stack.enter_context(patch.object(module, "uses_kernel", lambda *_: used))
    return stack


def compute(operation: Operation, size: tuple[int, int, int], device: torch.device, kernel: bool) -> list[Any]:
    """The results of an operation, by its kernel or by PyTorch."""
    with with_kernels(kernel):
        results = operation.make(size, device)()
    if isinstance(results, DeviceCounter):
        return [results.num_before.reshape(size[0], -1)[:, :-1]]  # what ranks after all positives is counted by none
    return tree_leaves(results)


def _measure(operation: Operation, size: tuple[int, int, int], who: str, settings: Settings) -> Numbers:
    run = operation.make(size, settings.device)
    with with_kernels(who == KERNEL):
        numbers = measured(run, settings)
    # What must be read at least: each of the other numbers, once.
    return {**numbers, "gb_per_s": 4e-6 * size[0] * size[2] / numbers["ms"]}


def _rows(size: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Positives and others, ragged: the first row is empty, the second full; some numbers are equal."""
    return _ragged(size[0], size[1], math.inf, 0).to(device), _ragged(size[0], size[2], -math.inf, 1).to(device)


def _ragged(rows: int, columns: int, padding: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(rows, columns, generator=generator) * 40).round() / 20 - 1
    number = torch.randint(columns // 2, columns + 1, (rows, 1), generator=generator)
    number[0], number[1] = 0, columns
    return values.masked_fill(torch.arange(columns) >= number, padding)


def _count_above(
    temperature: float, linear_from: float, slope: float, size: tuple[int, int, int], device: torch.device
) -> Callable[[], Any]:
    return partial(soft_ranks._count_above, *_rows(size, device), temperature, linear_from, slope)


def _count_above_backward(
    temperature: float, linear_from: float, slope: float, size: tuple[int, int, int], device: torch.device
) -> Callable[[], Any]:
    thresholds, values = _rows(size, device)
    upstream = torch.randn(thresholds.shape, generator=torch.Generator().manual_seed(2)).to(device)
    return partial(soft_ranks._count_above_backward, upstream, thresholds, values, temperature, linear_from, slope)


def _count_thresholds_above(size: tuple[int, int, int], device: torch.device) -> Callable[[], Any]:
    return partial(soft_ranks._count_thresholds_above, *_rows(size, device))


def _sum_over_triplets(
    soft: bool, semi_hard: bool, size: tuple[int, int, int], device: torch.device
) -> Callable[[], Any]:
    return partial(triplets._sum_over_triplets, *_rows(size, device), 0.12, soft, semi_hard)


def _count_ranks(size: tuple[int, int, int], device: torch.device) -> Callable[[], Any]:
    """Of a tile of scores with equal ones, in which each query has the first images of the gallery as positives."""
    rows, num_positives, columns = size
    num_positives = min(num_positives, MAX_KERNEL_POSITIVES)
    rng = np.random.default_rng(0)
    scores = (rng.integers(-50, 50, (rows, columns)) / 50).astype(np.float32)
    order = np.argsort(-scores[:, :num_positives], axis=1, kind="stable").astype(np.int32)
    labels = (np.arange(columns) >= num_positives).astype(np.int64)
    relevance = Relevance(np.zeros(rows, np.int64), labels)
    counts = np.full(rows, num_positives)
    first = np.concatenate([[0], np.cumsum(counts)])
    positives = Positives(np.take_along_axis(scores, order, axis=1).ravel(), order.ravel(), first, counts)
    counter = DeviceCounter(positives, relevance, 0, device)
    tile = torch.from_numpy(scores).to(device)

    def run() -> DeviceCounter:
        counter.count(tile, 0, 0)
        return counter

    return run


OPERATIONS = [
    Operation("count_above, sigmoid", partial(_count_above, 0.05, math.inf, 0.0)),
    Operation("count_above, exact", partial(_count_above, 0.0, math.inf, 0.0), exact=True),
    Operation("count_above, upper bound", partial(_count_above, 0.05, 0.1, 20.0)),
    Operation("count_above_backward, sigmoid", partial(_count_above_backward, 0.05, math.inf, 0.0)),
    Operation("count_above_backward, upper bound", partial(_count_above_backward, 0.05, 0.1, 20.0)),
    Operation("count_thresholds_above", _count_thresholds_above, exact=True),
    Operation("sum_over_triplets", partial(_sum_over_triplets, False, False)),
    Operation("sum_over_triplets, soft", partial(_sum_over_triplets, True, False)),
    Operation("sum_over_triplets, semi-hard", partial(_sum_over_triplets, False, True)),
    Operation("ranks of positives", _count_ranks, exact=True),
]
