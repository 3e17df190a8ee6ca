"""The ranks of every query's positives in its full ranking of the gallery: the one pass every metric reads from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vicinal.retrieval.scores import ScoreBlock, UnitVectors, check_same_dim, rows_within_budget

FEWEST_ROWS, MOST_ROWS = 64, 4096  # queries a block
MOST_RANKS = 2**20  # about as many are handed on at once
# Nanoseconds, as measured: counting takes so much a positive and a score; sorting so much a score.
COUNT_CALL, COUNT_SCORE, SORT_SCORE = 4000.0, 0.1, 35.0

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


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
    queries: UnitVectors, gallery: UnitVectors, relevance: Relevance, chunk: int | None = None
) -> Iterator[Ranks]:
    """Rank the gallery for each query by falling similarity and give the ranks of its positives, block by block.

    Equal similarities rank in the order of the gallery. Memory: one block of scores, about 64 MB beside the vectors.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: what is to be found and what is left out.
        chunk: queries a block; by default chosen to fill the memory budget. The ranks do not depend on it.

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
    rows = chunk or rows_within_budget(len(gallery), FEWEST_ROWS, MOST_ROWS)
    block = ScoreBlock(min(rows, len(queries)), len(gallery), queries.device)
    for start in range(0, len(queries), rows):
        vectors = queries.block(start, start + rows)
        scores = block.fill(vectors, gallery, 0, len(gallery)).cpu().numpy()
        yield from _ranks(scores, relevance, start)


def _ranks(scores: Floats, relevance: Relevance, start: int) -> Iterator[Ranks]:
    """The ranks in a block of scores, handed on early where classes are so large that they would fill the memory."""
    found, held = [], 0
    for query, row in enumerate(scores, start):
        positives = relevance.positives(query)
        row[relevance.ignored(query)] = -np.inf
        found.append(ranks_in_row(row, positives))
        held += len(positives)
        if held >= MOST_RANKS:
            yield _bundle(found)
            found, held = [], 0
    if found:
        yield _bundle(found)


def _bundle(found: list[Integers]) -> Ranks:
    return Ranks(np.concatenate(found), np.array([len(ranks) for ranks in found], dtype=np.int64))


def ranks_in_row(scores: Floats, positives: Integers) -> Integers:
    """The ranks of `positives` (ascending columns) among all scores of one row, ascending, counted from 1.

    Example:
        >>> ranks_in_row(np.array([0.5, 0.9, 0.5, 0.1], dtype=np.float32), np.array([0, 2]))
        array([2, 3])
    """
    if not len(positives):
        return np.empty(0, dtype=np.int64)
    if _counting_is_cheaper(len(positives), len(scores)):
        return _by_counting(scores, positives)
    candidates = np.flatnonzero(scores >= scores[positives].min())
    places = np.searchsorted(candidates, positives)
    if _counting_is_cheaper(len(positives), len(candidates)):
        return _by_counting(scores[candidates], places)
    return _by_sorting(scores[candidates], places)


def _counting_is_cheaper(positives: int, scores: int) -> bool:
    return positives * (COUNT_CALL + COUNT_SCORE * scores) <= SORT_SCORE * scores


def _by_counting(scores: Floats, positives: Integers) -> Integers:
    """One count a positive of what ranks before it: larger scores, and equal ones that stand before it."""
    before = [
        np.count_nonzero(scores[:column] >= scores[column]) + np.count_nonzero(scores[column:] > scores[column])
        for column in positives
    ]
    return np.sort(np.array(before, dtype=np.int64)) + 1


def _by_sorting(scores: Floats, positives: Integers) -> Integers:
    """One sort of keys that order by falling score, then by column, so that no two are equal."""
    bits = (0.0 - scores).view(np.int32).astype(np.int64)  # never -0.0, whose bits would not compare equal to 0.0
    falling = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the floats they are read from
    keys = (falling << 32) | np.arange(len(scores))
    ranks: Integers = np.searchsorted(np.sort(keys), np.sort(keys[positives])) + 1
    return ranks
