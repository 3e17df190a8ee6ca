"""Vectors in a faiss index that finds the nearest by cosine similarity: among all, in a graph, or in lists of codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt

from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError, one_line

faiss: Any = faiss_with_stubs  # its type stubs lack the Python arguments of most classes

Kind = Literal["exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary"]
Codes = npt.NDArray[np.uint8]
Found = tuple[Floats, Integers]
"""Scores and ids, each [queries, k]; an id of -1 is missing."""

MAX_EXACT = 100_000  # vectors; "auto" takes HNSW above, as comparing with every vector becomes slow
HNSW_LINKS = 32  # per vector
HNSW_BUILD, HNSW_SEARCH = 100, 128  # breadth of the graph search while building and while searching
MIN_ACTIVE = 1 / 8  # fraction of the vectors; below it, comparing with all active ones is as fast as the graph
MIN_PER_CENTROID, MAX_PER_CENTROID = 39, 256  # vectors that k-means learns from, as faiss recommends
MAX_SAMPLE = 2**20  # vectors that k-means learns from, unless there would be fewer than the least per centroid
IVF_PROBES = 32  # inverted lists visited
IVFPQ_CODES = 256  # values of one code byte
IVFPQ_MIN_VECTORS = MIN_PER_CENTROID * IVFPQ_CODES
SQ8_SAMPLE = 2**16  # vectors that the range of each dimension is learned from
RABITQ_QUERY_BITS = 8  # per dimension
CLASSES = {
    "exact": faiss.IndexFlat,
    "hnsw": faiss.IndexHNSW,
    "sq8": faiss.IndexScalarQuantizer,
    "ivfpq": faiss.IndexIVFPQ,
    "rabitq": faiss.IndexIVFRaBitQ,
}
LISTED = (faiss.IndexIVFPQ, faiss.IndexIVFRaBitQ)


class FaissEngine:
    """Vectors that can be searched; the id of a vector is the number of vectors that were added before it.

    Args:
        index: an index of faiss, of a class in `CLASSES`, with the inner product as metric.

    Attributes:
        kind: `exact`, `hnsw`, `sq8`, `ivfpq` or `rabitq`.

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
            raise InputError(f"{type(index).__name__} is not supported; use an {', '.join(CLASSES)} index")
        self._faiss = index
        self.kind = cast(Kind, kinds[0])
        self._last_active: _Active | None = None

    @classmethod
    def create(cls, kind: Literal["auto"] | Kind, vectors: UnitVectors) -> FaissEngine:
        """Return an empty engine for these vectors, trained on them if its kind needs training.

        Raises:
            InputError: there are too few vectors for `ivfpq`, or the kind is unknown.
        """
        if kind == "auto":
            kind = "exact" if len(vectors) <= MAX_EXACT else "hnsw"
        makers = {
            "exact": _exact,
            "hnsw": _hnsw,
            "sq8": _trained_sq8,
            "ivfpq": _trained_ivfpq,
            "rabitq": _trained_rabitq,
        }
        if kind not in makers:
            raise InputError(f"unknown kind of index {kind!r}; use auto, {', '.join(makers)} or binary")
        return cls(makers[kind](vectors))

    @classmethod
    def from_bytes(cls, data: bytes) -> FaissEngine:
        """Read what :meth:`to_bytes` returned.

        Raises:
            InputError: the bytes are something else or damaged.
        """
        try:
            return cls(faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8)))
        except (RuntimeError, MemoryError) as error:
            raise InputError(f"faiss cannot read it ({one_line(error)})") from None

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
        """Return the vectors of these ids, float32 [n, dim]; those of `sq8`, `ivfpq` and `rabitq` are approximate."""
        if not isinstance(self._faiss, LISTED):
            return np.asarray(self._faiss.reconstruct_batch(ids))  # a tensor where faiss.contrib.torch_utils is in use
        if not len(ids):
            return np.empty((0, self.dim), np.float32)
        # a single one would be looked for in all lists, so all in the range are read at once
        first, last = int(ids.min()), int(ids.max())
        vectors = np.asarray(self._faiss.reconstruct_n(first, last - first + 1))
        is_range = len(ids) == len(vectors) and bool((np.diff(ids) == 1).all())
        return vectors if is_range else vectors[ids - first]

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest vectors of each query.

        Vectors that are not active do not keep active ones from being found. A query for which a fast search finds
        fewer than k active ones is searched again exhaustively.

        Args:
            queries: [q, dim].
            k: number of neighbors per query.
            active_ids: int64 [m], the ids among which to search, at least k, ascending.
        """
        active = self._active(active_ids)
        fast = self._search_lists if isinstance(self._faiss, LISTED) else self._search_all
        fast = self._search_graph if self.kind == "hnsw" else fast
        neighbors = Neighbors.empty(len(queries), k)
        for start in range(0, len(queries), BLOCK_ROWS):
            vectors, block = _rows(queries, start, start + BLOCK_ROWS), slice(start, start + BLOCK_ROWS)
            neighbors.scores[block], neighbors.ids[block] = fast(vectors, k, active)
            missing = np.flatnonzero((neighbors.ids[block] < 0).any(axis=1))
            if len(missing):
                scores, ids = self._search_exhaustively(vectors[missing], k, active)
                neighbors.scores[start + missing], neighbors.ids[start + missing] = scores, ids
        order = np.lexsort((neighbors.ids, -neighbors.scores))
        return Neighbors(
            np.take_along_axis(neighbors.scores, order, axis=1), np.take_along_axis(neighbors.ids, order, axis=1)
        )

    def _active(self, ids: Integers) -> _Active:
        """The active vectors, found once for many searches."""
        last = self._last_active
        if last is None or last.ids is not ids or last.size != len(self):
            last = self._last_active = _Active(ids, self._faiss)
        return last

    def _search_all(self, vectors: Floats, k: int, active: _Active) -> Found:
        return _search_of(self._faiss)(vectors, k, params=faiss.SearchParameters(sel=active.selector))

    def _search_graph(self, vectors: Floats, k: int, active: _Active) -> Found:
        """Search the graph of all vectors, active or not, so broadly that enough of what it finds is active.

        A search that leaves out vectors on its way is cut off where all vectors around are left out. The nearer half of
        what is found is used, since the farther half is less complete. Where it has fewer than k active vectors, -1
        stands in place of ids.
        """
        if active.fraction < MIN_ACTIVE:
            return np.zeros((len(vectors), k), np.float32), np.full((len(vectors), k), -1)
        breadth = int(np.ceil(max(HNSW_SEARCH, 2 * k) / active.fraction))
        parameters = faiss.SearchParametersHNSW(efSearch=breadth)
        scores, ids = _search_of(self._faiss)(vectors, k if active.are_all else breadth // 2, params=parameters)
        if active.are_all:
            return scores, ids
        is_found = (ids >= 0) & active.mask[ids]
        best = np.argsort(~is_found, axis=1, kind="stable")[:, :k]
        ids = np.where(is_found, ids, -1)
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(ids, best, axis=1)

    def _search_lists(self, vectors: Floats, k: int, active: _Active) -> Found:
        """Search the nearest lists of those that hold active vectors."""
        lists = faiss.SearchParameters(sel=active.lists)
        parameters = faiss.SearchParametersIVF(
            nprobe=min(self._faiss.nlist, IVF_PROBES), sel=active.selector, quantizer_params=lists
        )
        return _search_of(self._faiss)(vectors, k, params=parameters)

    def _search_exhaustively(self, vectors: Floats, k: int, active: _Active) -> Found:
        if isinstance(self._faiss, LISTED):
            parameters = faiss.SearchParametersIVF(nprobe=self._faiss.nlist, sel=active.selector)
            return _search_of(self._faiss)(vectors, k, params=parameters)
        vectors_of_graph = self._faiss.storage  # an exact index
        return _search_of(vectors_of_graph)(vectors, k, params=faiss.SearchParameters(sel=active.selector))


class _Active:
    """The vectors of a faiss index among which to search.

    Args:
        ids: int64 [m], their ids, ascending.
        index: the faiss index.
    """

    def __init__(self, ids: Integers, index: Any) -> None:
        self.ids, self.size = ids, index.ntotal
        self.are_all = len(ids) == index.ntotal
        self.fraction = len(ids) / max(index.ntotal, 1)
        self.mask = np.zeros(index.ntotal, dtype=bool)
        self.mask[ids] = True
        self.selector = None if self.are_all else _selector(self.mask)
        self.lists = None
        if isinstance(index, LISTED) and not self.are_all:
            self.lists = _selector(np.array([self.mask[each].any() for each in _ids_of_lists(index)]))


def _selector(mask: npt.NDArray[np.bool_]) -> Any:
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def _ids_of_lists(index: Any) -> Iterator[Integers]:
    """Yield the ids in each inverted list."""
    lists = index.invlists
    for number in range(index.nlist):
        size = lists.list_size(number)
        yield faiss.rev_swig_ptr(lists.get_ids(number), size) if size else np.empty(0, np.int64)


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
    lists = _number_of_lists(count)
    # "np" leaves out polysemous training, which takes seconds and which only Hamming distances use
    index = faiss.index_factory(dim, f"IVF{lists},PQ{code_bytes}x8np", faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, _sample_size(max(lists, IVFPQ_CODES))))
    return index


def _trained_rabitq(vectors: UnitVectors) -> Any:
    lists = _number_of_lists(len(vectors))
    index = faiss.index_factory(vectors.dim, f"IVF{lists},RaBitQ", faiss.METRIC_INNER_PRODUCT)
    index.qb = RABITQ_QUERY_BITS
    index.cp.min_points_per_centroid = 1  # no warning of few vectors, which are in few lists then
    index.train(_sample(vectors, _sample_size(lists)))
    return index


def _trained_sq8(vectors: UnitVectors) -> Any:
    index = faiss.IndexScalarQuantizer(vectors.dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, SQ8_SAMPLE))
    return index


def _number_of_lists(count: int) -> int:
    return max(1, int(min(4 * np.sqrt(count), count / MIN_PER_CENTROID)))


def _sample_size(centroids: int) -> int:
    """The number of vectors from which so many centroids are learned, if there are as many."""
    return max(MIN_PER_CENTROID * centroids, min(MAX_PER_CENTROID * centroids, MAX_SAMPLE))


def _sample(vectors: UnitVectors, size: int) -> Floats:
    """At most so many vectors, float32 [n, dim]: a random sample without replacement, always the same."""
    rows = np.arange(len(vectors))
    if size < len(vectors):  # in the order of the file that they may be read from
        rows = np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False, shuffle=False))
    sample = np.empty((len(rows), vectors.dim), np.float32)
    for start in range(0, len(rows), BLOCK_ROWS):
        sample[start : start + BLOCK_ROWS] = vectors.take(rows[start : start + BLOCK_ROWS]).cpu().numpy()
    return sample
