"""The scores of every query's positives, found before anything is counted, in the order of its ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.rerank import Lifts, Reranked
from vicinal.retrieval.scores import BLOCK_ROWS, TILE_ROWS, ScoreBlock, UnitVectors

MOST_PAIRS = 2**20  # of queries and gallery rows of their label, looked at at a time
NO_KEY = np.iinfo(np.int64).max  # ranks after everything

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Raise = Callable[[Integers, Integers, Floats], Floats]


class Positives(NamedTuple):
    """The positives of some queries, each query's in the order of its ranking.

    Attributes:
        scores: float32 [slots]; the slots of a query lie together, its positives first, the rest is unused.
        rows: int32 [slots], the gallery rows.
        first: int64 [queries + 1], the first slot of each query.
        counts: int64 [queries], the positives of each.
    """

    scores: Floats
    rows: npt.NDArray[np.int32]
    first: Integers
    counts: Integers


class Pairs(NamedTuple):
    """Some queries, each with all gallery rows of its label.

    Attributes:
        queries: int64 [some], ordered by label.
        gallery: int64 [others], the gallery rows of their labels.
        owner: int64 [pairs], the place of each pair's query in `queries`; ascending.
        member: int64 [pairs], the place of its gallery row in `gallery`; ascending for each query.
    """

    queries: Integers
    gallery: Integers
    owner: Integers
    member: Integers


def ranked_positives(
    queries: UnitVectors, gallery: UnitVectors, relevance: Relevance, start: int, stop: int, lift: Raise | None = None
) -> Positives:
    """Score the positives of queries `start` to `stop`, label by label, bit for bit as in the whole product.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: what is to be found.
        start: the first query.
        stop: the one after the last.
        lift: raises scores, given queries, gallery rows and their plain scores, each [pairs].

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "embedding")
        >>> labels = np.zeros(3, dtype=np.int64)
        >>> found = ranked_positives(vectors, vectors, Relevance(labels, labels, np.arange(3)), 0, 1)
        >>> found.rows[: found.counts[0]], found.scores[: found.counts[0]]
        (array([1, 2], dtype=int32), array([0.8, 0. ], dtype=float32))
    """
    first = np.concatenate([[0], np.cumsum(relevance.sizes()[start:stop])])
    counts = np.zeros(stop - start, dtype=np.int64)
    ranked, order = np.empty(first[-1], dtype=np.float32), np.empty(first[-1], dtype=np.int32)
    for pairs in _pairs(relevance, start, stop):
        rows, of = pairs.gallery[pairs.member], pairs.queries[pairs.owner]
        scores = _scores(queries, gallery, pairs)
        if lift is not None:
            scores = lift(of, rows, scores)
        found = ranking_keys(scores, rows)
        found[relevance.is_left_out(of, rows)] = NO_KEY
        some = pairs.queries - start
        counts[some] = np.bincount(pairs.owner[found != NO_KEY], minlength=len(some))
        lengths = relevance.sizes()[pairs.queries]
        _sort_each(found, lengths)
        slots = _ranges(first[some], lengths)
        ranked[slots], order[slots] = key_scores(found), found.astype(np.int32)
    return Positives(ranked, order, first, counts)


def ranking_keys(scores: Floats, rows: Integers) -> Integers:
    """Score and gallery row in one integer each, which ascend in a ranking: higher scores first, then lower rows.

    Example:
        >>> keys = ranking_keys(np.array([0.5, 0.5, 0.0, -0.0, -0.5], dtype=np.float32), np.array([9, 10, 1, 2, 0]))
        >>> bool((np.diff(keys) > 0).all())
        True
    """
    bits = (0 - scores).view(np.int32).astype(np.int64)  # never -0.0, whose bits would not compare equal to 0.0
    bits ^= (bits >> 63) & 0x7FFFFFFF  # integers in the order of the floats they are read from
    return (bits << 32) | rows


def key_scores(keys: Integers) -> Floats:
    """The scores that ranking keys are made of.

    Example:
        >>> key_scores(ranking_keys(np.array([0.25, -1.0], dtype=np.float32), np.array([7, 0])))
        array([ 0.25, -1.  ], dtype=float32)
    """
    bits = (keys >> 32).astype(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return np.float32(0) - bits.view(np.float32)


def lifting(reranked: Reranked, lifts: Lifts, start: int) -> Raise:
    """What raises scores by these lifts, whose rows count from query `start`."""
    width = len(reranked.gallery)
    ids = lifts.rows * width + lifts.columns

    def lift(queries: Integers, rows: Integers, scores: Floats) -> Floats:
        wanted = (queries - start) * width + rows
        places = np.searchsorted(ids, wanted)
        found = np.flatnonzero(np.append(ids, -1)[places] == wanted)
        scores[found] = reranked.raised(scores[found], lifts.amounts[places[found]])
        return scores

    return lift


def _pairs(relevance: Relevance, start: int, stop: int) -> Iterator[Pairs]:
    """All queries that share a label with the gallery, a few labels at a time, or a part of the queries of one."""
    begin, end = relevance.same_label(start, stop)
    for some in _pieces(begin, end):
        labels, which = np.unique(begin[some], return_inverse=True)
        widths = np.zeros(len(labels), dtype=np.int64)
        widths[which] = (end - begin)[some]
        places = _ranges(labels, widths)
        offsets = np.cumsum(widths) - widths
        member = _ranges(offsets[which], widths[which])
        owner = np.repeat(np.arange(len(some)), widths[which])
        yield Pairs(some + start, relevance.by_label[places], owner, member)


def _pieces(begin: Integers, end: Integers) -> Iterator[Integers]:
    """The queries, ordered by label: many of one label, or as many of several as one tile of a product has rows."""
    known = np.flatnonzero(end > begin)
    known = known[np.argsort(begin[known], kind="stable")]
    pending: list[Integers] = []
    for same in np.split(known, np.flatnonzero(np.diff(begin[known])) + 1) if len(known) else []:
        most = int(max(1, min(BLOCK_ROWS, MOST_PAIRS // (end - begin)[same[0]])))
        if len(same) > min(most, TILE_ROWS) or sum(map(len, pending)) + len(same) > TILE_ROWS:
            yield from [np.concatenate(pending)] if pending else []
            pending = []
        if len(same) > min(most, TILE_ROWS):
            yield from np.split(same, range(most, len(same), most))
        else:
            pending.append(same)
    yield from [np.concatenate(pending)] if pending else []


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """Whole numbers from each start on, one range after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def _scores(queries: UnitVectors, gallery: UnitVectors, pairs: Pairs) -> Floats:
    scores = np.empty(len(pairs.owner), dtype=np.float32)
    vectors = queries.take(pairs.queries)
    block = ScoreBlock(len(vectors), min(BLOCK_ROWS, len(pairs.gallery)), queries.device)
    for start in range(0, len(pairs.gallery), BLOCK_ROWS):
        tile = block.product(vectors, gallery.take(pairs.gallery[start : start + BLOCK_ROWS])).cpu().numpy()
        here = np.flatnonzero((pairs.member >= start) & (pairs.member < start + BLOCK_ROWS))
        scores[here] = tile[pairs.owner[here], pairs.member[here] - start]
    return scores


def _sort_each(keys: Integers, lengths: Integers) -> None:
    """Sort keys, of so many for each query, one query after the other."""
    start = 0
    for length in lengths.tolist():
        keys[start : start + length].sort()
        start += length
