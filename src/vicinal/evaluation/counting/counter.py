"""Counts how many scores rank before each positive, tile by tile, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vicinal.evaluation.counting.positives import Positives
from vicinal.evaluation.relevance import Relevance
from vicinal.utils.arrays import Booleans, Floats, Integers, ShortIntegers
from vicinal.utils.threads import run_parts

LANES = 128  # columns that are read together where a tile is read by columns: some cache lines of each row
PIECES_PER_THREAD = 4
MASKED = float(np.finfo(np.float32).min) / 2  # below every score, and its difference to any score is finite


class Tile(NamedTuple):
    """A tile of scores.

    Attributes:
        scores: float32 [queries, gallery rows], or transposed.
        start: the first query.
        first_row: the first gallery row.
    """

    scores: Floats
    start: int
    first_row: int


class RankCounts(NamedTuple):
    """What is counted for the positives of some queries.

    Attributes:
        positives: the positives of the queries.
        rows_by_label: int64 [g], the gallery rows ordered by label.
        begin: int64 [queries], where the rows with the label of the query begin in `rows_by_label`. Rows with the label
            of the query are never counted.
        end: int64 [queries], where they end.
        num_before: int32 [slots + queries], how many scores rank before this positive but not before the positive ahead
            of it. Each query has one more slot behind its own, which is not read.
        is_tied: bool [slots], whether a counted score equals that of this positive. Of positives with equal scores, one
            or two are marked.
    """

    positives: Positives
    rows_by_label: Integers
    begin: Integers
    end: Integers
    num_before: ShortIntegers
    is_tied: Booleans


class Counter:
    """Counts in tiles of scores on the CPU, for some queries and one level of labels.

    The kernels are compiled when the first tile is counted, and kept on disk.

    Args:
        positives: the positives of the queries.
        relevance: the relevance they come from.
        start: the first of the queries.

    Example:
        >>> relevance = Relevance(np.array([1]), np.array([0, 1, 0, 0]))
        >>> positives = Positives(np.array([0.5], "f4"), np.array([1], "i4"), np.array([0, 1]), np.array([1]))
        >>> counter = Counter(positives, relevance, start=0)
        >>> counter.count(torch.tensor([[0.5, 0.5, 0.5, 0.9]]), start=0, first_row=0)
        >>> counter.num_before, counter.is_tied
        (array([2, 1], dtype=int32), array([ True]))
    """

    def __init__(self, positives: Positives, relevance: Relevance, start: int) -> None:
        queries = len(positives.counts)
        begin, end = relevance.label_ranges(start, start + queries)
        self._counts = RankCounts(
            positives,
            relevance.rows_by_label,
            begin,
            end,
            # Of PyTorch, as the positives are.
            num_before=torch.zeros(len(positives.rows) + queries, dtype=torch.int32).numpy(),
            is_tied=torch.zeros(len(positives.rows), dtype=torch.bool).numpy(),
        )

    @property
    def num_before(self) -> ShortIntegers:
        """See :class:`RankCounts`."""
        return self._counts.num_before

    @property
    def is_tied(self) -> Booleans:
        """See :class:`RankCounts`."""
        return self._counts.is_tied

    def count(self, scores: Tensor, start: int, first_row: int) -> None:
        """Count in a tile: rows are queries from `start` on, columns are gallery rows from `first_row` on."""
        from vicinal.evaluation.counting.kernels import count_rows  # imports numba, which takes half a second

        self._count_in_threads(count_rows, Tile(scores.numpy(), start, first_row), len(scores))

    def count_transposed(self, scores: Tensor, start: int, first_row: int) -> None:
        """Count in a tile whose columns are queries and whose rows are gallery rows."""
        from vicinal.evaluation.counting.kernels import count_columns

        self._count_in_threads(count_columns, Tile(scores.numpy(), start, first_row), scores.shape[1])

    def _count_in_threads(self, kernel: Callable[..., None], tile: Tile, queries: int) -> None:
        """Run a kernel over the queries of a tile, in as many threads as PyTorch uses."""
        threads = min(torch.get_num_threads(), -(-queries // LANES))
        if threads == 1:
            kernel(tile, self._counts, 0, queries)
            return
        cuts = np.unique(np.linspace(0, queries, PIECES_PER_THREAD * threads + 1).astype(np.int64) // LANES * LANES)
        cuts[-1] = queries
        run_parts(partial(kernel, tile, self._counts), cuts.tolist(), threads)
