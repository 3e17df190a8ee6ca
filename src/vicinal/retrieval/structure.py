"""Vectors in a structure of faiss that finds the nearest ones by cosine similarity: exact, a graph, or codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt

from vicinal.errors import InputError
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors

faiss: Any = faiss_with_stubs  # its type stubs lack the Python-side arguments of most classes

Kind = Literal["exact", "hnsw", "ivfpq"]

EXACT_UP_TO = 100_000  # vectors; above, "auto" takes HNSW, as comparing with every vector becomes slow
HNSW_LINKS = 32  # a vector
HNSW_BUILD, HNSW_SEARCH = 100, 128  # breadth of the search while building and while searching
IVFPQ_CODES, IVFPQ_PROBES = 256, 32  # values of one code byte, inverted lists visited
IVFPQ_LEAST = 39 * IVFPQ_CODES  # vectors to train on; faiss's own advice is 39 a centroid
CLASSES = {"exact": faiss.IndexFlat, "hnsw": faiss.IndexHNSW, "ivfpq": faiss.IndexIVFPQ}

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Matches:
    """What a search found, best first.

    Attributes:
        scores: float32 [queries, k], cosine similarities (approximate ones from an `ivfpq` index).
        ids: int64 [queries, k]; equal scores stand in the order of their ids.
    """

    scores: Floats
    ids: Integers


class Structure:
    """Vectors to search in; the id of one is the number of those that were added before it.

    Args:
        of_faiss: an `IndexFlat`, `IndexHNSW` or `IndexIVFPQ` by inner product.

    Attributes:
        kind: `exact`, `hnsw` or `ivfpq`.

    Raises:
        InputError: another structure of faiss.

    Example:
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> structure = Structure.made_for("exact", vectors)
        >>> structure.add(vectors)
        >>> structure.search(vectors.subset(np.array([1])), 1, np.arange(3)).ids
        array([[1]])
    """

    def __init__(self, of_faiss: Any) -> None:
        kinds = [kind for kind, known in CLASSES.items() if isinstance(of_faiss, known)]
        if not kinds:
            raise InputError(f"{type(of_faiss).__name__} is no structure of an index; use exact, hnsw or ivfpq")
        self._faiss = of_faiss
        self.kind = cast(Kind, kinds[0])

    @classmethod
    def made_for(cls, kind: Literal["auto"] | Kind, vectors: UnitVectors) -> Structure:
        """An empty structure, trained on the vectors if it needs to be.

        Raises:
            InputError: too few vectors for `ivfpq`, or an unknown kind.
        """
        if kind == "auto":
            kind = "exact" if len(vectors) <= EXACT_UP_TO else "hnsw"
        if kind not in CLASSES:
            raise InputError(f"unknown kind of index {kind!r}; use auto, exact, hnsw or ivfpq")
        return cls({"exact": _exact, "hnsw": _hnsw, "ivfpq": _trained_ivfpq}[kind](vectors))

    @classmethod
    def from_bytes(cls, data: bytes) -> Structure:
        """Read what :meth:`to_bytes` gave.

        Raises:
            InputError: it is something else.
        """
        try:
            return cls(faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8)))
        except RuntimeError:
            raise InputError("this is no structure of faiss") from None

    def to_bytes(self) -> bytes:
        """The structure with its vectors, for a file."""
        return cast(bytes, faiss.serialize_index(self._faiss).tobytes())

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return int(self._faiss.d)

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    def add(self, vectors: UnitVectors) -> None:
        """Add vectors, float [n, dim]."""
        for start in range(0, len(vectors), BLOCK_ROWS):
            self._faiss.add(_rows(vectors, start, start + BLOCK_ROWS))

    def take(self, ids: Integers) -> Floats:
        """The vectors of these ids, float32 [n, dim]; approximate ones from `ivfpq`."""
        return cast(Floats, self._faiss.reconstruct_batch(ids))

    def search(self, queries: UnitVectors, k: int, alive: Integers) -> Matches:
        """Find the k nearest of each query among the vectors with the ids `alive`, which are at least k."""
        there = np.zeros(len(self), dtype=bool)
        there[alive] = True
        selector = None if there.all() else faiss.IDSelectorBitmap(np.packbits(there, bitorder="little"))
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(queries))
            scores[start:stop], ids[start:stop] = self._search(_rows(queries, start, stop), k, selector)
        order = np.lexsort((ids, -scores))
        return Matches(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))

    def _search(self, queries: Floats, k: int, selector: Any) -> tuple[Floats, Integers]:
        """Search quickly, and again with all breadth where that found fewer than k."""
        scores, ids = _search(self._faiss, queries, k, self._parameters(k, selector, exhaustive=False))
        short = np.flatnonzero((ids < 0).any(axis=1))
        if len(short):
            structure = self._faiss.storage if self.kind == "hnsw" else self._faiss
            parameters = self._parameters(k, selector, exhaustive=True)
            scores[short], ids[short] = _search(structure, queries[short], k, parameters)
        return scores, ids

    def _parameters(self, k: int, selector: Any, exhaustive: bool) -> Any:
        if self.kind == "exact" or (self.kind == "hnsw" and exhaustive):
            return faiss.SearchParameters(sel=selector)
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH, 2 * k), sel=selector)
        lists = self._faiss.nlist
        return faiss.SearchParametersIVF(nprobe=lists if exhaustive else min(lists, IVFPQ_PROBES), sel=selector)


def _rows(vectors: UnitVectors, start: int, stop: int) -> Floats:
    return np.ascontiguousarray(vectors.block(start, stop).cpu().numpy())


def _search(structure: Any, queries: Floats, k: int, parameters: Any) -> tuple[Floats, Integers]:
    """Search by faiss's own method, which `faiss.contrib.torch_utils` (other libraries import it) renames."""
    search = getattr(structure, "search_numpy", structure.search)
    return cast(tuple[Floats, Integers], search(queries, k, params=parameters))


def _exact(vectors: UnitVectors) -> Any:
    return faiss.IndexFlatIP(vectors.dim)


def _hnsw(vectors: UnitVectors) -> Any:
    graph = faiss.IndexHNSWFlat(vectors.dim, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = HNSW_BUILD
    return graph


def _trained_ivfpq(vectors: UnitVectors) -> Any:
    count, dim = len(vectors), vectors.dim
    if count < IVFPQ_LEAST:
        raise InputError(f"an ivfpq index needs {IVFPQ_LEAST:,} vectors to train on, got {count:,}; use exact or hnsw")
    code_bytes = next(size for size in range(max(dim // 4, 1), 0, -1) if dim % size == 0)
    lists = int(min(4 * np.sqrt(count), count / 39))
    structure = faiss.index_factory(dim, f"IVF{lists},PQ{code_bytes}x8", faiss.METRIC_INNER_PRODUCT)
    # k-means looks at no more than 256 vectors a centroid; they are spread over the whole table
    wanted = min(count, 256 * max(lists, IVFPQ_CODES))
    sample = np.linspace(0, count - 1, wanted).astype(np.int64)
    structure.train(vectors.take(sample).cpu().numpy())
    return structure
