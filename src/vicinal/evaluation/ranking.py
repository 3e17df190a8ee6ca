"""The ranks of the positives of every query in its full ranking of the gallery, from one pass over the similarities.

The positives are scored first, label by label. Then the product of all queries with the gallery is computed in tiles,
and the scores that rank before each positive are counted tile by tile. Where a set searches itself, only the tiles on
one side of the diagonal are computed: they are counted for their rows and, transposed, for their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vicinal.evaluation.counting.counter import Counter, DeviceCounter
from vicinal.evaluation.counting.positives import (
    MASKED,
    Division,
    Positives,
    TotalCounts,
    increment_function,
    ranked_positives,
)
from vicinal.evaluation.metrics import Ranks
from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.reranking.base import RerankedScores, ScoreIncrements
from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBuffer, UnitVectors, check_same_dim
from vicinal.utils.arrays import Integers, chunk_ranges
from vicinal.utils.console import track
from vicinal.utils.devices import tile_elements

MAX_RANKS = 2**17  # yielded at once; metrics then stay in the cache
MAX_COUNTED = 2**24  # positives that are counted at a time, at all levels together; each takes 13 bytes
STRIP_ROWS = 1024  # queries in one product on the diagonal, of which only one side is needed
MAX_UNIT_BYTES = 32 * 2**20  # unit vectors that are kept in memory instead of being computed for every tile
MAX_UNIT_TILES = 16  # the same on a GPU, in tiles: 1/16 of its memory
LONG_PAIRS = 2**34  # least number of pairs for which a terminal shows progress: half a minute on some cores

AnyCounter = Counter | DeviceCounter


def positive_ranks(
    queries: UnitVectors,
    gallery: UnitVectors,
    relevance: Relevance,
    chunk_size: int | None = None,
    reranked: RerankedScores | None = None,
) -> Iterator[Ranks]:
    """Rank the gallery for each query by falling similarity and yield the ranks of its positives, block by block.

    Equal similarities rank in the order of the gallery. For a gallery of any size, this takes, in addition to the
    vectors, at most 64 MB for scores (16 KB per query with a `chunk_size` above 4,096; on a GPU 1/256 of its memory)
    and at most 220 MB for sixteen million positives that are counted at a time, or for those of one query if it has
    more. If there are more positives in all, the queries are processed in several parts.

    If queries and gallery are the same object, half of the product is computed, since it is symmetric; the ranks are
    the same. This does not apply with re-ranking, if images with other labels are excluded, or between queries that are
    not counted at the same time.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        relevance: the positives and the exclusions of each query.
        chunk_size: number of queries per tile; by default 4,096 on a CPU. The ranks do not depend on it.
        reranked: a re-ranking of these queries and this gallery, whose similarities are ranked.

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
    for (ranks,) in level_ranks(queries, gallery, [relevance], chunk_size, reranked):
        yield ranks


def level_ranks(
    queries: UnitVectors,
    gallery: UnitVectors,
    levels: Sequence[Relevance],
    chunk_size: int | None = None,
    reranked: RerankedScores | None = None,
    divided: bool = False,
) -> Iterator[list[Ranks]]:
    """The ranks of the positives at several levels of labels, fine and coarse, from one pass over the similarities.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        levels: the relevance at each level; the exclusions are those of the first.
        chunk_size: as in :func:`positive_ranks`.
        reranked: as in :func:`positive_ranks`.
        divided: whether the processes of `torch.distributed`, which all call this function, divide the work; each of
            them gets all ranks.

    Yields:
        For the next queries, in order, their ranks at each level.

    Raises:
        InputError: queries and gallery have different dimensions.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), "embedding")
        >>> labels = np.array([0, 0, 1])
        >>> fine = Relevance(labels, labels, np.arange(3))
        >>> coarse = Relevance(labels // 2, labels // 2, exclusions=fine)
        >>> [[ranks.ranks for ranks in block] for block in level_ranks(vectors, vectors, [fine, coarse])]
        [[array([2, 2]), array([1, 2, 1, 2, 1, 2])]]
    """
    check_same_dim(queries, gallery)
    counting = _TiledCounting(queries, gallery, levels, chunk_size, reranked, divided)
    sizes = np.sum([relevance.label_counts() for relevance in levels], axis=0)
    for start, stop in _panels(sizes, reranked):
        panel, totals = counting.count(start, stop)
        for first, last in chunk_ranges(sizes[start:stop], MAX_RANKS):
            yield [
                _ranks(positives, counts, first, last)
                for positives, counts in zip(panel.positives, totals, strict=True)
            ]
        del panel, totals  # before the next ones take memory


def _panels(sizes: Integers, reranked: RerankedScores | None) -> Iterator[tuple[int, int]]:
    """Ranges of queries, so few that their positives and increments fit in memory."""
    for start, stop in chunk_ranges(sizes, MAX_COUNTED):
        yield from [(start, stop)] if reranked is None else reranked.blocks(start, stop)


@dataclass(frozen=True)
class _Panel:
    """Queries `start` to `stop`, which are counted at the same time: their positives and counters at each level."""

    start: int
    stop: int
    positives: list[Positives]
    counters: list[AnyCounter]
    increments: ScoreIncrements | None


class _TiledCounting:
    """Computes the product of queries and gallery in tiles, and counts in each the scores before the positives."""

    def __init__(
        self,
        queries: UnitVectors,
        gallery: UnitVectors,
        levels: Sequence[Relevance],
        chunk_size: int | None,
        reranked: RerankedScores | None,
        divided: bool,
    ) -> None:
        self._queries = _materialize_if_small(queries)
        self._gallery = self._queries if queries is gallery else _materialize_if_small(gallery)
        self._levels, self._reranked = levels, reranked
        self._division = Division.of_group() if divided else Division()
        self._rows, self._columns = _tile_size(len(queries), len(gallery), chunk_size, queries.device)
        self._rows = self._division.tile_rows(self._division.all_reduce_min(self._rows), len(queries))
        self._excluded = _excluded_other_labels(levels)
        self._is_symmetric = queries is gallery and reranked is None and not len(self._excluded[0])
        self._product = ScoreBuffer(self._rows, self._columns, queries.device).product

    def count(self, start: int, stop: int) -> tuple[_Panel, list[TotalCounts]]:
        """Count for queries `start` to `stop`, and return the counts at each level."""
        panel = self._panel(start, stop)
        for top in self._tops(panel):
            vectors = self._queries.block(top, min(top + self._rows, stop))
            if self._is_symmetric:
                self._count_rows(panel, top, vectors, range(0, start))
                self._count_rows(panel, top, vectors, range(stop, len(self._gallery)))
                self._count_symmetric(panel, top, vectors)
            else:
                self._count_rows(panel, top, vectors, range(len(self._gallery)))
        return panel, [self._division.total(counter.num_before, counter.is_tied) for counter in panel.counters]

    def _tops(self, panel: _Panel) -> Iterable[int]:
        """The rows of tiles in which this process must count, with progress where they are many."""
        tops = self._division.local_tops(range(panel.start, panel.stop, self._rows))
        is_long = len(self._queries) * len(self._gallery) >= LONG_PAIRS
        return track(tops, "ranking", len(tops), show=is_long)

    def _panel(self, start: int, stop: int) -> _Panel:
        increments = increment_scores = None
        if self._reranked is not None:
            increments = self._reranked.increments(start, stop)
            increment_scores = increment_function(self._reranked, increments, start)
        find = partial(ranked_positives, self._queries, self._gallery, increment_scores=increment_scores)
        positives = [
            self._division.positives(partial(find, each), each.label_counts()[start:stop], start)
            for each in self._levels
        ]
        counters = [
            _counter(level_positives, relevance, start, self._queries.device)
            for level_positives, relevance in zip(positives, self._levels, strict=True)
        ]
        return _Panel(start, stop, positives, counters, increments)

    def _count_rows(self, panel: _Panel, top: int, vectors: Tensor, gallery: range) -> None:
        """Count for the queries from `top` on, which have these vectors, in a range of the gallery."""
        for left, right in self._tiles(gallery):
            scores = self._product(vectors, self._gallery.block(left, right))
            self._increment(panel, scores, top, left)
            self._mask(scores, top, left)
            for counter in panel.counters:
                counter.count(scores, top - panel.start, left)

    def _count_symmetric(self, panel: _Panel, top: int, vectors: Tensor) -> None:
        """Count for the queries from `top` on and for those of the panel before them, which search each other."""
        for left, right in self._tiles(range(panel.start, top)):
            scores = self._product(vectors, self._gallery.block(left, right))
            for counter in panel.counters:
                counter.count(scores, top - panel.start, left)
                counter.count_transposed(scores, left - panel.start, top)
        for first in range(0, len(vectors), STRIP_ROWS):
            strip = vectors[first : first + STRIP_ROWS]
            for left, right in self._tiles(range(first + len(strip))):
                scores = self._product(strip, vectors[left:right])
                below_diagonal = scores[:, : max(0, min(right, first) - left)]
                for counter in panel.counters:
                    counter.count(scores, top + first - panel.start, top + left)
                    if below_diagonal.numel():
                        counter.count_transposed(below_diagonal, top + left - panel.start, top + first)

    def _tiles(self, gallery: range) -> Iterator[tuple[int, int]]:
        for left in range(gallery.start, gallery.stop, self._columns):
            yield left, min(left + self._columns, gallery.stop)

    def _increment(self, panel: _Panel, scores: Tensor, top: int, left: int) -> None:
        if self._reranked is None or panel.increments is None:
            return
        increments, first = panel.increments, top - panel.start
        span = slice(*np.searchsorted(increments.rows, (first, first + len(scores))))
        tile_increments = ScoreIncrements(
            increments.rows[span] - first, increments.columns[span], increments.amounts[span]
        )
        raised = scores.cpu().numpy()
        self._reranked.increment_block(raised, tile_increments, left)
        scores.copy_(torch.from_numpy(raised))

    def _mask(self, scores: Tensor, top: int, left: int) -> None:
        """Mask the excluded pairs of different labels in a tile of scores; same-label pairs are never counted."""
        queries, rows = self._excluded
        span = slice(*np.searchsorted(queries, (top, top + scores.shape[0])))
        is_in_tile = (rows[span] >= left) & (rows[span] < left + scores.shape[1])
        pairs = torch.from_numpy(queries[span][is_in_tile] - top), torch.from_numpy(rows[span][is_in_tile] - left)
        scores[pairs] = MASKED


def _tile_size(queries: int, gallery: int, chunk_size: int | None, device: torch.device) -> tuple[int, int]:
    side = BLOCK_ROWS if device.type == "cpu" else 2 ** ((tile_elements(device).bit_length() - 1) // 2)
    return min(chunk_size or side, queries), min(side, gallery)


def _materialize_if_small(vectors: UnitVectors) -> UnitVectors:
    """The vectors; if there are few, their unit vectors stay in memory."""
    is_on_gpu = vectors.device.type != "cpu"
    max_bytes = 4 * MAX_UNIT_TILES * tile_elements(vectors.device) if is_on_gpu else MAX_UNIT_BYTES
    return vectors if 4 * len(vectors) * vectors.dim > max_bytes else vectors.materialized()


def _excluded_other_labels(levels: Sequence[Relevance]) -> tuple[Integers, Integers]:
    pairs = np.concatenate([np.stack(relevance.excluded_other_labels()) for relevance in levels], axis=1)
    queries, rows = pairs[:, np.argsort(pairs[0], kind="stable")]
    return queries, rows


def _counter(positives: Positives, relevance: Relevance, start: int, device: torch.device) -> AnyCounter:
    if device.type == "cpu":
        return Counter(positives, relevance, start)
    return DeviceCounter(positives, relevance, start, device)


def _ranks(positives: Positives, totals: TotalCounts, first: int, last: int) -> Ranks:
    """The ranks of the positives of queries `first` to `last`, summed up from the counts between them."""
    from vicinal.evaluation.counting.kernels import write_ranks  # imports numba

    counts = positives.counts[first:last]
    ranks = np.empty(counts.sum(), dtype=np.int64)
    return Ranks(
        ranks, counts, write_ranks(positives.scores, positives.first[first:last], counts, *totals, first, ranks)
    )
