"""Unit vectors in half precision, which stay in a file until they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

Halves = npt.NDArray[np.float16]


class HalfStore:
    """Vectors as float16: those of a file, which are read when they are asked for, and those added since, in memory.

    Args:
        dim: number of dimensions.
        stored: float16 [n, dim], such as a memory map of a file.

    Example:
        >>> store = HalfStore(2)
        >>> store.add(UnitVectors(np.array([[3.0, 4.0], [0.0, 1.0]]), "vector"))
        >>> len(store), store.take(np.array([1]))
        (2, array([[0., 1.]], dtype=float32))
    """

    def __init__(self, dim: int, stored: Halves | None = None) -> None:
        self.dim = dim
        self._blocks: list[Halves] = [] if stored is None else [stored]

    def copied(self) -> HalfStore:
        """A store with the same vectors, to which others can be added."""
        store = HalfStore(self.dim)
        store._blocks = list(self._blocks)
        return store

    @classmethod
    def from_file(cls, path: Path, file: Any, dim: int) -> HalfStore:
        """Map an open file of whole rows into memory.

        Raises:
            InputError: its size is not that of whole rows.
        """
        size = file.seek(0, 2)
        if dim < 1 or size % (2 * dim):
            raise InputError(f"{path.name} has {size:,} bytes, which are no float16 vectors of {dim} dimensions")
        shape = (size // (2 * dim), dim)
        stored = np.memmap(file, np.dtype("<f2"), "r", shape=shape) if size else np.empty(shape, np.float16)
        return cls(dim, stored)

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, vectors: UnitVectors) -> None:
        """Add vectors, [n, dim]."""
        added = np.empty((len(vectors), self.dim), np.float16)
        for start in range(0, len(vectors), BLOCK_ROWS):
            block = vectors.block(start, min(start + BLOCK_ROWS, len(vectors)))
            added[start : start + len(block)] = block.half().cpu().numpy()
        self._blocks = [*self._blocks, added]

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, normalized, float32 [n, dim]."""
        present, positions = np.unique(ids, return_inverse=True)
        vectors = np.empty((len(present), self.dim), np.float32)
        start = 0
        for block in self._blocks:
            rows = slice(*np.searchsorted(present, [start, start + len(block)]))
            vectors[rows] = block[present[rows] - start]
            start += len(block)
        return UnitVectors(vectors, "stored vector").block(0, len(vectors)).numpy()[positions]

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of all vectors, for a file."""
        for part in self._blocks:
            for start in range(0, len(part), BLOCK_ROWS):
                yield part[start : start + BLOCK_ROWS].astype("<f2").tobytes()
