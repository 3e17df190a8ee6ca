"""The ranks of every query's positives in its full ranking of the gallery: the one pass every metric reads from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

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
# Nanoseconds, as measured: counting takes so much a positive and a score; sorting so much a score.
COUNT_CALL, COUNT_SCORE, SORT_SCORE = 4000.0, 0.1, 35.0

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
    ) -> None:
        nothing = np.full(len(query_labels), -1)
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
        return matches[~self._is_ignored(query, matches)]

    def ignored(self, query: int) -> Integers:
        """The gallery rows left out of the query's ranking."""
        matches = self._matches(query)
        itself = self._exclude[query : query + 1]
        return np.union1d(matches[self._is_ignored(query, matches)], itself[itself >= 0])

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
    """

    ranks: Integers
    counts: Integers


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
    check_same_dim(queries, gallery)
    rows, columns = _block_size(len(queries), len(gallery), chunk)
    block = ScoreBlock(rows, columns, queries.device)
    for start, stop in _blocks(relevance, rows, reranked):
        raise_in = None if reranked is None else partial(reranked.raise_in, reranked.lifts(start, stop))
        vectors = queries.block(start, stop)
        parts: Callable[[], Iterator[Part]] = partial(_parts, vectors, gallery, block, columns, raise_in)
        if columns == len(gallery):  # the only part is still there the second time
            parts = partial(iter, list(parts()))
        yield _ranks(parts, relevance, range(start, stop))


def _block_size(queries: int, gallery: int, chunk: int | None) -> tuple[int, int]:
    """Rows and columns of a block: all of the gallery if enough queries fit beside it, else parts of it."""
    rows = chunk or rows_within_budget(gallery, 0, MOST_ROWS) // TILE_ROWS * TILE_ROWS or PART_ROWS
    rows = min(rows, queries)
    columns = rows_within_budget(round_up(rows, TILE_ROWS), BLOCK_ROWS, max(gallery, BLOCK_ROWS))
    return rows, gallery if columns >= gallery else columns // BLOCK_ROWS * BLOCK_ROWS


def _blocks(relevance: Relevance, rows: int, reranked: Reranked | None) -> Iterator[tuple[int, int]]:
    """Blocks of queries of which the positives, and the lifts if there are any, can be held."""
    for start, stop in relevance.blocks(rows):
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


def _ranks(parts: Callable[[], Iterator[Part]], relevance: Relevance, queries: range) -> Ranks:
    """The ranks of the positives of some queries, whose scores come in parts of the gallery, and come twice."""
    positives = [relevance.positives(query) for query in queries]
    values = [np.empty(len(columns), dtype=np.float32) for columns in positives]
    for start, scores in parts():
        for row, columns, found in zip(scores, positives, values, strict=True):
            first, last = np.searchsorted(columns, [start, start + len(row)])
            found[first:last] = row[columns[first:last] - start]
    before = [np.zeros(len(columns), dtype=np.int64) for columns in positives]
    for start, scores in parts():
        for position, query in enumerate(queries):
            row, ignored = scores[position], relevance.ignored(query) - start
            row[ignored[(ignored >= 0) & (ignored < len(row))]] = -np.inf
            before[position] += count_before(row, values[position], positives[position] - start)
    counts = np.array([len(columns) for columns in positives], dtype=np.int64)
    return Ranks(np.concatenate([np.sort(each) for each in before]) + 1, counts)


def count_before(scores: Floats, values: Floats, columns: Integers) -> Integers:
    """How many of `scores` rank before each positive: those larger than its score, and equal ones to its left.

    Args:
        scores: [g], the scores of one query with a part of the gallery.
        values: [p], the scores of its positives.
        columns: [p], where they stand, counted from the start of the part; they may lie outside of it.

    Returns:
        int64 [p].

    Example:
        >>> scores = np.array([0.5, 0.9, 0.5, 0.1], dtype=np.float32)
        >>> count_before(scores, scores[[0, 2]], np.array([0, 2]))
        array([1, 2])
    """
    columns = columns.clip(0, len(scores))
    if _counting_is_cheaper(len(values), len(scores)):
        return _by_counting(scores, values, columns)
    candidates = np.flatnonzero(scores >= values.min())
    places = np.searchsorted(candidates, columns)
    if _counting_is_cheaper(len(values), len(candidates)):
        return _by_counting(scores[candidates], values, places)
    return _by_sorting(scores[candidates], values, places)


def _counting_is_cheaper(positives: int, scores: int) -> bool:
    return positives * (COUNT_CALL + COUNT_SCORE * scores) <= SORT_SCORE * scores


def _by_counting(scores: Floats, values: Floats, columns: Integers) -> Integers:
    """One count a positive of what ranks before it."""
    before = [
        np.count_nonzero(scores[:column] >= value) + np.count_nonzero(scores[column:] > value)
        for value, column in zip(values, columns, strict=True)
    ]
    return np.array(before, dtype=np.int64)


def _by_sorting(scores: Floats, values: Floats, columns: Integers) -> Integers:
    """One sort of keys that order by falling score, then by column, so that no two are equal."""
    keys = np.sort(_keys(scores, np.arange(len(scores))))
    return np.searchsorted(keys, _keys(values, columns)).astype(np.int64)


def _keys(scores: Floats, columns: Integers) -> Integers:
    bits = (0.0 - scores).view(np.int32).astype(np.int64)  # never -0.0, whose bits would not compare equal to 0.0
    falling = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the floats they are read from
    keys: Integers = (falling << 32) | columns
    return keys
