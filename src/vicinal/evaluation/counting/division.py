"""The division of one ranking among processes: each counts in some tiles, and the counts are added up.

Counts are integers, so that their sum does not depend on who counted what: the ranks are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from vicinal.evaluation.counting.positives import Positives
from vicinal.retrieval.scores import TILE_ROWS, round_up
from vicinal.utils import distributed
from vicinal.utils.arrays import Booleans, Integers, ShortIntegers

TILES_PER_PROCESS = 8  # rows of tiles, at least, so that all processes have about as much to do


class TotalCounts(NamedTuple):
    """What all processes have counted together; see :class:`~vicinal.evaluation.counting.counter.RankCounts`."""

    num_before: ShortIntegers
    is_tied: Booleans


@dataclass(frozen=True)
class Division:
    """The processes that divide a ranking.

    Args:
        rank: number of this process.
        world_size: number of processes.

    Example:
        >>> Division(rank=1, world_size=3).own(range(0, 70, 10))
        range(10, 70, 30)
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_group(cls) -> Division:
        """The processes of `torch.distributed`."""
        return cls(distributed.rank(), distributed.world_size())

    def own(self, tops: range) -> range:
        """The rows of tiles in which this process counts; where tiles grow with the row, all have about as many."""
        return tops[self.rank :: self.world_size]

    def smallest(self, number: int) -> int:
        """The smallest number that a process has, for what all must do alike although their GPUs differ."""
        return number if self.world_size == 1 else min(distributed.all_gather_objects(number))

    def tile_rows(self, max_rows: int, queries: int) -> int:
        """The number of queries in a tile, at most `max_rows`."""
        if self.world_size == 1:
            return max_rows
        return min(max_rows, round_up(-(-queries // (TILES_PER_PROCESS * self.world_size)), TILE_ROWS))

    def positives(self, find: Callable[[int, int], Positives], sizes: Integers, start: int) -> Positives:
        """Let each process find the positives of some consecutive queries, and gather those of all.

        Args:
            find: function of the first query and the end, exclusive, that finds their positives.
            sizes: int64 [queries], the number of slots of each query.
            start: the first query.
        """
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
        """Add up what the processes have counted."""
        if self.world_size == 1:
            return TotalCounts(num_before, is_tied)
        tied = distributed.all_reduce_sum(torch.from_numpy(is_tied.astype(np.int32))).numpy() > 0
        return TotalCounts(distributed.all_reduce_sum(torch.from_numpy(num_before)).numpy(), tied)
