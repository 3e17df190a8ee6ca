"""Compiled kernels: they encode and decode the scores of positives, count the scores before them, and sum up the ranks.

Importing this module imports numba; it is imported when counting begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vicinal.evaluation.counting.positives import MASKED, RankCounts, Tile
from vicinal.evaluation.relevance import ExcludedPairs, LabelPairs
from vicinal.utils.arrays import Booleans, Floats, Integers, ShortIntegers
from vicinal.utils.compiled import compiled

LANES = 128  # columns that are read together where a tile is read by columns: some cache lines of each row
PADDING = 16  # so that rows whose length is a power of two do not compete for the same cache lines
TRANSPOSED_ROWS = 16  # rows of a tile that are copied to columns at a time
LANE = 64  # scores that are compared at a time with the lowest positive
MIN_SCORES_PER_SEARCH = 24  # in a row, per score above the lowest positive; with fewer, intervals are counted
MIN_INTERVALS, MAX_INTERVALS = 64, 4096  # of one query
INTERVALS_PER_POSITIVE = 16
FINEST_SCALE = 2**20  # intervals per unit of score where all positives have the same score
EXCLUDED_KEY = np.iinfo(np.int64).max  # ranks after everything
MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 except its sign


class Workspace(NamedTuple):
    """Buffers for counting in one row of scores, reused for the next row."""

    row: Floats  # [length], the scores
    intervals: ShortIntegers  # [length], the interval of each score
    candidates: ShortIntegers  # [length + 1], the positions of the scores to be compared with positives
    totals: ShortIntegers  # [4, intervals], how many scores are in each interval, in four counters
    holds_positive: ShortIntegers  # [intervals], 1 for an interval that holds a positive, else 0
    bounds: ShortIntegers  # [2, intervals], where the positives of an interval begin and end
    num_ahead: ShortIntegers  # [intervals], how many scores are in earlier intervals without positives


class QueryCounts(NamedTuple):
    """The slots of one query in :class:`~vicinal.evaluation.counting.positives.RankCounts`."""

    scores: Floats
    rows: ShortIntegers
    num_before: ShortIntegers
    is_tied: Booleans


@compiled
def count_rows(tile: Tile, counts: RankCounts, begin: int, end: int) -> None:
    """Count in the rows `begin` to `end` of a tile, which are queries."""
    workspace = _workspace(tile.scores.shape[1])
    for row in range(begin, end):
        if counts.positives.counts[tile.start + row]:
            _copy(tile.scores[row], workspace.row)
            _count(workspace, tile.start + row, tile.first_row, counts)


@compiled
def count_columns(tile: Tile, counts: RankCounts, begin: int, end: int) -> None:
    """Count in the columns `begin` to `end` of a tile; several are copied together, since memory is read by lines."""
    scores = tile.scores
    workspace = _workspace(scores.shape[0])
    columns = np.empty((LANES, scores.shape[0] + PADDING), dtype=np.float32)
    for left in range(begin, end, LANES):
        right = min(left + LANES, end)
        for top in range(0, scores.shape[0], TRANSPOSED_ROWS):
            bottom = min(top + TRANSPOSED_ROWS, scores.shape[0])
            for column in range(left, right):
                for row in range(top, bottom):
                    columns[column - left, row] = scores[row, column]
        for column in range(left, right):
            if counts.positives.counts[tile.start + column]:
                _copy(columns[column - left], workspace.row)
                _count(workspace, tile.start + column, tile.first_row, counts)


@compiled
def _copy(scores: Floats, row: Floats) -> None:
    """Fill a row with the first scores; an assignment of slices would take seconds to compile."""
    for position in range(len(row)):
        row[position] = scores[position]


@compiled
def _workspace(length: int) -> Workspace:
    return Workspace(
        np.empty(length, np.float32),
        np.empty(length, np.int32),
        np.empty(length + 1, np.int32),
        np.zeros((4, MAX_INTERVALS + 1), np.int32),
        np.zeros(MAX_INTERVALS + 1, np.int32),
        np.empty((2, MAX_INTERVALS + 1), np.int32),
        np.empty(MAX_INTERVALS + 1, np.int32),
    )


@compiled
def _count(workspace: Workspace, query: int, first_row: int, counts: RankCounts) -> None:
    """Count in the row of scores in the workspace, which is changed."""
    row, intervals, bounds = workspace.row, workspace.intervals, workspace.bounds
    positives = _query_counts(counts, query)
    count = len(positives.scores)
    _mask(row, first_row, counts.rows_by_label[counts.begin[query] : counts.end[query]])
    num_above = _find_above(row, positives.scores[count - 1], workspace.candidates)
    if num_above <= len(row) // MIN_SCORES_PER_SEARCH:
        for number in range(num_above):
            position = workspace.candidates[number]
            _compare(row[position], first_row + position, 0, count, positives)
        return
    # Clearing the counters of many intervals takes time of its own.
    last = min(max(MIN_INTERVALS, min(INTERVALS_PER_POSITIVE * count, len(row) // 2)), MAX_INTERVALS)
    scale = _scale(positives.scores[0], positives.scores[count - 1], last)
    _find_intervals(row, positives.scores[0], scale, last, intervals)
    positive_intervals = np.empty(count, np.int32)
    _find_intervals(positives.scores, positives.scores[0], scale, last, positive_intervals)
    for position in range(count - 1, -1, -1):
        bounds[0, positive_intervals[position]] = position
    for position in range(count):
        bounds[1, positive_intervals[position]] = position + 1
        workspace.holds_positive[positive_intervals[position]] = 1
    workspace.totals[:, : last + 1] = 0
    num_candidates = _distribute(workspace)
    _credit_intervals(workspace, positive_intervals, positives.num_before, last)
    for number in range(num_candidates):
        position = workspace.candidates[number]
        interval = intervals[position]
        _compare(row[position], first_row + position, bounds[0, interval], bounds[1, interval], positives)


@compiled
def _find_above(row: Floats, lowest: np.float32, positions: ShortIntegers) -> int:
    """List the positions of scores not below the lowest positive, but stop at too many; return their number."""
    num_found, unrolled = 0, len(row) // LANE * LANE
    for start in range(0, unrolled, LANE):
        number = np.int32(0)
        for lane in range(LANE):
            number += np.int32(row[start + lane] >= lowest)
        if number > 0:
            for lane in range(LANE):
                positions[num_found] = start + lane
                num_found += row[start + lane] >= lowest
            if num_found > len(row) // MIN_SCORES_PER_SEARCH:
                return num_found
    for position in range(unrolled, len(row)):
        positions[num_found] = position
        num_found += row[position] >= lowest
    return num_found


@compiled
def _query_counts(counts: RankCounts, query: int) -> QueryCounts:
    first = counts.positives.first[query]
    end = first + counts.positives.counts[query]
    return QueryCounts(
        counts.positives.scores[first:end],
        counts.positives.rows[first:end],
        counts.num_before[first + query : end + query + 1],
        counts.is_tied[first:end],
    )


@compiled
def _find_intervals(
    scores: Floats, highest: np.float32, scale: np.float32, last: int, intervals: ShortIntegers
) -> None:
    """Write the interval of each score: 0 above the highest positive, and never a later one for a higher score."""
    zero, one, limit = np.float32(0), np.float32(1), np.float32(last)
    for position in range(len(scores)):
        intervals[position] = np.int32(max(zero, min(limit, (highest - scores[position]) * scale + one)))


@compiled
def _mask(row: Floats, first_row: int, same_label: Integers) -> None:
    """Mask the gallery rows that have the label of the query."""
    position = np.searchsorted(same_label, first_row)
    while position < len(same_label) and same_label[position] < first_row + len(row):
        row[same_label[position] - first_row] = np.float32(MASKED)
        position += 1


@compiled
def _scale(highest: np.float32, lowest: np.float32, intervals: int) -> np.float32:
    """Intervals per unit of score, so that the scores of the positives take all intervals but three."""
    if highest > lowest:
        scale = np.float32(np.float32(intervals - 2) / (highest - lowest))
        if np.isfinite(scale):
            return scale
    return np.float32(FINEST_SCALE)


@compiled
def _distribute(workspace: Workspace) -> int:
    """Count scores by interval, and list the positions of those whose interval holds a positive; return their number.

    Four counters take turns: adjacent scores are often in one interval, and would wait for a single counter.
    """
    intervals, totals = workspace.intervals, workspace.totals
    candidates, holds_positive = workspace.candidates, workspace.holds_positive
    num_found = np.uint32(0)
    unrolled = len(intervals) // 4 * 4
    for position in range(0, unrolled, 4):
        for lane in range(4):
            interval = np.uint32(intervals[position + lane])
            totals[lane, interval] += 1
            candidates[num_found] = position + lane
            num_found += np.uint32(holds_positive[interval])
    for position in range(unrolled, len(intervals)):
        interval = np.uint32(intervals[position])
        totals[0, interval] += 1
        candidates[num_found] = position
        num_found += np.uint32(holds_positive[interval])
    return int(num_found)


@compiled
def _credit_intervals(
    workspace: Workspace, positive_intervals: ShortIntegers, num_before: ShortIntegers, last: int
) -> None:
    """Credit the scores between the intervals of positives to the next positive, and reset `holds_positive`."""
    totals, holds_positive, num_ahead = workspace.totals, workspace.holds_positive, workspace.num_ahead
    total = np.int32(0)
    for interval in range(last + 1):
        num_ahead[interval] = total
        num_scores = totals[0, interval] + totals[1, interval] + totals[2, interval] + totals[3, interval]
        total += num_scores * (1 - holds_positive[interval])
    num_before[0] += num_ahead[positive_intervals[0]]
    for position in range(1, len(positive_intervals)):
        num_before[position] += num_ahead[positive_intervals[position]] - num_ahead[positive_intervals[position - 1]]
    for position in range(len(positive_intervals)):
        holds_positive[positive_intervals[position]] = 0


@compiled
def _compare(score: np.float32, row: int, low: int, high: int, positives: QueryCounts) -> None:
    """Credit one score to the first positive that it ranks before, which is one from `low` to `high`."""
    scores = positives.scores
    while low < high:
        middle = (low + high) // 2
        if scores[middle] > score or (scores[middle] == score and positives.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    positives.num_before[low] += 1
    if low < len(scores) and scores[low] == score:
        positives.is_tied[low] = True
    elif low > 0 and scores[low - 1] == score:
        positives.is_tied[low - 1] = True


@compiled
def gather_scores(tile: Floats, left: int, pairs: LabelPairs, scores: Floats) -> None:
    """Take the scores of the pairs from a tile, whose columns are `pairs.gallery` from `left` on."""
    for query in range(len(pairs.queries)):
        offset = pairs.offsets[query]
        first = pairs.starts[query] - offset  # the number of the pair in column 0
        end = min(offset + pairs.starts[query + 1] - pairs.starts[query], left + tile.shape[1])
        for column in range(max(offset, left), end):
            scores[first + column] = tile[query, column - left]


@compiled
def write_keys(negated: ShortIntegers, pairs: LabelPairs, excluded: ExcludedPairs, keys: Integers) -> None:
    """Write the ranking key of each pair, from the bits of its negated score; see `ranking_keys`."""
    for number in range(len(pairs.queries)):
        query = pairs.queries[number]
        own_row, group, label = excluded.exclude_self[query], excluded.query_groups[query], excluded.query_labels[query]
        for pair in range(pairs.starts[number], pairs.starts[number + 1]):
            row = pairs.gallery[pairs.offsets[number] + pair - pairs.starts[number]]
            bits = np.int64(negated[pair])
            bits ^= (bits >> 63) & MAGNITUDE
            keys[pair] = (bits << 32) | row
            is_of_group = group >= 0 and label >= 0 and excluded.gallery_groups[row] == group
            if row == own_row or (is_of_group and excluded.gallery_labels[row] == label):
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
def write_ranks(
    scores: Floats, first: Integers, counts: Integers, num_before: ShortIntegers, is_tied: Booleans, first_query: int,
    ranks: Integers,
) -> int:  # fmt: skip
    """Write the ranks of the positives of some queries, from `first_query` on, and return how many of them are tied.

    Of positives with equal scores at least one is marked in `is_tied`.
    """
    position, num_ties = 0, 0
    for query in range(len(counts)):
        slot, before, num_equal, is_run_tied = first[query], 0, 0, False
        for positive in range(counts[query]):
            if positive > 0 and scores[slot + positive] != scores[slot + positive - 1]:
                num_equal, is_run_tied = 0, False
            before += num_before[slot + positive + first_query + query]
            ranks[position + positive] = before + positive + 1
            num_equal += 1
            if is_run_tied:
                num_ties += 1
            elif is_tied[slot + positive]:
                is_run_tied = True
                num_ties += num_equal
        position += counts[query]
    return num_ties
