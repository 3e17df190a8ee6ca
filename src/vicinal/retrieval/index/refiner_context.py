"""The unrefined embeddings beside an index of refined ones, among which the neighbors of new embeddings are found."""

from __future__ import annotations

import numpy as np

from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.rescoring import create_codes
from vicinal.retrieval.index.segmented_engine import SegmentedEngine
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Integers

MAX_GATHERED = 8192  # neighbor vectors in memory at a time


class RefinerContext:
    """Refines embeddings one by one, each by its nearest among the unrefined embeddings of an index.

    Args:
        engine: holds the unrefined embeddings; exact or hnsw, as neighbors must be real vectors, not codes.
        refiner_fingerprint: of the refiner that the index was built with.

    Example:
        >>> vectors, refiner = UnitVectors(np.eye(4), "vector"), ContextRefiner(dim=4, num_heads=2)
        >>> context = RefinerContext.create("exact", vectors, refiner)
        >>> queries = vectors.subset(np.array([1]))
        >>> context.refine(queries, refiner, active_ids=np.arange(4), query_ids=np.array([1])).block(0, 1)
        tensor([[0., 1., 0., 0.]])
    """

    def __init__(self, engine: SegmentedEngine, refiner_fingerprint: str) -> None:
        self.engine, self.refiner_fingerprint = engine, refiner_fingerprint

    @classmethod
    def create(cls, kind: Kind, vectors: UnitVectors, refiner: ContextRefiner) -> RefinerContext:
        """Return a context of all embeddings: of the kind of the index, or of `auto` beside codes."""
        engine = create_codes(kind if kind in ("exact", "hnsw") else "auto", vectors)
        engine.add(vectors)
        return cls(SegmentedEngine(engine), refiner.fingerprint())

    def refine(
        self, vectors: UnitVectors, refiner: ContextRefiner, active_ids: Integers, query_ids: Integers
    ) -> UnitVectors:
        """Refine vectors.

        Args:
            vectors: [n, dim].
            refiner: the refiner that the index was built with.
            active_ids: int64 [m], the ids among which neighbors are searched.
            query_ids: int64 [n], the id of each vector itself among these, which is not its neighbor; -1 for none.

        Returns:
            [n, dim].
        """
        method = Refinement(refiner, "gallery")
        refined = np.empty((len(vectors), vectors.dim), np.float32)
        for is_indexed in (True, False):  # separately, as a vector that is in the index has one neighbor less
            rows = np.flatnonzero((query_ids >= 0) == is_indexed)
            k = min(method.num_neighbors, len(active_ids) - is_indexed)
            chunk_size = max(1, MAX_GATHERED // max(k, 1))
            for chunk in (rows[start : start + chunk_size] for start in range(0, len(rows), chunk_size)):
                queries = vectors.subset(chunk)
                neighbors = self._nearest(queries, k, active_ids, query_ids[chunk])
                present, positions = np.unique(neighbors, return_inverse=True)
                gallery = UnitVectors(self.engine.take(present), "embedding")
                refined[chunk] = method.refine_vectors(queries, gallery, positions.reshape(neighbors.shape))
        return UnitVectors(refined, "refined embedding")

    def _nearest(self, queries: UnitVectors, k: int, active_ids: Integers, query_ids: Integers) -> Integers:
        """Return the ids of the nearest embeddings, int64 [queries, k]; all queries are in the index, or none is."""
        if not k:
            return np.empty((len(queries), 0), np.int64)
        if (query_ids < 0).all():
            return self.engine.search(queries, k, active_ids).ids
        ids = self.engine.search(queries, k + 1, active_ids).ids
        # Among many duplicates, the search may not have found the query itself.
        others_first = np.argsort(ids == query_ids[:, None], axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, others_first, axis=1)
