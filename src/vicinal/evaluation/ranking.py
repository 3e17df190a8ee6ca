"""The ranks of every query's positives in its full ranking of the gallery: the one pass every metric reads from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vicinal.retrieval.rerank import Reranked
from vicinal.retrieval.scores import (
    BLOCK_ROWS,
    TILE_ROWS,
    ScoreBlock,
    UnitVectors,
    check_same_dim,
    round_up,
    rows_within_budget,
)

MOST_ROWS = 4096  # queries a block
PART_ROWS = 1024  # queries a block where the gallery comes in parts
MOST_RANKS = 2**20  # as many are held at once
COUNTED = 8  # positives that are counted among the same scores, before those are narrowed down
# Nanoseconds, as measured: counting takes so much a positive and a score; sorting so much a score.
COUNT_CALL, COUNT_SCORE, SORT_SCORE = 3000.0, 0.2, 12.0

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Part = tuple[int, Floats]  # scores of all queries of a block with gallery rows from the first on


class Relevance:
    """Which gallery rows are a query's positives, and which are left out of its ranking.

    Positives have the query's label. Left out are the query itself and its same-group matches: gallery rows of the same
    label and the same group (camera, sequence), as in person and vehicle re-identification.

    Args:
        query_labels: int64 [q]; a negative label matches nothing.
        gallery_labels: int64 [g].
        exclude: int64 [q], the gallery row that is the query itself, -1 (the default) for none.
        query_groups: int64 [q], -1 (the default) for none.
        gallery_groups: int64 [g].
        ranking: whose rankings these are, and so what is left out of them, in the place of `exclude` and groups. A
            coarser label has other positives in the same ranking.

    Example:
        >>> labels = np.array([0, 1, 0, 0])
        >>> relevance = Relevance(labels, labels, exclude=np.arange(4))
        >>> relevance.positives(0), relevance.ignored(0)
        (array([2, 3]), array([0]))
    """

    def __init__(
        self,
        query_labels: Integers,
        gallery_labels: Integers,
        exclude: Integers | None = None,
        query_groups: Integers | None = None,
        gallery_groups: Integers | None = None,
        ranking: Relevance | None = None,
    ) -> None:
        nothing = np.full(len(query_labels), -1)
        self._ranking = self if ranking is None else ranking
        self._exclude = nothing if exclude is None else exclude
        self._query_groups = nothing if query_groups is None else query_groups
        self._gallery_groups = np.full(len(gallery_labels), -1) if gallery_groups is None else gallery_groups
        self._order = np.argsort(gallery_labels, kind="stable")  # classes one after the other, rows ascending in each
        self._first = np.searchsorted(gallery_labels[self._order], query_labels, "left")
        self._last = np.searchsorted(gallery_labels[self._order], query_labels, "right")
        self._last[query_labels < 0] = self._first[query_labels < 0]

    def positives(self, query: int) -> Integers:
        """The gallery rows to be found, ascending."""
        matches = self._matches(query)
        if self._ranking is not self:
            return matches[~np.isin(matches, self._ranking.ignored(query))]
        return matches[~self._is_ignored(query, matches)]

    def ignored(self, query: int) -> Integers:
        """The gallery rows left out of the query's ranking."""
        if self._ranking is not self:
            return self._ranking.ignored(query)
        itself = self._exclude[query : query + 1]
        itself = itself[itself >= 0]
        if self._query_groups[query] < 0:
            return itself
        matches = self._matches(query)
        return np.union1d(matches[self._is_ignored(query, matches)], itself)

    def blocks(self, rows: int) -> Iterator[tuple[int, int]]:
        """All queries in blocks from start to stop: at most `rows`, and so few that their positives can be held."""
        ends = np.concatenate([[0], np.cumsum(self._last - self._first)])
        start = 0
        while start < len(ends) - 1:
            fitting = int(np.searchsorted(ends, ends[start] + MOST_RANKS, "right")) - 1
            stop = max(start + 1, min(start + rows, fitting))
            yield start, stop
            start = stop

    def _matches(self, query: int) -> Integers:
        return self._order[self._first[query] : self._last[query]]

    def _is_ignored(self, query: int, matches: Integers) -> npt.NDArray[np.bool_]:
        group = self._query_groups[query]
        itself: npt.NDArray[np.bool_] = matches == self._exclude[query]
        return itself | (self._gallery_groups[matches] == group) if group >= 0 else itself


@dataclass(frozen=True)
class Ranks:
    """The ranks of the positives of some queries, one query after the other.

    Attributes:
        ranks: int64 [positives], counted from 1, ascending within a query.
        counts: int64 [queries], how many of them each query has.
        ties: how many of the positives have exactly the score of a gallery row that is no positive, so that their rank
            is not the embedding's doing: equal scores rank in the order of the gallery.
    """

    ranks: Integers
    counts: Integers
    ties: int = 0


def positive_ranks(
    queries: UnitVectors,
    gallery: UnitVectors,
    relevance: Relevance,
    chunk: int | None = None,
    reranked: Reranked | None = None,
) -> Iterator[Ranks]:
    """Rank the gallery for each query by falling similarity and give the ranks of its positives, block by block.

    Equal similarities rank in the order of the gallery. Memory beside the vectors, whatever the gallery: at most
    64 MB of scores (a larger `chunk` than 4,096 takes 16 KB a query), and the ranks of a million positives at a time,
    or of one query's if these are more. A gallery that leaves room for fewer than 64 queries, of more than 262,144
    vectors, is compared in parts, and twice: first for the scores of the positives, then to count what ranks before.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: what is to be found and what is left out.
        chunk: queries a block, at most; by default chosen to fill the memory budget. The ranks do not depend on it.
        reranked: of these queries and this gallery; ranks are then those by raised similarities.

    Yields:
        The ranks of the next queries, in order.

    Raises:
        InputError: queries and gallery have different dimensions.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), "embedding")
        >>> labels = np.array([0, 0, 1])
        >>> [block.ranks for block in positive_ranks(vectors, vectors, Relevance(labels, labels, np.arange(3)))]
        [array([2, 2])]
    """
    for (ranks,) in level_ranks(queries, gallery, [relevance], chunk, reranked):
        yield ranks


def level_ranks(
    queries: UnitVectors,
    gallery: UnitVectors,
    levels: Sequence[Relevance],
    chunk: int | None = None,
    reranked: Reranked | None = None,
) -> Iterator[list[Ranks]]:
    """The ranks of the positives at several levels of labels, fine and coarse, from one pass over the similarities.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        levels: what is to be found at each; what is left out of the rankings is what the first says.
        chunk: as in :func:`positive_ranks`, and so is memory, but for every level's own ranks.
        reranked: as there.

    Yields:
        For the next queries, in order, their ranks at each level.

    Raises:
        InputError: queries and gallery have different dimensions.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), "embedding")
        >>> labels = np.array([0, 0, 1])
        >>> fine = Relevance(labels, labels, np.arange(3))
        >>> coarse = Relevance(labels // 2, labels // 2, ranking=fine)
        >>> [[ranks.ranks for ranks in block] for block in level_ranks(vectors, vectors, [fine, coarse])]
        [[array([2, 2]), array([1, 2, 1, 2, 1, 2])]]
    """
    check_same_dim(queries, gallery)
    rows, columns = _block_size(len(queries), len(gallery), chunk)
    block = ScoreBlock(rows, columns, queries.device)
    for start, stop in _blocks(levels, rows, reranked):
        raise_in = None if reranked is None else partial(reranked.raise_in, reranked.lifts(start, stop))
        vectors = queries.block(start, stop)
        parts: Callable[[], Iterator[Part]] = partial(_parts, vectors, gallery, block, columns, raise_in)
        if columns == len(gallery):  # the only part is still there the second time
            parts = partial(iter, list(parts()))
        yield _ranks(parts, levels, range(start, stop))


def _block_size(queries: int, gallery: int, chunk: int | None) -> tuple[int, int]:
    """Rows and columns of a block: all of the gallery if enough queries fit beside it, else parts of it."""
    rows = chunk or rows_within_budget(gallery, 0, MOST_ROWS) // TILE_ROWS * TILE_ROWS or PART_ROWS
    rows = min(rows, queries)
    columns = rows_within_budget(round_up(rows, TILE_ROWS), BLOCK_ROWS, max(gallery, BLOCK_ROWS))
    return rows, gallery if columns >= gallery else columns // BLOCK_ROWS * BLOCK_ROWS


def _blocks(levels: Sequence[Relevance], rows: int, reranked: Reranked | None) -> Iterator[tuple[int, int]]:
    """Blocks of queries of which the positives at all levels, and the lifts if there are any, can be held."""
    stops = np.unique([stop for relevance in levels for _, stop in relevance.blocks(rows)]).tolist()
    for start, stop in pairwise([0, *stops]):
        yield from [(start, stop)] if reranked is None else reranked.blocks(start, stop)


def _parts(
    queries: Tensor,
    gallery: UnitVectors,
    block: ScoreBlock,
    columns: int,
    raise_in: Callable[[Floats, int], None] | None,
) -> Iterator[Part]:
    for start in range(0, len(gallery), columns):
        scores = block.fill(queries, gallery, start, min(start + columns, len(gallery))).cpu().numpy()
        if raise_in is not None:
            raise_in(scores, start)
        yield start, scores


def _ranks(parts: Callable[[], Iterator[Part]], levels: Sequence[Relevance], queries: range) -> list[Ranks]:
    """The ranks of the positives of some queries, whose scores come in parts of the gallery, and come twice."""
    counters = [[_Counter(relevance.positives(query)) for query in queries] for relevance in levels]
    for start, scores in parts():
        for counter_of_level in counters:
            for row, counter in zip(scores, counter_of_level, strict=True):
                counter.find(row, start)
    for start, scores in parts():
        for position, query in enumerate(queries):
            row, ignored = scores[position], levels[0].ignored(query) - start
            row[ignored[(ignored >= 0) & (ignored < len(row))]] = -np.inf
            for counter_of_level in counters:
                counter_of_level[position].count(row, start)
    return [_gathered(counter_of_level) for counter_of_level in counters]


class _Counter:
    """What ranks before the positives of one query, and how much is level with them, as the gallery comes in parts."""

    def __init__(self, positives: Integers) -> None:
        self._positives = positives
        self._values = np.empty(len(positives), dtype=np.float32)
        self._before = np.zeros(len(positives), dtype=np.int64)
        self._equal = np.zeros(len(positives), dtype=np.int64)

    def find(self, row: Floats, start: int) -> None:
        """Keep the scores of those positives that stand in this part of the gallery, which begins at `start`."""
        first, last = self._positives.searchsorted((start, start + len(row)))
        self._values[first:last] = row[self._positives[first:last] - start]

    def count(self, row: Floats, start: int) -> None:
        """Count in this part, once all scores of positives are known."""
        before, equal = count_before(row, self._values, self._positives - start)
        self._before += before
        self._equal += equal

    def ranks(self) -> Integers:
        return np.sort(self._before) + 1

    def ties(self) -> int:
        """How many positives are level with something else than positives."""
        if not (self._equal > 1).any():
            return 0
        ordered = np.sort(self._values)
        among = np.searchsorted(ordered, self._values, "right") - np.searchsorted(ordered, self._values, "left")
        return int((self._equal > among).sum())


def _gathered(counters: Sequence[_Counter]) -> Ranks:
    ranks = [counter.ranks() for counter in counters]
    counts = np.array([len(each) for each in ranks], dtype=np.int64)
    return Ranks(np.concatenate(ranks), counts, sum(counter.ties() for counter in counters))


def count_before(scores: Floats, values: Floats, columns: Integers) -> tuple[Integers, Integers]:
    """How many of `scores` rank before each positive: those larger than its score, and equal ones to its left.

    Args:
        scores: [g], the scores of one query with a part of the gallery.
        values: [p], the scores of its positives.
        columns: [p], where they stand, counted from the start of the part; they may lie outside of it.

    Returns:
        How many rank before, int64 [p], and how many are equal, int64 [p], the positive itself among them.

    Example:
        >>> scores = np.array([0.5, 0.9, 0.5, 0.1], dtype=np.float32)
        >>> count_before(scores, scores[[0, 2]], np.array([0, 2]))
        (array([1, 2]), array([2, 2]))
    """
    larger, equal = np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.int64)
    order = np.argsort(values)
    larger[order], equal[order] = _larger_and_equal(scores, values[order])
    inside = (columns >= 0) & (columns < len(scores))
    tied = equal > inside
    if tied.any():
        larger[tied] += _equal_to_the_left(scores, values[tied], columns[tied].clip(0, len(scores)))
    return larger, equal


def _larger_and_equal(scores: Floats, values: Floats) -> tuple[Integers, Integers]:
    """How many of the scores are larger than each value, and how many equal it; values ascend.

    The higher the value, the fewer scores reach it: from time to time those that cannot matter any more are dropped.
    """
    larger, equal = np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.int64)
    for start in range(0, len(values), COUNTED):
        scores = scores[scores >= values[start]]
        if not _counting_is_cheaper(len(values) - start, len(scores)):
            scores.sort()  # a copy since they were narrowed down
            up_to = scores.searchsorted(values[start:], "right")
            larger[start:] = len(scores) - up_to
            equal[start:] = up_to - scores.searchsorted(values[start:], "left")
            break
        for place, value in enumerate(values[start : start + COUNTED], start):
            larger[place] = np.count_nonzero(scores > value)
            equal[place] = np.count_nonzero(scores == value)
    return larger, equal


def _counting_is_cheaper(positives: int, scores: int) -> bool:
    return positives * (COUNT_CALL + COUNT_SCORE * scores) <= SORT_SCORE * scores


def _equal_to_the_left(scores: Floats, values: Floats, columns: Integers) -> Integers:
    """How many scores before each column equal its value, by one sort of keys: by value first, then by column."""
    candidates = np.flatnonzero(np.isin(scores, values))
    keys = np.sort(_keys(scores[candidates], candidates))
    first = np.searchsorted(keys, _keys(values, np.zeros(len(values), dtype=np.int64)))
    return (np.searchsorted(keys, _keys(values, columns)) - first).astype(np.int64)


def _keys(scores: Floats, columns: Integers) -> Integers:
    bits = (0.0 - scores).view(np.int32).astype(np.int64)  # never -0.0, whose bits would not compare equal to 0.0
    falling = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the floats they are read from
    keys: Integers = (falling << 32) | columns
    return keys
