"""How many scores rank before each positive: counted tile by tile, in about a nanosecond a score.

The range of a query's positives' scores is divided into intervals. Scores are counted by interval, without a branch, so
that it does not matter how many positives there are or how deep they lie; only scores of an interval that holds a
positive are compared with it. The compiled functions leave the interpreter free: plain threads share out the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.evaluation.positives import Positives
from vicinal.evaluation.relevance import Relevance

LANES = 16  # columns read together where a tile is read by columns: as many float32 as a cache line has
PADDING = 16  # so that rows of a power of two do not share their places in the cache
PIECES = 4  # of a tile for each thread
FEWEST, MOST = 64, 4096  # intervals of a query
FINE = 2**20  # intervals for a difference of one in score where all positives have the same
EACH = 16  # intervals for each positive
MASKED = float(np.finfo(np.float32).min) / 2  # a score below all, whose difference to others is no infinity

Integers = npt.NDArray[np.int64]
ShortIntegers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled when first called, kept on disk if any folder can be written, and free of the interpreter's lock."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's can be written
        return cast(Function, numba.njit(nogil=True)(function))


class Tally(NamedTuple):
    """What is counted for the positives of some queries.

    Attributes:
        positives: of the queries.
        by_label: int64 [g], gallery rows, one label after the other.
        begin: int64 [queries], where in `by_label` the rows of the query's label begin; these are never counted.
        end: int64 [queries], where they end.
        before: int32 [slots + queries], what ranks before this positive but not before the one ahead of it; the slots
            of a query have one more behind them, which nobody reads.
        tied: bool [slots], whether something that was counted has the score of this positive; of positives that are
            level with each other, one or two are marked.
    """

    positives: Positives
    by_label: Integers
    begin: Integers
    end: Integers
    before: ShortIntegers
    tied: npt.NDArray[np.bool_]


class Counter:
    """Counts in tiles of scores, on the processor, for some queries at one level of labels.

    Args:
        positives: of the queries.
        relevance: that they are of.
        start: the first of the queries.

    Example:
        >>> relevance = Relevance(np.array([1]), np.array([0, 1, 0, 0]))
        >>> positives = Positives(np.array([0.5], "f4"), np.array([1], "i4"), np.array([0, 1]), np.array([1]))
        >>> counter = Counter(positives, relevance, start=0)
        >>> counter.count(torch.tensor([[0.5, 0.5, 0.5, 0.9]]), start=0, first_row=0)
        >>> counter.before, counter.tied
        (array([2, 1], dtype=int32), array([ True]))
    """

    def __init__(self, positives: Positives, relevance: Relevance, start: int) -> None:
        queries = len(positives.counts)
        begin, end = relevance.same_label(start, start + queries)
        before = np.zeros(len(positives.rows) + queries, dtype=np.int32)
        tied = np.zeros(len(positives.rows), dtype=np.bool_)
        self._tally = Tally(positives, relevance.by_label, begin, end, before, tied)

    @property
    def before(self) -> ShortIntegers:
        """See :class:`Tally`."""
        return self._tally.before

    @property
    def tied(self) -> npt.NDArray[np.bool_]:
        """See :class:`Tally`."""
        return self._tally.tied

    def count(self, scores: Tensor, start: int, first_row: int) -> None:
        """Count in the scores of the queries from `start` on with the gallery rows from `first_row` on."""
        _in_threads(_count_rows, scores.numpy(), start, first_row, self._tally, len(scores))

    def count_transposed(self, scores: Tensor, start: int, first_row: int) -> None:
        """The same, but queries stand in the columns, and gallery rows in the rows."""
        _in_threads(_count_columns, scores.numpy(), start, first_row, self._tally, scores.shape[1])


def _in_threads(count: Callable[..., None], scores: Floats, start: int, first_row: int, tally: Tally, of: int) -> None:
    """Count for queries 0 to `of` of a tile, in as many threads as PyTorch uses."""
    threads = min(torch.get_num_threads(), -(-of // LANES))
    if threads == 1:
        count(scores, start, first_row, tally, 0, of)
        return
    cuts = np.unique(np.linspace(0, of, PIECES * threads + 1).astype(np.int64) // LANES * LANES)
    cuts[-1] = of
    with ThreadPoolExecutor(threads) as pool:
        parts = [pool.submit(count, scores, start, first_row, tally, *part) for part in pairwise(cuts.tolist())]
    for part in parts:
        part.result()  # raises what the thread did


@compiled
def _count_rows(scores: Floats, start: int, first_row: int, tally: Tally, begin: int, end: int) -> None:
    """Count in rows `begin` to `end` of a tile."""
    room = _room(scores.shape[1])
    for row in range(begin, end):
        if tally.positives.counts[start + row]:
            _copy(scores[row], room[0])
            _count(room, start + row, first_row, tally)


@compiled
def _count_columns(scores: Floats, start: int, first_row: int, tally: Tally, begin: int, end: int) -> None:
    """Count in columns `begin` to `end` of a tile; some columns are copied together, as memory is read by lines."""
    room = _room(scores.shape[0])
    columns = np.empty((LANES, scores.shape[0] + PADDING), dtype=np.float32)
    for left in range(begin, end, LANES):
        right = min(left + LANES, end)
        for row in range(scores.shape[0]):
            for column in range(left, right):
                columns[column - left, row] = scores[row, column]
        for column in range(left, right):
            if tally.positives.counts[start + column]:
                _copy(columns[column - left], room[0])
                _count(room, start + column, first_row, tally)


@compiled
def _copy(scores: Floats, row: Floats) -> None:
    """Fill a row with the first scores; an assignment of slices would take seconds to compile."""
    for place in range(len(row)):
        row[place] = scores[place]


@compiled
def _room(length: int) -> Any:
    """What counting in a row of this length needs: the row, its intervals, places in it; and for each interval how
    much lies in it, whether a positive does, where its positives begin and end, and how much lies before it.
    """
    return (
        np.empty(length, np.float32),
        np.empty(length, np.int32),
        np.empty(length + 1, np.int32),
        np.zeros((4, MOST + 1), np.int32),
        np.zeros(MOST + 1, np.int32),
        np.empty((2, MOST + 1), np.int32),
        np.empty(MOST + 1, np.int32),
    )


@compiled
def _count(room: Any, query: int, first_row: int, tally: Tally) -> None:
    """Count in one row of scores, which is changed."""
    row, which, places, amounts, held, bounds, ahead = room
    first = tally.positives.first[query]
    count = tally.positives.counts[query]
    scores = tally.positives.scores[first : first + count]
    rows = tally.positives.rows[first : first + count]
    before = tally.before[first + query : first + query + count + 1]
    tied = tally.tied[first : first + count]
    _mask(row, first_row, tally.by_label[tally.begin[query] : tally.end[query]])
    most = min(max(FEWEST, min(EACH * count, len(row) // 2)), MOST)  # many take time of their own
    scale = _scale(scores[0], scores[count - 1], most)
    _intervals(row, scores[0], scale, most, which)
    own = np.empty(count, np.int32)
    _intervals(scores, scores[0], scale, most, own)
    for position in range(count - 1, -1, -1):
        bounds[0, own[position]] = position
    for position in range(count):
        bounds[1, own[position]] = position + 1
        held[own[position]] = 1
    amounts[:, : most + 1] = 0
    found = _distribute(which, amounts, held, places)
    _settle(amounts, held, ahead, own, before, most)
    for number in range(found):
        place = places[number]
        low, high = bounds[0, which[place]], bounds[1, which[place]]
        _compare(row[place], first_row + place, scores, rows, low, high, before, tied)


@compiled
def _intervals(scores: Floats, highest: np.float32, scale: np.float32, most: int, which: ShortIntegers) -> None:
    """The interval of each score: higher scores never have a later one; those above the highest positive have 0."""
    zero, one, last = np.float32(0), np.float32(1), np.float32(most)
    for place in range(len(scores)):
        which[place] = np.int32(max(zero, min(last, (highest - scores[place]) * scale + one)))


@compiled
def _mask(row: Floats, first_row: int, members: Integers) -> None:
    """Take the query's own label out of a row of scores."""
    place = np.searchsorted(members, first_row)
    while place < len(members) and members[place] < first_row + len(row):
        row[members[place] - first_row] = np.float32(MASKED)
        place += 1


@compiled
def _scale(highest: np.float32, lowest: np.float32, intervals: int) -> np.float32:
    """Intervals for a difference of one in score, so that the positives' scores take all but three of them."""
    if highest > lowest:
        scale = np.float32(np.float32(intervals - 2) / (highest - lowest))
        if np.isfinite(scale):
            return scale
    return np.float32(FINE)


@compiled
def _distribute(which: ShortIntegers, amounts: ShortIntegers, held: ShortIntegers, places: ShortIntegers) -> int:
    """Count scores by interval, and list the places of those whose interval holds a positive; how many these are.

    Four counters in turn: scores next to each other are often of one interval, and must not wait for each other.
    """
    found = np.uint32(0)
    whole = len(which) // 4 * 4
    for place in range(0, whole, 4):
        for lane in range(4):
            interval = np.uint32(which[place + lane])
            amounts[lane, interval] += 1
            places[found] = place + lane
            found += np.uint32(held[interval])
    for place in range(whole, len(which)):
        interval = np.uint32(which[place])
        amounts[0, interval] += 1
        places[found] = place
        found += np.uint32(held[interval])
    return int(found)


@compiled
def _settle(
    amounts: ShortIntegers,
    held: ShortIntegers,
    ahead: ShortIntegers,
    own: ShortIntegers,
    before: ShortIntegers,
    most: int,
) -> None:
    """Credit what lies between the intervals of positives to the next positive, and clear which intervals hold any."""
    total = np.int32(0)
    for interval in range(most + 1):
        ahead[interval] = total
        here = amounts[0, interval] + amounts[1, interval] + amounts[2, interval] + amounts[3, interval]
        total += here * (1 - held[interval])
    before[0] += ahead[own[0]]
    for position in range(1, len(own)):
        before[position] += ahead[own[position]] - ahead[own[position - 1]]
    for position in range(len(own)):
        held[own[position]] = 0


@compiled
def _compare(
    score: np.float32,
    row: int,
    scores: Floats,
    rows: ShortIntegers,
    low: int,
    high: int,
    before: ShortIntegers,
    tied: npt.NDArray[np.bool_],
) -> None:
    """Credit one score to the first positive that it ranks before, which is one from `low` to `high`."""
    while low < high:
        middle = (low + high) // 2
        if scores[middle] > score or (scores[middle] == score and rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    before[low] += 1
    if low < len(scores) and scores[low] == score:
        tied[low] = True
    elif low > 0 and scores[low - 1] == score:
        tied[low - 1] = True
