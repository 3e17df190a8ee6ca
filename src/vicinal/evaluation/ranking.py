"""The ranks of every query's positives in its full ranking of the gallery: the one pass every metric reads from.

The scores of the positives come first, label by label. Then the product of all queries with the gallery is walked over
in tiles, each of which tells how many of its scores rank before every positive. Where a set searches itself only tiles
on one side of the diagonal are computed: they serve their rows, and transposed their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.evaluation.counting import MASKED, Counter
from vicinal.evaluation.device_counting import DeviceCounter
from vicinal.evaluation.positives import Positives, Raise, lifting, ranked_positives
from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.neighbor_sets import pieces
from vicinal.retrieval.rerank import Lifts, Reranked
from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBlock, UnitVectors, check_same_dim

__all__ = ["Integers", "Ranks", "Relevance", "level_ranks", "positive_ranks"]

MOST_RANKS = 2**20  # as many are given at once
MOST_COUNTED = 3 * 2**22  # positives that are counted at a time, of all levels together; each takes 13 bytes
STRIP_ROWS = 1024  # queries a product on the diagonal, of which only one side is needed
KEPT_BYTES = 32 * 2**20  # unit vectors that are kept, not computed anew for every tile

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
AnyCounter = Counter | DeviceCounter


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
    64 MB of scores (a larger `chunk` than 4,096 takes 16 KB a query), and at most 170 MB for twelve million positives
    that are counted at a time, or of one query's if these are more. If there are more in all, the gallery is compared
    with so many of the queries after the other.

    If queries and gallery are the same object, half of the product is computed, as it is symmetric, with the same
    ranks; not so with re-ranking, where images of other labels are left out, and between queries that are not counted
    at the same time.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: what is to be found and what is left out.
        chunk: queries a tile; 4,096 by default. The ranks do not depend on it.
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
        chunk: as in :func:`positive_ranks`, and so is memory.
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
    walk = _Walk(queries, gallery, levels, chunk, reranked)
    sizes = np.sum([relevance.sizes() for relevance in levels], axis=0)
    for start, stop in _panels(sizes, reranked):
        positives, counters = walk.over(start, stop)
        for first, last in pieces(sizes[start:stop], MOST_RANKS):
            yield [_ranks(found, counter, first, last) for found, counter in zip(positives, counters, strict=True)]


def _panels(sizes: Integers, reranked: Reranked | None) -> Iterator[tuple[int, int]]:
    """Queries of which the positives, and the lifts if there are any, can be held."""
    for start, stop in pieces(sizes, MOST_COUNTED):
        yield from [(start, stop)] if reranked is None else reranked.blocks(start, stop)


class _Walk:
    """The product of queries and gallery in tiles, in which what ranks before positives is counted."""

    def __init__(
        self,
        queries: UnitVectors,
        gallery: UnitVectors,
        levels: Sequence[Relevance],
        chunk: int | None,
        reranked: Reranked | None,
    ) -> None:
        self._queries, self._gallery, self._levels, self._reranked = queries, gallery, levels, reranked
        self._rows, self._columns = _block_size(len(queries), len(gallery), chunk)
        self._block = ScoreBlock(self._rows, self._columns, queries.device)
        self._unit_queries = _unit_rows(queries)
        self._unit_gallery = self._unit_queries if queries is gallery else _unit_rows(gallery)
        self._left_out = _left_out(levels)
        self._is_half = queries is gallery and reranked is None and not len(self._left_out[0])

    def over(self, start: int, stop: int) -> tuple[list[Positives], list[AnyCounter]]:
        """The positives of queries `start` to `stop` at each level, and what was counted before them."""
        lifts = None if self._reranked is None else self._reranked.lifts(start, stop)
        lift = None if self._reranked is None or lifts is None else lifting(self._reranked, lifts, start)
        positives = [self._positives(relevance, start, stop, lift) for relevance in self._levels]
        counters = [
            _counter(found, relevance, start, self._queries.device)
            for found, relevance in zip(positives, self._levels, strict=True)
        ]
        for top in range(start, stop, self._rows):
            self._row_of_tiles(counters, range(start, stop), top, min(top + self._rows, stop), lifts)
        return positives, counters

    def _positives(self, relevance: Relevance, start: int, stop: int, lift: Raise | None) -> Positives:
        return ranked_positives(self._queries, self._gallery, relevance, start, stop, lift)

    def _row_of_tiles(
        self, counters: list[AnyCounter], panel: range, top: int, bottom: int, lifts: Lifts | None
    ) -> None:
        """Count for queries `top` to `bottom`; and for those of the panel before them, where one side is computed."""
        vectors = self._unit_queries(top, bottom)
        whole = [(0, len(self._gallery))] if not self._is_half else [(0, panel.start), (panel.stop, len(self._gallery))]
        for left, right in (tile for area in whole for tile in self._cut(*area)):
            scores = self._block.product(vectors, self._unit_gallery(left, right))
            self._correct(scores, top, left, lifts, panel.start)
            for counter in counters:
                counter.count(scores, top - panel.start, left)
        if self._is_half:
            self._half(counters, panel.start, top, vectors)

    def _half(self, counters: list[AnyCounter], start: int, top: int, vectors: Tensor) -> None:
        """Count for the queries of `vectors`, from `top` on, and for those between `start` and them, both ways."""
        for left, right in self._cut(start, top):
            scores = self._block.product(vectors, self._unit_gallery(left, right))
            for counter in counters:
                counter.count(scores, top - start, left)
                counter.count_transposed(scores, left - start, top)
        for first in range(0, len(vectors), STRIP_ROWS):
            strip = vectors[first : first + STRIP_ROWS]
            for left, right in self._cut(0, first + len(strip)):
                scores = self._block.product(strip, vectors[left:right])
                before = scores[:, : max(0, min(right, first) - left)]
                for counter in counters:
                    counter.count(scores, top + first - start, top + left)
                    if before.numel():
                        counter.count_transposed(before, top + left - start, top + first)

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for left in range(start, stop, self._columns):
            yield left, min(left + self._columns, stop)

    def _correct(self, scores: Tensor, top: int, left: int, lifts: Lifts | None, start: int) -> None:
        """Raise what is lifted, and put out of the ranking what is left out of it but of another label."""
        bottom, right = top + scores.shape[0], left + scores.shape[1]
        if self._reranked is not None and lifts is not None:
            some = slice(*np.searchsorted(lifts.rows, (top - start, bottom - start)))
            here = Lifts(lifts.rows[some] - (top - start), lifts.columns[some], lifts.amounts[some])
            raised = scores.cpu().numpy()
            self._reranked.raise_in(here, raised, left)
            scores.copy_(torch.from_numpy(raised))
        queries, rows = self._left_out
        some = slice(*np.searchsorted(queries, (top, bottom)))
        inside = (rows[some] >= left) & (rows[some] < right)
        places = torch.from_numpy(queries[some][inside] - top), torch.from_numpy(rows[some][inside] - left)
        scores[places] = MASKED


def _block_size(queries: int, gallery: int, chunk: int | None) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return min(chunk or BLOCK_ROWS, queries), min(BLOCK_ROWS, gallery)


def _unit_rows(vectors: UnitVectors) -> Callable[[int, int], Tensor]:
    """What gives unit vectors from start to stop; from memory if they are few."""
    if 4 * len(vectors) * vectors.dim > KEPT_BYTES:
        return vectors.block
    kept = vectors.block(0, len(vectors))
    return lambda start, stop: kept[start:stop]


def _left_out(levels: Sequence[Relevance]) -> tuple[Integers, Integers]:
    """What is left out of rankings though its label, at some level, is not the query's; ascending by query."""
    pairs = np.concatenate([np.stack(relevance.others_left_out()) for relevance in levels], axis=1)
    queries, rows = pairs[:, np.argsort(pairs[0], kind="stable")]
    return queries, rows


def _counter(positives: Positives, relevance: Relevance, start: int, device: torch.device) -> AnyCounter:
    if device.type == "cpu":
        return Counter(positives, relevance, start)
    return DeviceCounter(positives, relevance, start, device)


def _ranks(positives: Positives, counter: AnyCounter, first: int, last: int) -> Ranks:
    """The ranks of some of the queries, from what ranks before each positive but not before the one ahead of it."""
    counts, slots = positives.counts[first:last], positives.first[first:last]
    queries = np.repeat(np.arange(first, last), counts)
    starts = np.cumsum(counts) - counts
    positions = np.arange(len(queries)) - np.repeat(starts, counts)
    places = np.repeat(slots, counts) + positions
    before = np.cumsum(counter.before[places + queries], dtype=np.int64)
    before -= np.repeat(np.concatenate([[0], before])[starts], counts)
    return Ranks(before + positions + 1, counts, _ties(positives.scores[places], queries, counter.tied[places]))


def _ties(scores: Floats, queries: Integers, tied: npt.NDArray[np.bool_]) -> int:
    """How many positives are level with something else; of those level with each other at least one is marked."""
    if not tied.any():
        return 0
    runs = np.cumsum((np.diff(scores, prepend=scores[0]) != 0) | (np.diff(queries, prepend=queries[0]) != 0))
    return int(np.isin(runs, runs[tied]).sum())
