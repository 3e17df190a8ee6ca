"""The embeddings as they came, beside an index of refined ones: where the neighbours of a new embedding are found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.refine import Refinement
from vicinal.retrieval.scores import UnitVectors
from vicinal.retrieval.structure import Kind, Structure

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

GATHERED_VECTORS = 8192  # vectors of neighbours held at a time


class Context:
    """Refines embeddings one by one, each by its nearest among the embeddings of an index as they came.

    Args:
        embeddings: not refined; exact or hnsw, as neighbours must be real vectors and not codes.
        refiner_fingerprint: of the refiner that the index is for.

    Example:
        >>> vectors, refiner = UnitVectors(np.eye(4), "vector"), ContextRefiner(dim=4, heads=2)
        >>> context = Context(Structure.made_for("exact", vectors), refiner.fingerprint())
        >>> context.embeddings.add(vectors)
        >>> context.refined(vectors.subset(np.array([1])), refiner, np.arange(4), itself=np.array([1])).block(0, 1)
        tensor([[0., 1., 0., 0.]])
    """

    def __init__(self, embeddings: Structure, refiner_fingerprint: str) -> None:
        self.embeddings, self.refiner_fingerprint = embeddings, refiner_fingerprint

    @classmethod
    def made_for(cls, kind: Kind, vectors: UnitVectors, refiner: ContextRefiner) -> Context:
        """Without embeddings yet, beside an index of the kind for these: of the same kind, beside `ivfpq` of `auto`."""
        return cls(Structure.made_for("auto" if kind == "ivfpq" else kind, vectors), refiner.fingerprint())

    def refined(self, vectors: UnitVectors, refiner: ContextRefiner, alive: Integers, itself: Integers) -> UnitVectors:
        """Refine vectors [n, dim].

        Args:
            vectors: [n, dim].
            refiner: the one that the index is for.
            alive: int64 [m], the ids among which neighbours are looked for.
            itself: int64 [n], the id that a vector itself has among them, which it must not look at; -1 for none.
        """
        method = Refinement(refiner, "gallery")
        refined = np.empty((len(vectors), vectors.dim), np.float32)
        for inside in (True, False):  # apart, as the former have one neighbour less
            rows = np.flatnonzero((itself >= 0) == inside)
            most = min(method.reach, len(alive) - inside)
            size = max(1, GATHERED_VECTORS // max(most, 1))
            for some in (rows[start : start + size] for start in range(0, len(rows), size)):
                queries = vectors.subset(some)
                neighbors = self._nearest(queries, most, alive, itself[some])
                present, places = np.unique(neighbors, return_inverse=True)
                gallery = UnitVectors(self.embeddings.take(present), "embedding")
                refined[some] = method.refined(queries, gallery, places.reshape(neighbors.shape))
        return UnitVectors(refined, "refined embedding")

    def _nearest(self, queries: UnitVectors, k: int, alive: Integers, itself: Integers) -> Integers:
        """Ids [queries, k]; all queries are among them, or none is."""
        if not k:
            return np.empty((len(queries), 0), np.int64)
        if (itself < 0).all():
            return self.embeddings.search(queries, k, alive).ids
        found = self.embeddings.search(queries, k + 1, alive).ids
        # Of many duplicates a search may not have found the very one that is itself.
        others_first = np.argsort(found == itself[:, None], axis=1, kind="stable")[:, :k]
        return np.take_along_axis(found, others_first, axis=1)
