"""The counting of :mod:`~vicinal.evaluation.device_counting` as a Triton kernel, which reads each score once.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vicinal.utils.kernels import block_sizes


def count(
    scores: Tensor,
    keys: Tensor,
    slots: tuple[Tensor, Tensor],
    labels: tuple[Tensor, Tensor],
    counts: tuple[Tensor, Tensor],
    start: int,
    first_row: int,
    max_count: int,
) -> None:
    """Add the counts of a tile; a program has one query.

    Args:
        scores: float32 [queries, columns], of any strides.
        keys: int64 [slots], those of the positives, see :func:`~vicinal.evaluation.positives.ranking_keys`.
        slots: int64 [q] each, the first slot of each query and the number of its positives.
        labels: int64 [q] of the queries, and int64 [g] of the gallery.
        counts: int32 [slots + q] and bool [slots], what is added to: `num_before` and `is_tied` of
            :class:`~vicinal.evaluation.counting.RankCounts`.
        start: the query of the first row.
        first_row: the gallery row of the first column.
        max_count: the largest number of positives.
    """
    num_before, is_tied = counts[0], counts[1].view(torch.uint8)
    kernel: Any = _count
    kernel[len(scores),](
        scores, keys, *slots, *labels, num_before, is_tied, start, first_row, scores.shape[1], *scores.stride(),
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
    for part in range(0, number, block_p):
        slot = part + tl.arange(0, block_p)
        is_slot, is_first = slot < number, slot == 0
        key = tl.load(keys + first + slot, mask=is_slot, other=0)
        previous = tl.load(keys + first + slot - 1, mask=is_slot & (slot > 0), other=0)
        before = tl.zeros([block_p], tl.int32)
        ties = tl.zeros([block_p], tl.int32)
        for left in range(0, columns, block_q):
            column = left + tl.arange(0, block_q)
            inside = column < columns
            score = tl.load(row + column.to(tl.int64) * column_stride, mask=inside, other=0.0)
            counted = inside & (tl.load(gallery_labels + first_row + column, mask=inside, other=label) != label)
            bits = (0.0 - score).to(tl.int32, bitcast=True).to(tl.int64)  # both zeros have the same
            other = ((bits ^ ((bits >> 63) & 0x7FFFFFFF)) << 32) | (first_row + column).to(tl.int64)
            is_before = (other[None, :] < key[:, None]) & (is_first[:, None] | (other[None, :] > previous[:, None]))
            is_equal = (other[None, :] >> 32) == (key[:, None] >> 32)
            before += tl.sum((is_before & counted[None, :]).to(tl.int32), 1)
            ties += tl.sum((is_equal & counted[None, :]).to(tl.int32), 1)
        where = num_before + first + query + slot
        tl.store(where, tl.load(where, mask=is_slot, other=0) + before, mask=is_slot)
        tl.store(is_tied + first + slot, tl.full([block_p], 1, tl.uint8), mask=is_slot & (ties > 0))
