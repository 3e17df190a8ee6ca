"""Triton kernels that count by scores in half precision, and compute exact scores where these do not decide.

See :mod:`~vicinal.evaluation.counting.half_precision`. Importing this module imports Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vicinal.evaluation.counting.device_kernel import Slots, add_counts, decode, load_counted
from vicinal.utils.kernels import block_sizes, power_of_two

if TYPE_CHECKING:
    from vicinal.evaluation.counting.half_precision import HalfScores
    from vicinal.evaluation.counting.positive_kernels import LabelPairs

MAX_DIMS = 1024
"""Dimensions that a program multiplies at a time."""
MAX_PROGRAMS = 64
"""That divide the pairs of a query."""
BLOCKS = tl.constexpr(4)
"""Blocks of columns after which is looked whether some of their pairs are open."""
SCALE = tl.constexpr(2.0**30)


def score_pairs(queries: Tensor, gallery: Tensor, pairs: LabelPairs, scores: Tensor) -> None:
    """Write the exact scores of pairs.

    Args:
        queries: float32 [q, dim], unit vectors.
        gallery: float32 [g, dim], likewise.
        pairs: of some of the queries.
        scores: float32 [pairs].
    """
    arrays = pairs.queries, pairs.gallery, pairs.offsets, pairs.starts
    given = [torch.from_numpy(array).to(scores.device, non_blocking=True) for array in arrays]
    dim = queries.shape[1]
    kernel: Any = _score_pairs
    programs = min(-(-len(scores) // len(pairs.queries)), MAX_PROGRAMS)  # about one pair each
    with torch.cuda.device_of(scores):  # Triton takes the current one
        kernel[len(pairs.queries), programs](queries, gallery, *given, scores, dim, block_d=_block_d(dim))


def count(products: Tensor, half: HalfScores, slots: Slots, start: int, first_row: int, max_count: int) -> None:
    """Add the counts of a tile; a program has one query.

    Args:
        products: float32 [queries, columns], of any strides: products of vectors in half precision.
        half: the queries that have slots, and the gallery.
        slots: what is added to.
        start: the query of the first row.
        first_row: the gallery row of the first column.
        max_count: the largest number of positives.
    """
    sides = half.queries, half.gallery
    units, radii, offsets = zip(*((each.units, each.radii, each.offsets) for each in sides), strict=True)
    dim = half.gallery.units.shape[1]
    kernel: Any = _count
    with torch.cuda.device_of(products):
        kernel[len(products),](
            products, *slots, *units, *radii, *offsets, *half.errors,
            start, first_row, products.shape[1], dim, *products.stride(),
            **block_sizes(max_count, products.shape[1]), block_d=_block_d(dim),
        )  # fmt: skip


def _block_d(dim: int) -> int:
    return min(power_of_two(dim), MAX_DIMS)


@triton.jit
def _score_pairs(query_units, gallery_units, queries, gallery, offsets, starts, scores, dim, block_d: tl.constexpr):
    number = tl.program_id(0)
    query, offset = tl.load(queries + number), tl.load(offsets + number)
    start, end = tl.load(starts + number), tl.load(starts + number + 1)
    for pair in range(start + tl.program_id(1), end, tl.num_programs(1)):
        row = tl.load(gallery + offset + pair - start)
        tl.store(scores + pair, _exact_score(query_units + query * dim, gallery_units + row * dim, dim, block_d))


@triton.jit
def _count(
    products, keys, first_slots, counts, query_labels, gallery_labels, num_before, is_tied,
    query_units, gallery_units, query_radii, gallery_radii, query_offsets, gallery_offsets,
    relative_error, absolute_error, start, first_row, columns, dim, row_stride, column_stride,
    block_p: tl.constexpr, block_q: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    query = start + tl.program_id(0).to(tl.int64)
    first, number, label = tl.load(first_slots + query), tl.load(counts + query), tl.load(query_labels + query)
    products += tl.program_id(0).to(tl.int64) * row_stride
    gallery_labels += first_row
    gallery_radii += first_row
    gallery_offsets += first_row
    gallery_units += tl.cast(first_row, tl.int64) * dim
    query_units += query * dim
    radius, offset = tl.load(query_radii + query), tl.load(query_offsets + query)
    step = tl.arange(0, block_p)
    last = 0  # what ranks before the last slot of the part before
    for part in range(0, number, block_p):
        slot = part + step
        threshold, own_column = decode(keys + first, slot, number, first_row)
        # Added as floats, a pair takes fewer instructions; a tile has far less than 2^24 columns.
        above = tl.zeros([block_p, block_q], tl.float32)
        not_below = tl.zeros([block_p, block_q], tl.float32)
        rescored = tl.zeros([block_p], tl.int32)
        ties = tl.zeros([block_p], tl.int32)
        num_open = 0
        for chunk in range(0, columns, BLOCKS * block_q):
            end = min(chunk + BLOCKS * block_q, columns)
            for left in range(chunk, end, block_q):
                _, lowest, highest = _score_bounds(
                    products, column_stride, gallery_labels, gallery_radii, gallery_offsets, label, radius, offset,
                    relative_error, absolute_error, columns, left, block_q,
                )  # fmt: skip
                above += tl.where(lowest[None, :] > threshold[:, None], 1.0, 0.0)
                not_below += tl.where(highest[None, :] >= threshold[:, None], 1.0, 0.0)
            total = tl.sum(tl.sum(not_below - above, 1).to(tl.int32), 0)
            if total > num_open:  # some pairs of the chunk are open, which are found once more, and scored
                for left in range(chunk, end, block_q):
                    column, lowest, highest = _score_bounds(
                        products, column_stride, gallery_labels, gallery_radii, gallery_offsets, label, radius, offset,
                        relative_error, absolute_error, columns, left, block_q,
                    )  # fmt: skip
                    is_open = (highest[None, :] >= threshold[:, None]) & (lowest[None, :] <= threshold[:, None])
                    ahead, tied = _compare_exactly(
                        is_open, column, threshold, own_column, columns, query_units, gallery_units, dim, block_d
                    )
                    rescored += ahead
                    ties += tied
                num_open = total
        before = tl.sum(above.to(tl.int32), 1) + rescored
        add_counts(num_before + first + query, is_tied + first, slot, number, before, ties, last, step)
        last = tl.max(before, 0)


@triton.jit
def _compare_exactly(
    is_open, column, threshold, own_column, columns, query_units, gallery_units, dim, block_d: tl.constexpr
):
    """How many of the open pairs of some columns rank before each threshold, and how many are as high."""
    ahead = tl.zeros_like(own_column)
    tied = tl.zeros_like(own_column)
    open_columns = tl.max(is_open.to(tl.int32), 0)
    while tl.max(open_columns, 0) > 0:
        at = tl.min(tl.where(open_columns > 0, column, columns), 0)
        exact = _exact_score(query_units, gallery_units + at.to(tl.int64) * dim, dim, block_d)
        is_compared = tl.max((is_open & (column == at)[None, :]).to(tl.int32), 1)
        is_ahead = (exact > threshold) | ((exact == threshold) & (at < own_column))
        ahead += tl.where(is_ahead, is_compared, 0)
        tied += tl.where(exact == threshold, is_compared, 0)
        open_columns = tl.where(column == at, 0, open_columns)
    return ahead, tied


@triton.jit
def _score_bounds(
    products, column_stride, labels, radii, offsets, label, radius, offset, relative_error, absolute_error,
    columns, left, block_q: tl.constexpr,
):  # fmt: skip
    """Some columns, and the lowest and the highest that their scores can be; NaN for those that are not counted."""
    column, product = load_counted(products, column_stride, labels, label, columns, left, block_q)
    inside = column < columns
    radius *= tl.load(radii + column, mask=inside, other=0.0)
    score = product * radius + (offset + tl.load(offsets + column, mask=inside, other=0.0))
    error = relative_error * radius + absolute_error
    return column, score - error, score + error


@triton.jit
def _exact_score(one, other, dim, block_d: tl.constexpr):
    """The product of two unit vectors as integers, rounded to float32; the sum of integers has any order."""
    total = tl.zeros([block_d], tl.int64)
    for left in range(0, dim, block_d):
        position = left + tl.arange(0, block_d)
        a = _integers(tl.load(one + position, mask=position < dim, other=0.0))
        b = _integers(tl.load(other + position, mask=position < dim, other=0.0))
        total += a.to(tl.int64) * b.to(tl.int64)
    return tl.sum(total, 0).to(tl.float32) * (1.0 / (SCALE * SCALE))


@triton.jit
def _integers(x):
    return tl.floor(x * SCALE + 0.5).to(tl.int32)
