"""The scores of the positives of every query, in the order of its ranking, found before anything is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vicinal.evaluation.relevance import LabelPairs, Relevance
from vicinal.retrieval.reranking.base import RerankedScores, ScoreIncrements
from vicinal.retrieval.scores import BLOCK_ROWS, TILE_ROWS, ScoreBuffer, UnitVectors, round_up
from vicinal.utils import distributed
from vicinal.utils.arrays import Booleans, Floats, Integers, ShortIntegers

MASKED = float(np.finfo(np.float32).min) / 2  # below every score, and its difference to any score is finite
MAX_PAIRS = 2**20  # pairs of a query and a gallery row with its label that are processed at a time
GPU_SCORES = 2**22  # scores of several labels, or pairs of one, in one GPU product: they take about as long as a launch

IncrementScores = Callable[[Integers, Integers, Floats], Floats]
"""Adds increments to the scores of pairs: takes queries, gallery rows and scores, each [pairs]."""
MAX_TOGETHER = 64  # positives per query up to which many queries are sorted at once, in a copy
TILES_PER_PROCESS = 8  # least number of rows of tiles per process, to balance the work


class Positives(NamedTuple):
    """The positives of some queries, those of each query in the order of its ranking, before its unused slots."""

    scores: Floats  # [slots]
    rows: ShortIntegers  # [slots], the gallery rows
    first: Integers  # [queries + 1], the first slot of each query
    counts: Integers  # [queries], the number of positives of each query


class Tile(NamedTuple):
    """A tile of scores."""

    scores: Floats  # [queries, gallery rows], or transposed
    start: int  # the first query
    first_row: int  # the first gallery row


class RankCounts(NamedTuple):
    """The counts for the positives of some queries; rows with the label of the query are never counted.

    A score is counted at the first positive that it ranks before. Each query has one more slot of `num_before` behind
    its own, which is not read. Of positives with equal scores, one or two are marked as tied.
    """

    positives: Positives
    rows_by_label: Integers  # [g], the gallery rows ordered by label
    begin: Integers  # [queries], where the rows with its label begin there
    end: Integers  # [queries], where they end
    num_before: ShortIntegers  # [slots + queries]
    is_tied: Booleans  # [slots], whether a counted score equals that of this positive


def ranked_positives(
    queries: UnitVectors,
    gallery: UnitVectors,
    relevance: Relevance,
    start: int,
    stop: int,
    increment_scores: IncrementScores | None = None,
) -> Positives:
    """Score the positives of queries `start` to `stop`, label by label, bit for bit as in the product of all."""
    from vicinal.evaluation.counting.kernels import (  # imports numba, which takes half a second
        read_keys,
        write_keys,
    )

    first = np.concatenate([[0], np.cumsum(relevance.label_counts()[start:stop])])
    counts = np.zeros(stop - start, dtype=np.int64)
    # Memory of PyTorch has ordinary pages. NumPy asks for huge ones, whose first touch costs several times as much in a
    # virtual machine that hands back free memory.
    scores, rows = (torch.empty(int(first[-1]), dtype=dtype).numpy() for dtype in (torch.float32, torch.int32))
    for pairs, pair_scores in _scored_pairs(queries, gallery, relevance, start, stop):
        if increment_scores is not None:
            pair_scores = increment_scores(*_queries_and_rows(pairs), pair_scores)
        keys, indices = np.empty(len(pair_scores), dtype=np.int64), pairs.queries - start
        write_keys((0 - pair_scores).view(np.int32), pairs, relevance._excluded_pairs, keys)
        _sort_per_query(keys, pairs.starts)
        pair_counts = np.empty(len(indices), dtype=np.int64)
        read_keys(keys, pairs.starts, first[indices], scores, rows, pair_counts)
        counts[indices] = pair_counts
    return Positives(scores, rows, first, counts)


def ranking_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Encode float32 score and gallery row in an int64 that ascends in a ranking: high scores, then low rows, first."""
    bits = (0 - scores).view(torch.int32).long()  # never -0.0, whose bits would not compare equal to 0.0
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFF)  # integers in the order of the floats whose bits they are
    return (bits << 32) | rows


def increment_function(reranked: RerankedScores, increments: ScoreIncrements, start: int) -> IncrementScores:
    """A function that adds these increments to the scores of pairs; their rows count from query `start`."""

    def increment_scores(queries: Integers, rows: Integers, scores: Floats) -> Floats:
        positions = increments.positions(queries - start, rows)
        found = np.flatnonzero(positions >= 0)
        scores[found] = reranked.incremented(scores[found], increments.amounts[positions[found]])
        return scores

    return increment_scores


def _scored_pairs(
    queries: UnitVectors, gallery: UnitVectors, relevance: Relevance, start: int, stop: int
) -> Iterator[tuple[LabelPairs, Floats]]:
    """All queries whose label is in the gallery, a few at a time, with the scores of their pairs, float32 [pairs]."""
    if queries.device.type == "cpu":
        for pairs in _pairs(relevance, start, stop, MAX_PAIRS, max_scores=0):
            scores = torch.empty(int(pairs.starts[-1]))
            _score(queries, gallery, pairs, scores)
            yield pairs, scores.numpy()
        return
    groups = list(_pairs(relevance, start, stop, GPU_SCORES, GPU_SCORES))
    sizes = [int(pairs.starts[-1]) for pairs in groups]
    scores = torch.empty(sum(sizes), device=queries.device)
    for pairs, group_scores in zip(groups, torch.split(scores, sizes), strict=True):
        _score(queries, gallery, pairs, group_scores)
    on_host = torch.split(scores.cpu(), sizes)  # the host waits once
    yield from ((pairs, group_scores.numpy()) for pairs, group_scores in zip(groups, on_host, strict=True))


def _pairs(relevance: Relevance, start: int, stop: int, max_pairs: int, max_scores: int) -> Iterator[LabelPairs]:
    """All queries whose label is in the gallery: a few labels at a time, or some of the queries of one label."""
    begin, end = relevance.label_ranges(start, stop)
    lengths = end - begin
    for group in _query_groups(begin, lengths, max_pairs, max_scores):
        labels, label_positions = np.unique(begin[group], return_inverse=True)
        widths = np.zeros(len(labels), dtype=np.int64)
        widths[label_positions] = lengths[group]
        yield LabelPairs(
            queries=group + start,
            gallery=relevance.rows_by_label[_ranges(labels, widths)],
            offsets=(np.cumsum(widths) - widths)[label_positions],
            starts=np.concatenate([[0], np.cumsum(widths[label_positions])]),
        )


def _query_groups(begin: Integers, lengths: Integers, max_pairs: int, max_scores: int) -> Iterator[Integers]:
    """The queries, ordered by label: those of several labels, or some of one label with at most `max_pairs` pairs.

    `begin` and `lengths` are the start and the number of the gallery rows with the label of each query. Several
    labels have at most `max_scores` scores, if there are more queries than one tile has rows.
    """
    queries = np.flatnonzero(lengths)
    queries = queries[np.argsort(begin[queries], kind="stable")]
    bounds = [0, *(np.flatnonzero(np.diff(begin[queries])) + 1).tolist(), len(queries)] if len(queries) else [0]
    widths = lengths[queries[bounds[:-1]]].tolist()
    pending = num_queries = num_rows = 0  # of the queries that are not in a group yet: start, number, gallery rows
    for (first, end), width in zip(pairwise(bounds), widths, strict=True):
        max_queries = max(1, min(BLOCK_ROWS, max_pairs // width))
        is_large = end - first > min(max_queries, max(TILE_ROWS, max_scores // width))
        num_queries, num_rows = num_queries + end - first, num_rows + width
        is_full = num_queries > BLOCK_ROWS or num_queries * num_rows > max_scores
        if is_large or (is_full and num_queries > TILE_ROWS):
            yield from [queries[pending:first]] if pending < first else []
            pending, num_queries, num_rows = first, end - first, width
        if is_large:
            yield from (queries[left : min(left + max_queries, end)] for left in range(first, end, max_queries))
            pending, num_queries, num_rows = end, 0, 0
    yield from [queries[pending:]] if pending < len(queries) else []


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """Consecutive integers from each start on, one range after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def _score(queries: UnitVectors, gallery: UnitVectors, pairs: LabelPairs, scores: Tensor) -> None:
    """Write the scores of pairs, which the products of blocks of vectors contain."""
    from vicinal.evaluation.counting.kernels import gather_scores

    vectors = queries.take(pairs.queries)
    block = ScoreBuffer(len(vectors), min(BLOCK_ROWS, len(pairs.gallery)), queries.device)
    for left in range(0, len(pairs.gallery), BLOCK_ROWS):
        tile = block.product(vectors, gallery.take(pairs.gallery[left : left + BLOCK_ROWS]))
        if tile.device.type == "cpu":
            gather_scores(tile.numpy(), left, pairs, scores.numpy())
        else:
            _gather_on_device(tile, left, pairs, scores)


def _gather_on_device(tile: Tensor, left: int, pairs: LabelPairs, scores: Tensor) -> None:
    """Gather the scores as the kernel `gather_scores` does on a CPU, without waiting for the device."""
    first = np.maximum(pairs.offsets, left)
    counts = np.minimum(pairs.offsets + np.diff(pairs.starts), left + tile.shape[1]) - first
    queries = np.flatnonzero(counts > 0)
    first, counts = first[queries], counts[queries]
    before = np.cumsum(counts) - counts
    sources = queries * tile.stride(0) + first - left - before  # where the pairs of a query are in the tile,
    targets = (
        pairs.starts[queries] + first - pairs.offsets[queries] - before
    )  # and among the scores, less their own numbers
    arrays = torch.from_numpy(np.stack([counts, sources, targets])).to(tile.device, non_blocking=True)
    num_pairs = int(counts.sum())
    positions = arrays[1:].repeat_interleave(arrays[0], dim=1, output_size=num_pairs)
    positions += torch.arange(num_pairs, device=tile.device)
    flat = tile.as_strided(((len(tile) - 1) * tile.stride(0) + tile.shape[1],), (1,))
    scores.index_copy_(0, positions[1], flat[positions[0]])


def _queries_and_rows(pairs: LabelPairs) -> tuple[Integers, Integers]:
    lengths = np.diff(pairs.starts)
    return np.repeat(pairs.queries, lengths), pairs.gallery[_ranges(pairs.offsets, lengths)]


def _sort_per_query(keys: Integers, starts: Integers) -> None:
    """Sort the keys of each query in place; those of a query begin at its start."""
    lengths = np.diff(starts)
    for first in np.flatnonzero(lengths > MAX_TOGETHER):
        keys[starts[first] : starts[first + 1]].sort()
    for length in np.unique(lengths[(lengths > 1) & (lengths <= MAX_TOGETHER)]):
        positions = starts[:-1][lengths == length, None] + np.arange(length)
        keys[positions] = np.sort(keys[positions], axis=1)


class TotalCounts(NamedTuple):
    """The counts of all processes together; see :class:`~vicinal.evaluation.counting.counter.RankCounts`."""

    num_before: ShortIntegers
    is_tied: Booleans


@dataclass(frozen=True)
class Division:
    """The processes that divide a ranking."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_group(cls) -> Division:
        """The processes of `torch.distributed`."""
        return cls(distributed.rank(), distributed.world_size())

    def local_tops(self, tops: range) -> range:
        """The rows of tiles in which this process counts; a stride balances tiles that grow with the row."""
        return tops[self.rank :: self.world_size]

    def all_reduce_min(self, number: int) -> int:
        """The smallest number of any process, for settings that must be equal although GPUs differ."""
        return number if self.world_size == 1 else min(distributed.all_gather_objects(number))

    def tile_rows(self, max_rows: int, queries: int) -> int:
        """The number of queries in a tile, at most `max_rows`."""
        if self.world_size == 1:
            return max_rows
        return min(max_rows, round_up(-(-queries // (TILES_PER_PROCESS * self.world_size)), TILE_ROWS))

    def positives(self, find: Callable[[int, int], Positives], sizes: Integers, start: int) -> Positives:
        """Let each process `find` the positives of some queries, and gather all; `sizes` are their numbers of slots."""
        if self.world_size == 1:
            return find(start, start + len(sizes))
        first = np.concatenate([[0], np.cumsum(sizes)])
        cuts = np.searchsorted(first, np.linspace(0, first[-1], self.world_size + 1), "left")
        cuts[0], cuts[-1] = 0, len(sizes)
        own = find(start + int(cuts[self.rank]), start + int(cuts[self.rank + 1]))
        slots = [int(first[end] - first[begin]) for begin, end in pairwise(cuts)]
        return Positives(
            distributed.all_gather_parts(torch.from_numpy(own.scores), slots).numpy(),
            distributed.all_gather_parts(torch.from_numpy(own.rows), slots).numpy(),
            first,
            distributed.all_gather_parts(torch.from_numpy(own.counts), np.diff(cuts).tolist()).numpy(),
        )

    def total(self, num_before: ShortIntegers, is_tied: Booleans) -> TotalCounts:
        if self.world_size == 1:
            return TotalCounts(num_before, is_tied)
        tied = distributed.all_reduce_sum(torch.from_numpy(is_tied.astype(np.int32))).numpy() > 0
        return TotalCounts(distributed.all_reduce_sum(torch.from_numpy(num_before)).numpy(), tied)
