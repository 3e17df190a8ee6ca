"""Vectors as one bit per dimension, compared by the number of bits that differ."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt

from vicinal.retrieval.index.faiss_engine import SQ8_SAMPLE
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers

faiss: Any = faiss_with_stubs  # its type stubs lack the Python arguments of most classes

MAGIC = b"vicinal-bits"
HEADER = "<12sQQ"  # magic, number of vectors, dimensions

Bits = npt.NDArray[np.uint8]


class BinaryEngine:
    """Vectors as bits: whether each entry is above its mean over the vectors that the engine was created for.

    Every query is compared with all vectors. A score is 1 - 2 x the fraction of bits that differ, which grows with the
    cosine similarity.
    """

    kind: ClassVar[Kind] = "binary"

    def __init__(self, means: Floats, bits: Bits) -> None:
        self._means, self.dim = means, len(means)
        self._faiss = faiss.IndexBinaryFlat(8 * bits.shape[1])
        self._faiss.add(bits)

    @classmethod
    def create(cls, vectors: UnitVectors) -> BinaryEngine:
        rows = np.linspace(0, len(vectors) - 1, min(len(vectors), SQ8_SAMPLE)).astype(np.int64)
        means = vectors.take(rows).mean(dim=0).cpu().numpy()
        return cls(means, np.empty((0, -(-vectors.dim // 8)), np.uint8))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> BinaryEngine:
        start = struct.calcsize(HEADER)
        _, count, dim = struct.unpack(HEADER, data[:start])
        means = np.frombuffer(data, "<f4", count=dim, offset=start)
        return cls(means.copy(), np.frombuffer(data, np.uint8, offset=start + 4 * dim).reshape(count, -(-dim // 8)))

    def to_bytes(self) -> bytes:
        header = struct.pack(HEADER, MAGIC, len(self), self.dim)
        return header + self._means.astype("<f4").tobytes() + faiss.vector_to_array(self._faiss.xb).tobytes()

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    def add(self, vectors: UnitVectors) -> None:
        for start in range(0, len(vectors), BLOCK_ROWS):
            self._faiss.add(self._bits(vectors, start))

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, float32 [n, dim]: entries of equal size around the means."""
        bits = faiss.vector_to_array(self._faiss.xb).reshape(len(self), -1)[ids]
        signs = np.unpackbits(bits, axis=1, count=self.dim) * np.float32(2) - 1
        return np.asarray(self._means + signs / np.float32(self.dim) ** 0.5, np.float32)

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k vectors whose bits differ least from those of each query; see :meth:`FaissEngine.search`."""
        selector = None
        if len(active_ids) < len(self):
            mask = np.zeros(len(self), dtype=bool)
            mask[active_ids] = True
            selector = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        parameters, neighbors = faiss.SearchParameters(sel=selector), Neighbors.empty(len(queries), k)
        for start in range(0, len(queries), BLOCK_ROWS):
            distances, ids = self._faiss.search(self._bits(queries, start), k, params=parameters)
            order = np.lexsort((ids, distances))
            block = slice(start, start + BLOCK_ROWS)
            neighbors.scores[block] = 1 - 2 / self.dim * np.take_along_axis(distances, order, axis=1)
            neighbors.ids[block] = np.take_along_axis(ids, order, axis=1)
        return neighbors

    def _bits(self, vectors: UnitVectors, start: int) -> Bits:
        """The bits of a block of vectors, uint8 [n, dim / 8, rounded up]; those beyond the dimensions are 0."""
        block = vectors.block(start, min(start + BLOCK_ROWS, len(vectors))).cpu().numpy()
        return np.packbits(block > self._means, axis=1)
