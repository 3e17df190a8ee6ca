"""Compiled kernels that encode and decode the scores of positives, and sum up their ranks.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vicinal.utils.arrays import Booleans, Floats, Integers, ShortIntegers
from vicinal.utils.compiled import compiled

EXCLUDED_KEY = np.iinfo(np.int64).max  # ranks after everything
MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 but its sign


class LabelPairs(NamedTuple):
    """Some queries, each with all gallery rows that have its label, which are its pairs.

    Attributes:
        queries: int64 [some], ordered by label.
        gallery: int64 [others], the gallery rows with their labels, label by label.
        offsets: int64 [some], where the rows with the label of each query begin in `gallery`.
        starts: int64 [some + 1], where the pairs of each query begin, if all are numbered one query after the other.
    """

    queries: Integers
    gallery: Integers
    offsets: Integers
    starts: Integers


class ExcludedPairs(NamedTuple):
    """What is excluded from the rankings of queries: themselves, and positives of the same group.

    Attributes:
        exclude_self: int64 [q], the gallery row that is the query itself, -1 for none.
        query_groups: int64 [q], -1 for no group.
        gallery_groups: int64 [g].
        query_labels: int64 [q], the labels that define the positives which groups exclude; -1 for no positives.
        gallery_labels: int64 [g].
    """

    exclude_self: Integers
    query_groups: Integers
    gallery_groups: Integers
    query_labels: Integers
    gallery_labels: Integers


@compiled
def gather_scores(tile: Floats, left: int, pairs: LabelPairs, scores: Floats) -> None:
    """Take the scores of the pairs in a tile, whose columns are those from `left` on of `pairs.gallery`."""
    for query in range(len(pairs.queries)):
        offset = pairs.offsets[query]
        first = pairs.starts[query] - offset  # what the pair of a column is numbered by
        end = min(offset + pairs.starts[query + 1] - pairs.starts[query], left + tile.shape[1])
        for column in range(max(offset, left), end):
            scores[first + column] = tile[query, column - left]


@compiled
def write_keys(negated: ShortIntegers, pairs: LabelPairs, excluded: ExcludedPairs, keys: Integers) -> None:
    """Write the ranking key of each pair, from the bits of its negated score; see `ranking_keys`."""
    for number in range(len(pairs.queries)):
        query = pairs.queries[number]
        itself, group, label = excluded.exclude_self[query], excluded.query_groups[query], excluded.query_labels[query]
        for pair in range(pairs.starts[number], pairs.starts[number + 1]):
            row = pairs.gallery[pairs.offsets[number] + pair - pairs.starts[number]]
            bits = np.int64(negated[pair])
            bits ^= (bits >> 63) & MAGNITUDE
            keys[pair] = (bits << 32) | row
            is_of_group = group >= 0 and label >= 0 and excluded.gallery_groups[row] == group
            if row == itself or (is_of_group and excluded.gallery_labels[row] == label):
                keys[pair] = EXCLUDED_KEY


@compiled
def read_keys(
    keys: Integers, starts: Integers, slots: Integers, scores: Floats, rows: ShortIntegers, counts: Integers
) -> None:
    """Write the scores and the rows of sorted keys to the slots of each query, and count them."""
    for query in range(len(slots)):
        slot, counts[query] = slots[query] - starts[query], 0
        for pair in range(starts[query], starts[query + 1]):
            if keys[pair] == EXCLUDED_KEY:
                break
            bits = np.int32(keys[pair] >> 32)
            negated = np.int32(bits ^ ((bits >> 31) & MAGNITUDE)).view(np.float32)
            scores[slot + pair] = np.float32(0) - negated  # never -0.0
            rows[slot + pair] = np.int32(keys[pair])
            counts[query] += 1


@compiled
def sum_up(
    scores: Floats, first: Integers, counts: Integers, num_before: ShortIntegers, is_tied: Booleans, begin: int,
    ranks: Integers,
) -> int:  # fmt: skip
    """Write the ranks of the positives of some queries, from `begin` on, and return how many of them are tied.

    Of positives with equal scores at least one is marked in `is_tied`.
    """
    position, num_ties = 0, 0
    for number in range(len(counts)):
        slot, before, run, is_run_tied = first[number], 0, 0, False
        for positive in range(counts[number]):
            if positive > 0 and scores[slot + positive] != scores[slot + positive - 1]:
                run, is_run_tied = 0, False
            before += num_before[slot + positive + begin + number]
            ranks[position + positive] = before + positive + 1
            run += 1
            if is_run_tied:
                num_ties += 1
            elif is_tied[slot + positive]:
                is_run_tied = True
                num_ties += run
        position += counts[number]
    return num_ties
