"""Count how many scores rank before each positive, tile by tile: by compiled loops on a CPU, by PyTorch on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vicinal.evaluation.counting.positives import Positives, RankCounts, Tile, ranking_keys
from vicinal.evaluation.relevance import Relevance
from vicinal.utils.arrays import Booleans, ShortIntegers
from vicinal.utils.devices import uses_kernel
from vicinal.utils.threads import run_parts

PIECES_PER_THREAD = 4
MAX_SCORES = 2**22  # compared at a time; each takes some 60 bytes of device memory
MAX_KERNEL_POSITIVES = 256  # of a query, up to which comparing all is faster than a binary search


class Counter:
    """Counts in tiles of scores on the CPU, for the queries from `start` on and one level of labels.

    The kernels are compiled when the first tile is counted, and kept on disk.
    """

    def __init__(self, positives: Positives, relevance: Relevance, start: int) -> None:
        queries = len(positives.counts)
        begin, end = relevance.label_ranges(start, start + queries)
        self._counts = RankCounts(
            positives,
            relevance.rows_by_label,
            begin,
            end,
            # Allocated by PyTorch, like the positives.
            num_before=torch.zeros(len(positives.rows) + queries, dtype=torch.int32).numpy(),
            is_tied=torch.zeros(len(positives.rows), dtype=torch.bool).numpy(),
        )

    @property
    def num_before(self) -> ShortIntegers:
        return self._counts.num_before

    @property
    def is_tied(self) -> Booleans:
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
        from vicinal.evaluation.counting.kernels import LANES

        threads = min(torch.get_num_threads(), -(-queries // LANES))
        if threads == 1:
            kernel(tile, self._counts, 0, queries)
            return
        cuts = np.unique(np.linspace(0, queries, PIECES_PER_THREAD * threads + 1).astype(np.int64) // LANES * LANES)
        cuts[-1] = queries
        run_parts(partial(kernel, tile, self._counts), cuts.tolist(), threads)


class DeviceCounter:
    """Counts in tiles of scores on the device that holds them, for queries from `start` on and one level of labels."""

    def __init__(self, positives: Positives, relevance: Relevance, start: int, device: torch.device) -> None:
        queries = len(positives.counts)
        scores, rows = (torch.from_numpy(each).to(device) for each in (positives.scores, positives.rows))
        self._keys = ranking_keys(scores, rows)
        self._first = torch.from_numpy(positives.first[:-1]).to(device)
        self._counts = torch.from_numpy(positives.counts).to(device)
        self._max_count = int(positives.counts.max(initial=0))
        self._query_labels = torch.from_numpy(relevance.query_labels[start : start + queries]).to(device)
        self._gallery_labels = torch.from_numpy(relevance.gallery_labels).to(device)
        self._num_before = torch.zeros(len(self._keys) + queries, dtype=torch.int32, device=device)
        self._is_tied = torch.zeros(len(self._keys), dtype=torch.bool, device=device)

    @property
    def num_before(self) -> ShortIntegers:
        return self._num_before.cpu().numpy()

    @property
    def is_tied(self) -> Booleans:
        return self._is_tied.cpu().numpy()

    def count(self, scores: Tensor, start: int, first_row: int) -> None:
        if self._max_count <= MAX_KERNEL_POSITIVES and uses_kernel(scores, "device_kernel", _kernel_agrees):
            self._count_by_kernel(scores, start, first_row)
        else:
            self._count_by_search(scores, start, first_row)

    def _count_by_search(self, scores: Tensor, start: int, first_row: int) -> None:
        rows = max(1, MAX_SCORES // scores.shape[1])
        for first in range(0, len(scores), rows):
            self._count(scores[first : first + rows], start + first, first_row)

    def count_transposed(self, scores: Tensor, start: int, first_row: int) -> None:
        self.count(scores.T, start, first_row)

    def _count_by_kernel(self, scores: Tensor, start: int, first_row: int) -> None:
        from vicinal.evaluation.counting import device_kernel  # imports Triton

        labels, is_tied = (self._query_labels, self._gallery_labels), self._is_tied.view(torch.uint8)
        slots = device_kernel.Slots(self._keys, self._first, self._counts, *labels, self._num_before, is_tied)
        device_kernel.count(scores, slots, start, first_row, self._max_count)

    def _count(self, scores: Tensor, start: int, first_row: int) -> None:
        queries = torch.arange(start, start + len(scores), device=scores.device)
        rows = torch.arange(first_row, first_row + scores.shape[1], device=scores.device)
        is_counted = self._gallery_labels[rows] != self._query_labels[queries][:, None]
        query, column = (is_counted & (self._counts[queries] > 0)[:, None]).nonzero(as_tuple=True)
        keys = ranking_keys(scores[query, column], rows[column])
        query = queries[query]
        slots = self._first_slot_after(keys, query)
        self._num_before.index_add_(0, slots + query, torch.ones_like(slots, dtype=torch.int32))
        first, end = self._first[query], self._first[query] + self._counts[query]
        for neighbor in (slots, slots - 1):
            inside = (neighbor >= first) & (neighbor < end)
            is_equal = self._keys[neighbor[inside]] >> 32 == keys[inside] >> 32
            self._is_tied[neighbor[inside][is_equal]] = True

    def _first_slot_after(self, keys: Tensor, query: Tensor) -> Tensor:
        """The slot of the first positive that each score ranks before, by binary search."""
        low, high = self._first[query], self._first[query] + self._counts[query]
        for _ in range(self._max_count.bit_length()):
            middle = (low + high) // 2
            ahead = (low < high) & (self._keys[middle.clamp(max=len(self._keys) - 1)] < keys)
            low, high = torch.where(ahead, middle + 1, low), torch.where(ahead, high, middle)
        return low


def _kernel_agrees(device: torch.device) -> bool:
    """Whether the kernel counts the same as PyTorch, on a small example with ties."""
    relevance = Relevance(np.array([1, 2]), np.array([0, 1, 1, 0, 2]))
    found = Positives(
        np.array([0.75, 0.5, 0.25], "f4"), np.array([1, 2, 4], "i4"), np.array([0, 2, 3]), np.array([2, 1])
    )
    scores = torch.tensor([[0.5, 0.75, 0.5, 0.9, 0.1], [0.25, 0.2, 0.3, 0.1, 0.25]], device=device)
    by_kernel, by_search = (DeviceCounter(found, relevance, 0, device) for _ in range(2))
    by_kernel._count_by_kernel(scores, 0, 0)
    by_search._count_by_search(scores, 0, 0)
    counted = [0, 1, 3]  # the other slots count scores after all positives, and are not used
    is_same = (by_kernel.num_before == by_search.num_before)[counted].all()
    return bool(is_same and (by_kernel.is_tied == by_search.is_tied).all())
