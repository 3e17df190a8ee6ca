"""Engines on top of faiss: codes with exact re-scoring, and exactly searched vectors beside any engine."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vicinal.retrieval.index.kinds import MIN_NEIGHBORS, Kind, checked_rescore
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers

if TYPE_CHECKING:
    from vicinal.retrieval.index.binary_engine import BinaryEngine
    from vicinal.retrieval.index.faiss_engine import FaissEngine

    CodesEngine: TypeAlias = FaissEngine | BinaryEngine
    Engine: TypeAlias = "CodesEngine | RescoringEngine"

Halves = npt.NDArray[np.float16]
MAX_CANDIDATES = 2**15  # whose vectors are in memory at a time
MIN_CAPACITY = 256  # vectors that fit before the added ones are copied


class HalfStore:
    """Vectors as float16: a file that is read on demand, and later vectors in memory."""

    def __init__(self, dim: int, stored: Halves | None = None) -> None:
        self.dim = dim
        self._blocks: list[Halves] = [] if stored is None else [stored]

    def copied(self) -> HalfStore:
        """A store with the same vectors, to which others can be added."""
        store = HalfStore(self.dim)
        store._blocks = list(self._blocks)
        return store

    @classmethod
    def from_file(cls, file: Any, dim: int) -> HalfStore:
        shape = (file.seek(0, 2) // (2 * dim), dim)
        return cls(dim, np.memmap(file, np.dtype("<f2"), "r", shape=shape) if shape[0] else None)

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, vectors: UnitVectors) -> None:
        added = np.empty((len(vectors), self.dim), np.float16)
        for start in range(0, len(vectors), BLOCK_ROWS):
            block = vectors.block(start, min(start + BLOCK_ROWS, len(vectors)))
            added[start : start + len(block)] = block.half().cpu().numpy()
        self._blocks = [*self._blocks, added]

    def take(self, ids: Integers) -> Floats:
        """The vectors of these ids, normalized, float32 [n, dim]."""
        unique_ids, positions = np.unique(ids, return_inverse=True)
        vectors = np.empty((len(unique_ids), self.dim), np.float32)
        start = 0
        for block in self._blocks:
            rows = slice(*np.searchsorted(unique_ids, [start, start + len(block)]))
            vectors[rows] = block[unique_ids[rows] - start]
            start += len(block)
        return UnitVectors(vectors, "stored vector").block(0, len(vectors)).numpy()[positions]

    def blocks(self) -> Iterator[bytes]:
        for part in self._blocks:
            for start in range(0, len(part), BLOCK_ROWS):
                yield part[start : start + BLOCK_ROWS].astype("<f2").tobytes()


class RescoringEngine:
    """Codes in memory; `rescore` candidates per neighbor are compared by their vectors, which are read from a file."""

    def __init__(self, codes: CodesEngine, store: HalfStore, rescore: int) -> None:
        self.codes, self.store, self.rescore = codes, store, rescore
        self.kind, self.dim = codes.kind, codes.dim

    def __len__(self) -> int:
        return min(len(self.codes), len(self.store))

    def to_bytes(self) -> bytes:
        """Return the codes, for a file; the store has a file of its own."""
        return self.codes.to_bytes()

    def add(self, vectors: UnitVectors) -> None:
        self.codes.add(vectors)
        self.store.add(vectors)

    def take(self, ids: Integers) -> Floats:
        return self.store.take(ids)

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest among the nearest by codes, exactly; see :meth:`FaissEngine.search`."""
        num_candidates = min(len(active_ids), self.rescore * max(k, MIN_NEIGHBORS))
        neighbors = Neighbors.empty(len(queries), k)
        size = max(1, min(BLOCK_ROWS, MAX_CANDIDATES // num_candidates))
        for start in range(0, len(queries), BLOCK_ROWS):  # faiss is faster with many queries at a time
            block = queries.subset(np.arange(start, min(start + BLOCK_ROWS, len(queries))))
            candidates = self.codes.search(block, num_candidates, active_ids).ids
            for first in range(0, len(block), size):
                vectors = block.block(first, min(first + size, len(block))).cpu().numpy()
                found = self._nearest(vectors, candidates[first : first + size], k)
                rows = slice(start + first, start + first + len(vectors))
                neighbors.scores[rows], neighbors.ids[rows] = found.scores, found.ids
        return neighbors

    def _nearest(self, vectors: Floats, candidates: Integers, k: int) -> Neighbors:
        """The k best candidates of each query, [queries, candidates], by their vectors."""
        candidate_vectors = self.store.take(candidates.ravel()).reshape(*candidates.shape, -1)
        # equal scores for equal vectors, which a matrix product does not ensure
        scores = np.einsum("qd,qcd->qc", vectors, candidate_vectors)
        order = np.lexsort((candidates, -scores))[:, :k]
        return Neighbors(np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1))


def create_engine(kind: Literal["auto"] | Kind, vectors: UnitVectors, rescore: int | None = None) -> Engine:
    """An empty engine for these vectors; `rescore`: candidates per neighbor, None: the kind's default, 0: none."""
    rescore, codes = checked_rescore(kind, rescore), create_codes(kind, vectors)
    return RescoringEngine(codes, HalfStore(vectors.dim), rescore) if rescore else codes


def create_codes(kind: Literal["auto"] | Kind, vectors: UnitVectors) -> CodesEngine:
    """An empty engine for these vectors without rescoring, trained on them if its kind needs training."""
    if kind == "binary":
        from vicinal.retrieval.index.binary_engine import BinaryEngine

        return BinaryEngine.create(vectors)
    from vicinal.retrieval.index.faiss_engine import FaissEngine

    return FaissEngine.create(kind, vectors)


def read_codes(kind: object, data: bytes | memoryview) -> CodesEngine:
    """The engine without rescoring that `to_bytes` wrote."""
    if kind == "binary":
        from vicinal.retrieval.index.binary_engine import BinaryEngine

        return BinaryEngine.from_bytes(data)
    from vicinal.retrieval.index.faiss_engine import FaissEngine

    return FaissEngine.from_bytes(data)


class SegmentedEngine:
    """The vectors of an engine that never changes, followed by vectors that are searched exactly."""

    def __init__(self, base: Engine) -> None:
        self.base, self.dim = base, base.dim
        self._room, self._count = np.empty((0, base.dim), np.float32), 0
        self._last_split: tuple[Integers, Integers, Integers] | None = None

    def __len__(self) -> int:
        return len(self.base) + self._count

    @property
    def added(self) -> Floats:
        """The vectors beside the base, float32 [n, dim]."""
        return self._room[: self._count]

    def with_added(self, vectors: Floats) -> SegmentedEngine:
        """The engine with further unit vectors, float32 [n, dim].

        Both engines may share memory, in which the new vectors follow those of this one: add only to the last engine
        of a history.
        """
        later, count = copy(self), self._count + len(vectors)
        if count > len(self._room):
            later._room = np.empty((max(MIN_CAPACITY, 2 * count), self.dim), np.float32)
            later._room[: self._count] = self.added
        later._room[self._count : count] = vectors
        later._count = count
        return later

    def take(self, ids: Integers) -> Floats:
        is_base = ids < len(self.base)
        if is_base.all():
            return self.base.take(ids)
        vectors = np.empty((len(ids), self.dim), np.float32)
        vectors[is_base] = self.base.take(ids[is_base])
        vectors[~is_base] = self.added[ids[~is_base] - len(self.base)]
        return vectors

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        old, new = self._split_ids(active_ids)
        parts = []
        if len(old):
            parts.append(self.base.search(queries, min(k, len(old)), old))
        if len(new):
            parts.append(self._search_added(queries, min(k, len(new)), new))
        if len(parts) == 1:
            return parts[0]
        scores, ids = np.hstack([part.scores for part in parts]), np.hstack([part.ids for part in parts])
        return _top_k(scores, ids, k)

    def _search_added(self, queries: UnitVectors, k: int, ids: Integers) -> Neighbors:
        rows = ids - len(self.base)
        vectors = self.added if len(rows) == self._count else self.added[rows]
        neighbors = Neighbors.empty(len(queries), k)
        for start in range(0, len(queries), BLOCK_ROWS):
            block = queries.block(start, min(start + BLOCK_ROWS, len(queries))).cpu().numpy()
            scores = np.concatenate([
                block @ vectors[first : first + BLOCK_ROWS].T for first in range(0, len(vectors), BLOCK_ROWS)
            ], axis=1)  # fmt: skip
            found = _top_k(scores, np.broadcast_to(ids, scores.shape), k)
            neighbors.scores[start : start + len(block)] = found.scores
            neighbors.ids[start : start + len(block)] = found.ids
        return neighbors

    def _split_ids(self, ids: Integers) -> tuple[Integers, Integers]:
        """The ids of the base and the others; remembered, since an engine caches the last selection."""
        last = self._last_split
        if last is None or last[0] is not ids:
            boundary = int(np.searchsorted(ids, len(self.base)))
            old = ids[:boundary]
            if last is not None and len(last[1]) == boundary and np.array_equal(last[1], old):
                old = last[1]
            last = self._last_split = ids, old, ids[boundary:]
        return last[1], last[2]


def _top_k(scores: Floats, ids: Integers, k: int) -> Neighbors:
    """The k best of each query; equal scores in ascending order of ids."""
    if scores.shape[1] > 4 * k:  # all that are as good as the k-th
        worst = np.partition(scores, -k, axis=1)[:, -k]
        scores, ids = np.where(scores >= worst[:, None], scores, -np.inf), ids
        width = int((scores > -np.inf).sum(axis=1).max(initial=k))
        nearest = np.argpartition(-scores, width - 1, axis=1)[:, :width]
        scores, ids = np.take_along_axis(scores, nearest, axis=1), np.take_along_axis(ids, nearest, axis=1)
    order = np.lexsort((ids, -scores))[:, :k]
    return Neighbors(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))
