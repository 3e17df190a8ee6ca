"""Vectors in a faiss index that finds the nearest by cosine similarity: among all, in a graph, or in lists of codes.

A graph has one node per distinct vector: identical vectors would fill each other's links and cut off the rest. Of
nearly identical ones, the first is in the upper levels of the graph, and the others are in its lowest level alone: a
search, or the insertion of a vector, that reaches such a cluster in an upper level would not leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt

from vicinal.retrieval.index.kinds import HNSW_BUILD, HNSW_LINKS, HNSW_SEARCH, IVF_PROBES, Kind, product_code_bytes
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

faiss: Any = faiss_with_stubs  # its type stubs lack the Python arguments of most classes

Codes = npt.NDArray[np.uint8]
Found = tuple[Floats, Integers]
"""Scores and ids, each [queries, k]; an id of -1 is missing."""

MAX_EXACT = 100_000  # vectors; "auto" takes HNSW above, as comparing with every vector becomes slow
CELL, PROJECTIONS = 0.05, 8  # vectors are nearly identical if random projections of them round to the same
MIN_ACTIVE = 1 / 8  # fraction of the vectors; below it, comparing with all active ones is as fast as the graph
MIN_PER_CENTROID, MAX_PER_CENTROID = 39, 256  # vectors that k-means learns from, as faiss recommends
MAX_SAMPLE = 2**20  # vectors that k-means learns from, unless that is below MIN_PER_CENTROID per centroid
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
DUPLICATES = b"VDUP"  # before a graph in a file: the node of each vector, where some vectors are identical
READ_BLOCK = 2**20  # bytes of a file that are read at a time
LISTED = (faiss.IndexIVFPQ, faiss.IndexIVFRaBitQ)


def default_kind(num_vectors: int) -> Kind:
    """The kind of index that `auto` stands for."""
    return "exact" if num_vectors <= MAX_EXACT else "hnsw"


class FaissEngine:
    """Vectors that can be searched; the id of a vector is the number of vectors that were added before it."""

    def __init__(self, index: Any) -> None:
        self._faiss, self.dim = index, int(index.d)
        self.kind = cast(Kind, next(kind for kind, known in CLASSES.items() if isinstance(index, known)))
        self._nodes = _Nodes(np.arange(index.ntotal)) if self.kind == "hnsw" else None
        self._last_active: _ActiveVectors | None = None

    @classmethod
    def create(cls, kind: Literal["auto"] | Kind, vectors: UnitVectors) -> FaissEngine:
        """An empty engine for these vectors, trained on them if its kind needs training."""
        if kind == "auto":
            kind = default_kind(len(vectors))
        makers = {
            "exact": lambda vectors: faiss.IndexFlatIP(vectors.dim),
            "hnsw": _create_hnsw,
            "sq8": _train_sq8,
            "ivfpq": _train_ivfpq,
            "rabitq": _train_rabitq,
        }
        if kind not in makers:
            raise InputError(f"unknown kind of index {kind!r}; use auto, {', '.join(makers)} or binary")
        return cls(makers[kind](vectors))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> FaissEngine:
        nodes, data = _split_nodes(memoryview(data))
        # In blocks: `faiss.deserialize_index` would copy all of it first.
        engine = cls(faiss.read_index(faiss.PyCallbackIOReader(_BytesReader(data).read, READ_BLOCK)))
        if nodes is not None:
            engine._nodes = _Nodes(nodes)
        return engine

    def to_bytes(self) -> bytes:
        data = cast(bytes, faiss.serialize_index(self._faiss).tobytes())
        if len(self) == self._faiss.ntotal or self._nodes is None:
            return data
        nodes = self._nodes.node_of_id.astype("<i8")
        return DUPLICATES + len(nodes).to_bytes(8, "little") + nodes.tobytes() + data

    def __len__(self) -> int:
        return int(self._faiss.ntotal) if self._nodes is None else len(self._nodes.node_of_id)

    def add(self, vectors: UnitVectors) -> None:
        for start in range(0, len(vectors), BLOCK_ROWS):
            rows = _rows(vectors, start, start + BLOCK_ROWS)
            self._faiss.add(rows if self._nodes is None else self._nodes.add(rows, self._faiss))

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, float32 [n, dim]; those of `sq8`, `ivfpq` and `rabitq` are approximate."""
        if not isinstance(self._faiss, LISTED):
            ids = ids if self._nodes is None else self._nodes.node_of_id[ids]
            return np.asarray(self._faiss.reconstruct_batch(ids))  # a tensor where faiss.contrib.torch_utils is in use
        if not len(ids):
            return np.empty((0, self.dim), np.float32)
        # each single read would search all lists, so the whole range is read at once
        first, last = int(ids.min()), int(ids.max())
        vectors = np.asarray(self._faiss.reconstruct_n(first, last - first + 1))
        is_range = len(ids) == len(vectors) and bool((np.diff(ids) == 1).all())
        return vectors if is_range else vectors[ids - first]

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest vectors of each query among the active ids, int64 [m], at least k, ascending.

        Vectors that are not active do not keep active ones from being found. A query for which a fast search finds
        fewer than k active ones is searched again exhaustively.
        """
        active = self._active_vectors(active_ids)
        fast = self._search_lists if isinstance(self._faiss, LISTED) else self._search_all
        fast = self._search_graph if self.kind == "hnsw" else fast
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), BLOCK_ROWS):
            vectors, block = _rows(queries, start, start + BLOCK_ROWS), slice(start, start + BLOCK_ROWS)
            scores[block], ids[block] = active.with_duplicates(*fast(vectors, k, active))
            missing = np.flatnonzero((ids[block] < 0).any(axis=1))
            if len(missing):
                rows, found = start + missing, self._search_exhaustively(vectors[missing], k, active)
                scores[rows], ids[rows] = active.with_duplicates(*found)
        order = np.lexsort((ids, -scores))
        return Neighbors(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))

    def _active_vectors(self, ids: Integers) -> _ActiveVectors:
        """The active vectors, found once for many searches."""
        last = self._last_active
        if last is None or last.ids is not ids or last.size != len(self):
            last = self._last_active = _ActiveVectors(ids, self._faiss, self._nodes)
        return last

    def _search_all(self, vectors: Floats, k: int, active: _ActiveVectors) -> Found:
        return _search_method(self._faiss)(vectors, k, params=faiss.SearchParameters(sel=active.selector))

    def _search_graph(self, vectors: Floats, k: int, active: _ActiveVectors) -> Found:
        """Search the graph of all vectors, active or not, so broadly that it finds enough active ones.

        A search that skipped inactive vectors would stop where all vectors around are inactive. Only the nearer half of
        the results is used, since the farther half is less complete. Where it has fewer than k active vectors, missing
        ids are -1.
        """
        if active.fraction < MIN_ACTIVE:
            return np.zeros((len(vectors), k), np.float32), np.full((len(vectors), k), -1)
        breadth = int(np.ceil(max(HNSW_SEARCH, 2 * k) / active.fraction))
        parameters = faiss.SearchParametersHNSW(efSearch=breadth)
        scores, ids = _search_method(self._faiss)(vectors, k if active.are_all else breadth // 2, params=parameters)
        if active.are_all:
            return scores, ids
        is_found = (ids >= 0) & active.mask[ids]
        best = np.argsort(~is_found, axis=1, kind="stable")[:, :k]
        ids = np.where(is_found, ids, -1)
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(ids, best, axis=1)

    def _search_lists(self, vectors: Floats, k: int, active: _ActiveVectors) -> Found:
        lists = faiss.SearchParameters(sel=active.lists)
        parameters = faiss.SearchParametersIVF(
            nprobe=min(self._faiss.nlist, IVF_PROBES), sel=active.selector, quantizer_params=lists
        )
        return _search_method(self._faiss)(vectors, k, params=parameters)

    def _search_exhaustively(self, vectors: Floats, k: int, active: _ActiveVectors) -> Found:
        if isinstance(self._faiss, LISTED):
            parameters = faiss.SearchParametersIVF(nprobe=self._faiss.nlist, sel=active.selector)
            return _search_method(self._faiss)(vectors, k, params=parameters)
        vectors_of_graph = self._faiss.storage  # an exact index
        return _search_method(vectors_of_graph)(vectors, k, params=faiss.SearchParameters(sel=active.selector))


class _Nodes:
    """The node of each vector of a graph, int64 [n]: one per distinct vector."""

    def __init__(self, node_of_id: Integers) -> None:
        self.node_of_id = node_of_id
        self._keys: Integers | None = None  # hashes of the vectors of all nodes, ascending, found when they are needed
        self._nodes_of_keys = np.empty(0, np.int64)
        self._cells = np.empty(0, np.int64)  # that hold a node, ascending

    def add(self, rows: Floats, graph: Any) -> Floats:
        """Give nodes to added vectors, [n, dim]; returns the vectors that are new to the graph."""
        _, first, inverse = np.unique(_keys(rows), return_index=True, return_inverse=True)
        is_first = (rows != rows[first[inverse]]).any(axis=1)  # of two vectors with one hash
        is_first[first] = True
        nodes = np.full(len(rows), -1)
        nodes[is_first] = self._find_nodes(rows[is_first], graph)
        is_new = is_first & (nodes < 0)
        nodes[is_new] = graph.ntotal + np.arange(is_new.sum())
        self._set_levels(rows[is_new], graph)
        self._add_keys(rows[is_new], nodes[is_new])
        nodes[~is_first] = nodes[first[inverse[~is_first]]]
        self.node_of_id = np.concatenate([self.node_of_id, nodes])
        return np.ascontiguousarray(rows[is_new])

    def _find_nodes(self, rows: Floats, graph: Any) -> Integers:
        """The nodes that have these vectors already, or -1."""
        if self._keys is None:
            self._keys = np.empty(0, np.int64)
            for start in range(0, graph.ntotal, BLOCK_ROWS):
                count = min(BLOCK_ROWS, graph.ntotal - start)
                self._add_keys(np.asarray(graph.reconstruct_n(start, count)), np.arange(start, start + count))
        nodes = np.full(len(rows), -1)
        if len(self._keys):
            keys = _keys(rows)
            positions = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
            found = np.flatnonzero(self._keys[positions] == keys)
            candidates = self._nodes_of_keys[positions[found]]
            is_same = (np.asarray(graph.reconstruct_batch(candidates)) == rows[found]).all(axis=1)
            nodes[found[is_same]] = candidates[is_same]
        return nodes

    def _set_levels(self, rows: Floats, graph: Any) -> None:
        """Choose the levels of nodes that are added next: random as in faiss, or 1 beside a nearly identical node."""
        cells = _cells(rows)
        is_first = np.isin(np.arange(len(rows)), np.unique(cells, return_index=True)[1]) & ~np.isin(cells, self._cells)
        uniform = np.random.default_rng(graph.ntotal).random(len(rows))
        levels = np.minimum(1 - np.log1p(-uniform) / np.log(HNSW_LINKS), graph.hnsw.assign_probas.size())
        old_levels = faiss.vector_to_array(graph.hnsw.levels)
        new_levels = np.concatenate([old_levels, np.where(is_first, levels, 1)]).astype(np.int32)
        faiss.copy_array_to_vector(new_levels, graph.hnsw.levels)

    def _add_keys(self, rows: Floats, nodes: Integers) -> None:
        assert self._keys is not None
        keys = _keys(rows)
        order = np.argsort(keys)
        positions = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, positions, keys[order])
        self._nodes_of_keys = np.insert(self._nodes_of_keys, positions, nodes[order])
        self._cells = np.union1d(self._cells, _cells(rows))


def _keys(rows: Floats) -> Integers:
    """A hash of each vector; 0 and -0 are the same."""
    return np.fromiter((hash(row.tobytes()) for row in rows + np.float32(0)), np.int64, len(rows))


def _cells(rows: Floats) -> Integers:
    """A number for each unit vector, the same for most vectors whose distance is far below `CELL`."""
    directions = np.random.default_rng(0).standard_normal((rows.shape[1], PROJECTIONS), np.float32)
    return np.floor(rows @ directions / CELL).astype(np.int64) @ 257 ** np.arange(PROJECTIONS)


class _BytesReader:
    """Bytes that are read one part after the other, each copied when it is read."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def read(self, size: int) -> bytes:
        block, self._rest = self._rest[:size], self._rest[size:]
        return bytes(block)


def _split_nodes(data: memoryview) -> tuple[Integers | None, memoryview]:
    """The node of each vector, if the bytes begin with them, and the bytes of the graph."""
    if data[:4] != DUPLICATES:
        return None, data
    count = int.from_bytes(data[4:12], "little")
    return np.frombuffer(data, "<i8", count, 12).astype(np.int64), data[12 + 8 * count :]


class _ActiveVectors:
    """The vectors of a faiss index to search, by their ascending ids; without `nodes`, each is its own node."""

    def __init__(self, ids: Integers, index: Any, nodes: _Nodes | None) -> None:
        self.ids, self.size = ids, index.ntotal if nodes is None else len(nodes.node_of_id)
        self.mask = np.zeros(index.ntotal, dtype=bool)
        self.mask[ids if nodes is None else nodes.node_of_id[ids]] = True
        self.are_all = bool(self.mask.all())
        self.fraction = self.mask.mean() if index.ntotal else 0.0
        self.selector = None if self.are_all else _selector(self.mask)
        self.lists = None
        if isinstance(index, LISTED) and not self.are_all:
            self.lists = _selector(np.array([self.mask[each].any() for each in _ids_of_lists(index)]))
        self._members: Integers | None = None
        if nodes is not None and self.size > index.ntotal:
            # ids of the first node, the second ...
            self._members = ids[np.argsort(nodes.node_of_id[ids], kind="stable")]
            self._counts = np.bincount(nodes.node_of_id[ids], minlength=index.ntotal)
            self._starts = np.cumsum(self._counts) - self._counts

    def with_duplicates(self, scores: Floats, nodes: Integers) -> Found:
        """The nearest active vectors, [queries, k], of the nearest k nodes: all vectors of a node have its score."""
        if self._members is None:
            return scores, nodes
        k = nodes.shape[1]
        counts = np.where(nodes < 0, 0, self._counts[nodes].clip(max=k))
        starts = np.cumsum(counts, axis=1) - counts
        repeats = counts.ravel()
        within = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        rows, columns = np.repeat(np.arange(counts.size) // k, repeats), np.repeat(starts.ravel(), repeats) + within
        ids = self._members[np.repeat(self._starts[nodes.ravel()], repeats) + within]
        is_kept = columns < k
        found = np.zeros((len(nodes), k), np.float32), np.full((len(nodes), k), -1)
        found[0][rows[is_kept], columns[is_kept]] = np.repeat(scores.ravel(), repeats)[is_kept]
        found[1][rows[is_kept], columns[is_kept]] = ids[is_kept]
        return found


def _selector(mask: npt.NDArray[np.bool_]) -> Any:
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def _ids_of_lists(index: Any) -> Iterator[Integers]:
    lists = index.invlists
    for number in range(index.nlist):
        size = lists.list_size(number)
        yield faiss.rev_swig_ptr(lists.get_ids(number), size) if size else np.empty(0, np.int64)


def _rows(vectors: UnitVectors, start: int, stop: int) -> Floats:
    return np.ascontiguousarray(vectors.block(start, stop).cpu().numpy())


def _search_method(index: Any) -> Any:
    """Return faiss's own method `search`, which `faiss.contrib.torch_utils` (other libraries import it) renames."""
    return getattr(index, "search_numpy", index.search)


def _create_hnsw(vectors: UnitVectors) -> Any:
    graph = faiss.IndexHNSWFlat(vectors.dim, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = HNSW_BUILD
    return graph


def _train_ivfpq(vectors: UnitVectors) -> Any:
    count, dim = len(vectors), vectors.dim
    if count < IVFPQ_MIN_VECTORS:
        raise InputError(
            f"an ivfpq index needs {IVFPQ_MIN_VECTORS:,} vectors to train on, got {count:,}; use exact or hnsw"
        )
    lists = _num_lists(count)
    # "np" leaves out polysemous training, which takes seconds and which only Hamming distances use
    index = faiss.index_factory(dim, f"IVF{lists},PQ{product_code_bytes(dim)}x8np", faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, _sample_size(max(lists, IVFPQ_CODES))))
    return index


def _train_rabitq(vectors: UnitVectors) -> Any:
    lists = _num_lists(len(vectors))
    index = faiss.index_factory(vectors.dim, f"IVF{lists},RaBitQ", faiss.METRIC_INNER_PRODUCT)
    index.qb = RABITQ_QUERY_BITS
    index.cp.min_points_per_centroid = 1  # no warning of few vectors, which are in few lists then
    index.train(_sample(vectors, _sample_size(lists)))
    return index


def _train_sq8(vectors: UnitVectors) -> Any:
    index = faiss.IndexScalarQuantizer(vectors.dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, SQ8_SAMPLE))
    return index


def _num_lists(count: int) -> int:
    return max(1, int(min(4 * np.sqrt(count), count / MIN_PER_CENTROID)))


def _sample_size(centroids: int) -> int:
    """The number of vectors from which centroids are learned, if there are enough."""
    return max(MIN_PER_CENTROID * centroids, min(MAX_PER_CENTROID * centroids, MAX_SAMPLE))


def _sample(vectors: UnitVectors, size: int) -> Floats:
    """A random sample of vectors without replacement, always the same, float32 [n, dim]."""
    rows = np.arange(len(vectors))
    if size < len(vectors):  # in the order of the file that they may be read from
        rows = np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False, shuffle=False))
    sample = np.empty((len(rows), vectors.dim), np.float32)
    for start in range(0, len(rows), BLOCK_ROWS):
        sample[start : start + BLOCK_ROWS] = vectors.take(rows[start : start + BLOCK_ROWS]).cpu().numpy()
    return sample
