"""Refinement followed by re-ranking."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.reranking.base import RerankedScores, Reranking


@dataclass(frozen=True)
class SequentialReranking(Reranking):
    """Refines embeddings, then re-ranks by the neighbors of the refined embeddings.

    Args:
        refinement: the first step.
        reranking: the second step, such as `ContextualReranking()`.

    Raises:
        InputError: when applied: as either of the steps.

    Example:
        >>> import numpy as np
        >>> from vicinal import ContextRefiner
        >>> from vicinal.retrieval import QueryExpansion, rerank
        >>> angles = np.array([0.0, 0.5, -0.55, 0.7])
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> method = SequentialReranking(Refinement(ContextRefiner(dim=2, num_heads=1)), QueryExpansion(n=1))
        >>> rerank(vectors, vectors, 3, method, exclude_self=np.arange(4)).ids[0]
        array([1, 3, 2])
    """

    refinement: Refinement
    reranking: Reranking

    @property
    def num_neighbors(self) -> int:
        return self.refinement.num_neighbors

    @property
    def stage(self) -> str:
        return self.reranking.stage

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        refined = self.refinement.apply(query_gallery)
        exclude_self, chunk_size = query_gallery.exclude_self, query_gallery.chunk_size
        return self.reranking.apply(QueryGallery(refined.queries, refined.gallery, exclude_self, chunk_size))

    def __repr__(self) -> str:
        return f"{self.refinement!r}, then {self.reranking!r}"
