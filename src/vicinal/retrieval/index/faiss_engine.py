"""Vectors in a faiss index that finds the nearest by cosine similarity: exactly, in a graph, or by codes."""

from __future__ import annotations

from typing import Any, Literal, cast

import faiss as faiss_with_stubs
import numpy as np

from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

faiss: Any = faiss_with_stubs  # its type stubs lack the Python arguments of most classes

Kind = Literal["exact", "hnsw", "ivfpq"]

MAX_EXACT = 100_000  # vectors; "auto" takes HNSW above, as comparing with every vector becomes slow
HNSW_LINKS = 32  # per vector
HNSW_BUILD, HNSW_SEARCH = 100, 128  # breadth of the graph search while building and while searching
IVFPQ_CODES, IVFPQ_PROBES = 256, 32  # values of one code byte, inverted lists visited
IVFPQ_MIN_VECTORS = 39 * IVFPQ_CODES  # vectors to train on; faiss recommends 39 per centroid
CLASSES = {"exact": faiss.IndexFlat, "hnsw": faiss.IndexHNSW, "ivfpq": faiss.IndexIVFPQ}


class FaissEngine:
    """Vectors that can be searched; the id of a vector is the number of vectors that were added before it.

    Args:
        index: an `IndexFlat`, `IndexHNSW` or `IndexIVFPQ` of faiss with the inner product as metric.

    Attributes:
        kind: `exact`, `hnsw` or `ivfpq`.

    Raises:
        InputError: `index` is of another class.

    Example:
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> engine = FaissEngine.create("exact", vectors)
        >>> engine.add(vectors)
        >>> engine.search(vectors.subset(np.array([1])), 1, active_ids=np.arange(3)).ids
        array([[1]])
    """

    def __init__(self, index: Any) -> None:
        kinds = [kind for kind, known in CLASSES.items() if isinstance(index, known)]
        if not kinds:
            raise InputError(f"{type(index).__name__} is not supported; use an exact, hnsw or ivfpq index")
        self._faiss = index
        self.kind = cast(Kind, kinds[0])

    @classmethod
    def create(cls, kind: Literal["auto"] | Kind, vectors: UnitVectors) -> FaissEngine:
        """Return an empty engine for these vectors, trained on them if its kind needs training.

        Raises:
            InputError: there are too few vectors for `ivfpq`, or the kind is unknown.
        """
        if kind == "auto":
            kind = "exact" if len(vectors) <= MAX_EXACT else "hnsw"
        if kind not in CLASSES:
            raise InputError(f"unknown kind of index {kind!r}; use auto, exact, hnsw or ivfpq")
        return cls({"exact": _exact, "hnsw": _hnsw, "ivfpq": _trained_ivfpq}[kind](vectors))

    @classmethod
    def from_bytes(cls, data: bytes) -> FaissEngine:
        """Read what :meth:`to_bytes` returned.

        Raises:
            InputError: the bytes are something else.
        """
        try:
            return cls(faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8)))
        except RuntimeError:
            raise InputError("the bytes are not an index of faiss") from None

    def to_bytes(self) -> bytes:
        """Return the engine with its vectors, for a file."""
        return cast(bytes, faiss.serialize_index(self._faiss).tobytes())

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return int(self._faiss.d)

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    def add(self, vectors: UnitVectors) -> None:
        """Add vectors, [n, dim]."""
        for start in range(0, len(vectors), BLOCK_ROWS):
            self._faiss.add(_rows(vectors, start, start + BLOCK_ROWS))

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, float32 [n, dim]; those of `ivfpq` are approximate."""
        return cast(Floats, self._faiss.reconstruct_batch(ids))

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest vectors of each query.

        A query for which a fast search finds fewer than k is searched again exhaustively.

        Args:
            queries: [q, dim].
            k: number of neighbours per query.
            active_ids: int64 [m], the ids among which to search, at least k.
        """
        is_active = np.zeros(len(self), dtype=bool)
        is_active[active_ids] = True
        selector = None if is_active.all() else faiss.IDSelectorBitmap(np.packbits(is_active, bitorder="little"))
        fast, exhaustive = self._parameters(k, selector, False), self._parameters(k, selector, True)
        search, search_exhaustively = _search_of(self._faiss), _search_of(self._exhaustive)
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), BLOCK_ROWS):
            vectors, block = _rows(queries, start, start + BLOCK_ROWS), slice(start, start + BLOCK_ROWS)
            scores[block], ids[block] = search(vectors, k, params=fast)
            missing = np.flatnonzero((ids[block] < 0).any(axis=1))
            if len(missing):
                found = search_exhaustively(vectors[missing], k, params=exhaustive)
                scores[start + missing], ids[start + missing] = found
        order = np.lexsort((ids, -scores))
        return Neighbors(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))

    @property
    def _exhaustive(self) -> Any:
        """The faiss index that is searched exhaustively: HNSW keeps its vectors in an exact index."""
        return self._faiss.storage if self.kind == "hnsw" else self._faiss

    def _parameters(self, k: int, selector: Any, exhaustive: bool) -> Any:
        if self.kind == "exact" or (self.kind == "hnsw" and exhaustive):
            return faiss.SearchParameters(sel=selector)
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH, 2 * k), sel=selector)
        lists = self._faiss.nlist
        return faiss.SearchParametersIVF(nprobe=lists if exhaustive else min(lists, IVFPQ_PROBES), sel=selector)


def _rows(vectors: UnitVectors, start: int, stop: int) -> Floats:
    return np.ascontiguousarray(vectors.block(start, stop).cpu().numpy())


def _search_of(index: Any) -> Any:
    """Return faiss's own method `search`, which `faiss.contrib.torch_utils` (other libraries import it) renames."""
    return getattr(index, "search_numpy", index.search)


def _exact(vectors: UnitVectors) -> Any:
    return faiss.IndexFlatIP(vectors.dim)


def _hnsw(vectors: UnitVectors) -> Any:
    graph = faiss.IndexHNSWFlat(vectors.dim, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = HNSW_BUILD
    return graph


def _trained_ivfpq(vectors: UnitVectors) -> Any:
    count, dim = len(vectors), vectors.dim
    if count < IVFPQ_MIN_VECTORS:
        raise InputError(
            f"an ivfpq index needs {IVFPQ_MIN_VECTORS:,} vectors to train on, got {count:,}; use exact or hnsw"
        )
    code_bytes = next(size for size in range(max(dim // 4, 1), 0, -1) if dim % size == 0)
    lists = int(min(4 * np.sqrt(count), count / 39))
    # "np" leaves out polysemous training, which takes seconds and which only Hamming distances use
    index = faiss.index_factory(dim, f"IVF{lists},PQ{code_bytes}x8np", faiss.METRIC_INNER_PRODUCT)
    # k-means uses at most 256 vectors per centroid; they are spread over the whole table
    sample_size = min(count, 256 * max(lists, IVFPQ_CODES))
    sample = np.linspace(0, count - 1, sample_size).astype(np.int64)
    index.train(vectors.take(sample).cpu().numpy())
    return index
