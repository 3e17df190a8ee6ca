"""The counting of :mod:`~vicinal.evaluation.counting` in operations of PyTorch, for scores that lie on a GPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.evaluation.positives import Positives, ranking_keys
from vicinal.evaluation.relevance import Relevance

MOST_SCORES = 2**22  # compared at a time; each takes some 60 bytes of the device


class DeviceCounter:
    """Counts in tiles of scores where they lie, for some queries at one level of labels.

    Args:
        positives: of the queries.
        relevance: that they are of.
        start: the first of the queries.
        device: where the scores lie.

    Example:
        >>> relevance = Relevance(np.array([1]), np.array([0, 1, 0, 0]))
        >>> positives = Positives(np.array([0.5], "f4"), np.array([1], "i4"), np.array([0, 1]), np.array([1]))
        >>> counter = DeviceCounter(positives, relevance, start=0, device=torch.device("cpu"))
        >>> counter.count(torch.tensor([[0.5, 0.5, 0.5, 0.9]]), start=0, first_row=0)
        >>> counter.before, counter.tied
        (array([2, 1], dtype=int32), array([ True]))
    """

    def __init__(self, positives: Positives, relevance: Relevance, start: int, device: torch.device) -> None:
        queries = len(positives.counts)
        self._keys = torch.from_numpy(ranking_keys(positives.scores, positives.rows.astype(np.int64))).to(device)
        self._first = torch.from_numpy(positives.first[:-1]).to(device)
        self._counts = torch.from_numpy(positives.counts).to(device)
        self._query_labels = torch.from_numpy(relevance.query_labels[start : start + queries]).to(device)
        self._gallery_labels = torch.from_numpy(relevance.gallery_labels).to(device)
        self._before = torch.zeros(len(self._keys) + queries, dtype=torch.int32, device=device)
        self._tied = torch.zeros(len(self._keys), dtype=torch.bool, device=device)

    @property
    def before(self) -> npt.NDArray[np.int32]:
        """See :class:`~vicinal.evaluation.counting.Tally`."""
        return self._before.cpu().numpy()

    @property
    def tied(self) -> npt.NDArray[np.bool_]:
        """See :class:`~vicinal.evaluation.counting.Tally`."""
        return self._tied.cpu().numpy()

    def count(self, scores: Tensor, start: int, first_row: int) -> None:
        """Count in the scores of the queries from `start` on with the gallery rows from `first_row` on."""
        rows = max(1, MOST_SCORES // scores.shape[1])
        for first in range(0, len(scores), rows):
            self._count(scores[first : first + rows], start + first, first_row)

    def count_transposed(self, scores: Tensor, start: int, first_row: int) -> None:
        """The same, but queries stand in the columns, and gallery rows in the rows."""
        self.count(scores.T, start, first_row)

    def _count(self, scores: Tensor, start: int, first_row: int) -> None:
        queries = torch.arange(start, start + len(scores), device=scores.device)
        rows = torch.arange(first_row, first_row + scores.shape[1], device=scores.device)
        counted = self._gallery_labels[rows] != self._query_labels[queries][:, None]
        owner, place = (counted & (self._counts[queries] > 0)[:, None]).nonzero(as_tuple=True)
        keys = _keys(scores[owner, place], rows[place])
        owner = queries[owner]
        low = self._first_after(keys, owner)
        self._before.index_add_(0, low + owner, torch.ones_like(low, dtype=torch.int32))
        first, last = self._first[owner], self._first[owner] + self._counts[owner]
        for slot in (low, low - 1):
            inside = (slot >= first) & (slot < last)
            level = self._keys[slot[inside]] >> 32 == keys[inside] >> 32
            self._tied[slot[inside][level]] = True

    def _first_after(self, keys: Tensor, owner: Tensor) -> Tensor:
        """The slot of the first positive that each score ranks before, by halving."""
        low, high = self._first[owner], self._first[owner] + self._counts[owner]
        for _ in range(int(self._counts.max()).bit_length()):
            middle = (low + high) // 2
            ahead = (low < high) & (self._keys[middle.clamp(max=len(self._keys) - 1)] < keys)
            low, high = torch.where(ahead, middle + 1, low), torch.where(ahead, high, middle)
        return low


def _keys(scores: Tensor, rows: Tensor) -> Tensor:
    """As :func:`~vicinal.evaluation.positives.ranking_keys`."""
    bits = (0 - scores).view(torch.int32).long()
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFF)
    return (bits << 32) | rows
