"""The counting of :mod:`~vicinal.evaluation.counting.counter` as a Triton kernel, which reads each score once.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vicinal.utils.devices import block_sizes


class Slots(NamedTuple):
    """The positives of some queries on a device, and their counts; arguments of kernels, in their order.

    See :class:`~vicinal.evaluation.counting.positives.RankCounts`.
    """

    keys: Tensor  # int64 [slots], see `ranking_keys`
    first: Tensor  # int64 [q], the first slot of each query
    counts: Tensor  # int64 [q]
    query_labels: Tensor  # int64 [q]
    gallery_labels: Tensor  # int64 [g]
    num_before: Tensor  # int32 [slots + q]
    is_tied: Tensor  # uint8 [slots]


def count(scores: Tensor, slots: Slots, start: int, first_row: int, max_count: int) -> None:
    """Add the counts of a tile that begins at query `start` and gallery row `first_row`; one program per query."""
    kernel: Any = _count
    with torch.cuda.device_of(scores):  # Triton takes the current one
        kernel[len(scores),](
            scores, *slots, start, first_row, scores.shape[1], *scores.stride(),
            **block_sizes(max_count, scores.shape[1]),
        )  # fmt: skip


@triton.jit
def _count(
    scores, keys, first_slots, counts, query_labels, gallery_labels, num_before, is_tied, start, first_row, columns,
    row_stride, column_stride, block_p: tl.constexpr, block_q: tl.constexpr,
):  # fmt: skip
    query = start + tl.program_id(0).to(tl.int64)
    first, number, label = tl.load(first_slots + query), tl.load(counts + query), tl.load(query_labels + query)
    row = scores + tl.program_id(0).to(tl.int64) * row_stride
    labels = gallery_labels + first_row
    step = tl.arange(0, block_p)
    last = 0  # number of scores before the last slot of the previous part
    for part in range(0, number, block_p):
        slot = part + step
        threshold, own_column = decode(keys + first, slot, number, first_row)
        # Compared and added as floats, a pair takes four instructions; a counter has far less than 2^24 columns.
        above = tl.zeros([block_p, block_q], tl.float32)
        not_below = tl.zeros([block_p, block_q], tl.float32)
        for left in range(0, columns, block_q):
            _, score = load_counted(row, column_stride, labels, label, columns, left, block_q)
            above += tl.where(score[None, :] > threshold[:, None], 1.0, 0.0)
            not_below += tl.where(score[None, :] >= threshold[:, None], 1.0, 0.0)
        before = tl.sum(above.to(tl.int32), 1)
        ties = tl.sum(not_below.to(tl.int32), 1) - before
        if tl.max(ties, 0) > 0:  # ties are rare, and rank in the order of the gallery
            for left in range(0, columns, block_q):
                column, score = load_counted(row, column_stride, labels, label, columns, left, block_q)
                is_ahead = (score[None, :] == threshold[:, None]) & (column[None, :] < own_column[:, None])
                before += tl.sum(is_ahead.to(tl.int32), 1)
        where = num_before + first + query
        add_counts(where, is_tied + first, slot, number, before, ties, last, step)
        last = tl.max(before, 0)


@triton.jit
def decode(keys, slot, number, first_row):
    """The scores of the ranking keys of some slots, inf for unused slots, and their columns in the tile."""
    is_slot = slot < number
    key = tl.load(keys + slot, mask=is_slot, other=0)
    high = (key >> 32).to(tl.int32)
    score = 0.0 - (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(is_slot, score, float("inf")), (key & 0xFFFFFFFF).to(tl.int32) - first_row


@triton.jit
def add_counts(num_before, is_tied, slot, number, before, ties, last, step):
    """Add the number of scores between each slot and the previous one; `last` is the count before the first."""
    is_slot = slot < number
    previous = tl.sum(tl.where(step[None, :] + 1 == step[:, None], before[None, :], 0), 1)
    previous = tl.where(step == 0, last, previous)
    counts = tl.load(num_before + slot, mask=is_slot, other=0)
    tl.store(num_before + slot, counts + before - previous, mask=is_slot)
    tl.store(is_tied + slot, (ties > 0).to(tl.uint8), mask=is_slot & (ties > 0))


@triton.jit
def load_counted(row, column_stride, labels, label, columns, left, block_q: tl.constexpr):
    """Some columns and their scores; those that are not counted are NaN, which is neither above nor below a score."""
    column = left + tl.arange(0, block_q)
    inside = column < columns
    score = tl.load(row + column.to(tl.int64) * column_stride, mask=inside, other=0.0)
    is_counted = tl.load(labels + column, mask=inside, other=label) != label
    return column, tl.where(is_counted, score, float("nan"))
