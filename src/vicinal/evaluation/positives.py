"""The scores of the positives of every query, in the order of its ranking, found before anything is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.reranking.base import RerankedScores, ScoreIncrements
from vicinal.retrieval.scores import BLOCK_ROWS, TILE_ROWS, ScoreBuffer, UnitVectors
from vicinal.utils.arrays import Floats, Integers, ShortIntegers

MAX_PAIRS = 2**20  # pairs of a query and a gallery row with its label that are processed at a time
EXCLUDED_KEY = np.iinfo(np.int64).max  # ranks after everything

IncrementScores = Callable[[Integers, Integers, Floats], Floats]
"""Adds increments to the scores of pairs: takes queries, gallery rows and scores, each [pairs]."""


class Positives(NamedTuple):
    """The positives of some queries, those of each query in the order of its ranking.

    Attributes:
        scores: float32 [slots]; the slots of a query are adjacent, its positives come first, the rest is unused.
        rows: int32 [slots], the gallery rows.
        first: int64 [queries + 1], the first slot of each query.
        counts: int64 [queries], the number of positives of each query.
    """

    scores: Floats
    rows: ShortIntegers
    first: Integers
    counts: Integers


class LabelPairs(NamedTuple):
    """Some queries, each with all gallery rows that have its label.

    Attributes:
        queries: int64 [some], ordered by label.
        gallery: int64 [others], the gallery rows with their labels.
        query_positions: int64 [pairs], the position of the query of each pair in `queries`; ascending.
        gallery_positions: int64 [pairs], the position of its gallery row in `gallery`; ascending for each query.
    """

    queries: Integers
    gallery: Integers
    query_positions: Integers
    gallery_positions: Integers


def ranked_positives(
    queries: UnitVectors,
    gallery: UnitVectors,
    relevance: Relevance,
    start: int,
    stop: int,
    increment_scores: IncrementScores | None = None,
) -> Positives:
    """Score the positives of queries `start` to `stop`, label by label, bit for bit as in the product of all vectors.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: the positives of each query.
        start: the first query.
        stop: the end of the queries, exclusive.
        increment_scores: adds the increments of a re-ranking to scores.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "embedding")
        >>> labels = np.zeros(3, dtype=np.int64)
        >>> found = ranked_positives(vectors, vectors, Relevance(labels, labels, np.arange(3)), start=0, stop=1)
        >>> found.rows[: found.counts[0]], found.scores[: found.counts[0]]
        (array([1, 2], dtype=int32), array([0.8, 0. ], dtype=float32))
    """
    first = np.concatenate([[0], np.cumsum(relevance.label_counts()[start:stop])])
    counts = np.zeros(stop - start, dtype=np.int64)
    scores, rows = np.empty(first[-1], dtype=np.float32), np.empty(first[-1], dtype=np.int32)
    for pairs in _pairs(relevance, start, stop):
        pair_queries, pair_rows = pairs.queries[pairs.query_positions], pairs.gallery[pairs.gallery_positions]
        pair_scores = _pair_scores(queries, gallery, pairs)
        if increment_scores is not None:
            pair_scores = increment_scores(pair_queries, pair_rows, pair_scores)
        keys = ranking_keys(pair_scores, pair_rows)
        keys[relevance.is_excluded(pair_queries, pair_rows)] = EXCLUDED_KEY
        some = pairs.queries - start
        counts[some] = np.bincount(pairs.query_positions[keys != EXCLUDED_KEY], minlength=len(some))
        lengths = relevance.label_counts()[pairs.queries]
        _sort_each(keys, lengths)
        slots = _ranges(first[some], lengths)
        scores[slots], rows[slots] = key_scores(keys), keys.astype(np.int32)
    return Positives(scores, rows, first, counts)


def ranking_keys(scores: Floats, rows: Integers) -> Integers:
    """Encode score and gallery row in one integer that ascends in a ranking: higher scores first, then lower rows.

    Example:
        >>> keys = ranking_keys(np.array([0.5, 0.5, 0.0, -0.0, -0.5], dtype=np.float32), np.array([9, 10, 1, 2, 0]))
        >>> bool((np.diff(keys) > 0).all())
        True
    """
    bits = (0 - scores).view(np.int32).astype(np.int64)  # never -0.0, whose bits would not compare equal to 0.0
    bits ^= (bits >> 63) & 0x7FFFFFFF  # integers in the order of the floats whose bits they are
    return (bits << 32) | rows


def key_scores(keys: Integers) -> Floats:
    """Decode the scores of ranking keys.

    Example:
        >>> key_scores(ranking_keys(np.array([0.25, -1.0], dtype=np.float32), np.array([7, 0])))
        array([ 0.25, -1.  ], dtype=float32)
    """
    bits = (keys >> 32).astype(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return np.float32(0) - bits.view(np.float32)


def increment_function(reranked: RerankedScores, increments: ScoreIncrements, start: int) -> IncrementScores:
    """A function that adds these increments to the scores of pairs; their rows count from query `start`."""

    def increment_scores(queries: Integers, rows: Integers, scores: Floats) -> Floats:
        positions = increments.positions(queries - start, rows)
        found = np.flatnonzero(positions >= 0)
        scores[found] = reranked.incremented(scores[found], increments.amounts[positions[found]])
        return scores

    return increment_scores


def _pairs(relevance: Relevance, start: int, stop: int) -> Iterator[LabelPairs]:
    """All queries whose label is in the gallery: a few labels at a time, or some of the queries of one label."""
    begin, end = relevance.label_ranges(start, stop)
    for some in _query_groups(begin, end):
        labels, label_positions = np.unique(begin[some], return_inverse=True)
        widths = np.zeros(len(labels), dtype=np.int64)
        widths[label_positions] = (end - begin)[some]
        offsets = np.cumsum(widths) - widths
        yield LabelPairs(
            queries=some + start,
            gallery=relevance.rows_by_label[_ranges(labels, widths)],
            query_positions=np.repeat(np.arange(len(some)), widths[label_positions]),
            gallery_positions=_ranges(offsets[label_positions], widths[label_positions]),
        )


def _query_groups(begin: Integers, end: Integers) -> Iterator[Integers]:
    """The queries, ordered by label: many of one label, or as many of several labels as one tile has rows."""
    known = np.flatnonzero(end > begin)
    known = known[np.argsort(begin[known], kind="stable")]
    pending: list[Integers] = []
    for same in np.split(known, np.flatnonzero(np.diff(begin[known])) + 1) if len(known) else []:
        max_queries = int(max(1, min(BLOCK_ROWS, MAX_PAIRS // (end - begin)[same[0]])))
        is_large = len(same) > min(max_queries, TILE_ROWS)
        if is_large or sum(map(len, pending)) + len(same) > TILE_ROWS:
            yield from [np.concatenate(pending)] if pending else []
            pending = []
        if is_large:
            yield from np.split(same, range(max_queries, len(same), max_queries))
        else:
            pending.append(same)
    yield from [np.concatenate(pending)] if pending else []


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """Consecutive integers from each start on, one range after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def _pair_scores(queries: UnitVectors, gallery: UnitVectors, pairs: LabelPairs) -> Floats:
    scores = np.empty(len(pairs.query_positions), dtype=np.float32)
    vectors = queries.take(pairs.queries)
    block = ScoreBuffer(len(vectors), min(BLOCK_ROWS, len(pairs.gallery)), queries.device)
    for start in range(0, len(pairs.gallery), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        tile = block.product(vectors, gallery.take(pairs.gallery[start:stop])).cpu().numpy()
        here = np.flatnonzero((pairs.gallery_positions >= start) & (pairs.gallery_positions < stop))
        scores[here] = tile[pairs.query_positions[here], pairs.gallery_positions[here] - start]
    return scores


def _sort_each(keys: Integers, lengths: Integers) -> None:
    """Sort the keys of each query in place; `lengths` says how many keys each query has."""
    start = 0
    for length in lengths.tolist():
        keys[start : start + length].sort()
        start += length
