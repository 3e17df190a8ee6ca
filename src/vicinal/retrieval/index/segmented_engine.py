"""Two segments that are searched as one: a large base that never changes, and the vectors that were added since."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers

if TYPE_CHECKING:
    from vicinal.retrieval.index.rescoring import Engine

MIN_CAPACITY = 256  # vectors that have room before the added ones are copied


class SegmentedEngine:
    """The vectors of an engine that never changes, and exactly searched ones after them.

    Args:
        base: the engine, of any kind.

    Example:
        >>> from vicinal.retrieval.index.faiss_engine import FaissEngine
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> base = FaissEngine.create("exact", vectors)
        >>> base.add(vectors)
        >>> engine = SegmentedEngine(base)
        >>> later = engine.with_added(np.array([[0, 1, 0]], np.float32))
        >>> len(base), len(engine), len(later)
        (3, 3, 4)
        >>> later.search(vectors.subset(np.array([1])), 2, active_ids=np.arange(4)).ids
        array([[1, 3]])
    """

    def __init__(self, base: Engine) -> None:
        self.base = base
        self._room, self._count = np.empty((0, base.dim), np.float32), 0
        self._last_split: tuple[Integers, Integers, Integers] | None = None

    @property
    def kind(self) -> Kind:
        """That of the base."""
        return self.base.kind

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return self.base.dim

    def __len__(self) -> int:
        return len(self.base) + self._count

    @property
    def added(self) -> Floats:
        """The vectors beside the base, float32 [n, dim]."""
        return self._room[: self._count]

    def with_added(self, vectors: Floats) -> SegmentedEngine:
        """The engine with further unit vectors, float32 [n, dim].

        It may keep them in memory that it shares with this one, behind the vectors of this one: only the last engine
        of a history is added to.
        """
        later, count = copy(self), self._count + len(vectors)
        if count > len(self._room):
            later._room = np.empty((max(MIN_CAPACITY, 2 * count), self.dim), np.float32)
            later._room[: self._count] = self.added
        later._room[self._count : count] = vectors
        later._count = count
        return later

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, float32 [n, dim]."""
        is_base = ids < len(self.base)
        if is_base.all():
            return self.base.take(ids)
        vectors = np.empty((len(ids), self.dim), np.float32)
        vectors[is_base] = self.base.take(ids[is_base])
        vectors[~is_base] = self.added[ids[~is_base] - len(self.base)]
        return vectors

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest vectors of each query; see :meth:`FaissEngine.search`."""
        old, new = self._split(active_ids)
        parts = []
        if len(old):
            parts.append(self.base.search(queries, min(k, len(old)), old))
        if len(new):
            parts.append(self._search_added(queries, min(k, len(new)), new))
        if len(parts) == 1:
            return parts[0]
        scores, ids = np.hstack([part.scores for part in parts]), np.hstack([part.ids for part in parts])
        return _best(scores, ids, k)

    def _search_added(self, queries: UnitVectors, k: int, ids: Integers) -> Neighbors:
        rows = ids - len(self.base)
        vectors = self.added if len(rows) == self._count else self.added[rows]
        neighbors = Neighbors.empty(len(queries), k)
        for start in range(0, len(queries), BLOCK_ROWS):
            block = queries.block(start, min(start + BLOCK_ROWS, len(queries))).cpu().numpy()
            scores = np.concatenate([
                block @ vectors[first : first + BLOCK_ROWS].T for first in range(0, len(vectors), BLOCK_ROWS)
            ], axis=1)  # fmt: skip
            found = _best(scores, np.broadcast_to(ids, scores.shape), k)
            neighbors.scores[start : start + len(block)] = found.scores
            neighbors.ids[start : start + len(block)] = found.ids
        return neighbors

    def _split(self, ids: Integers) -> tuple[Integers, Integers]:
        """The ids of the base and the others; remembered, since an engine caches the last selection."""
        last = self._last_split
        if last is None or last[0] is not ids:
            boundary = int(np.searchsorted(ids, len(self.base)))
            old = ids[:boundary]
            if last is not None and len(last[1]) == boundary and np.array_equal(last[1], old):
                old = last[1]
            last = self._last_split = ids, old, ids[boundary:]
        return last[1], last[2]


def _best(scores: Floats, ids: Integers, k: int) -> Neighbors:
    """The k best of each query; equal scores in ascending order of ids."""
    if scores.shape[1] > 4 * k:  # all that are as good as the k-th
        worst = np.partition(scores, -k, axis=1)[:, -k]
        scores, ids = np.where(scores >= worst[:, None], scores, -np.inf), ids
        width = int((scores > -np.inf).sum(axis=1).max(initial=k))
        nearest = np.argpartition(-scores, width - 1, axis=1)[:, :width]
        scores, ids = np.take_along_axis(scores, nearest, axis=1), np.take_along_axis(ids, nearest, axis=1)
    order = np.lexsort((ids, -scores))[:, :k]
    return Neighbors(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))
