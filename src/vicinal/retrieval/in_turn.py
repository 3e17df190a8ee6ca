"""Two second looks in turn: embeddings are refined, and the rankings of the refined ones re-ranked."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.retrieval.refine import Refinement
from vicinal.retrieval.rerank import Reranked, Reranking
from vicinal.retrieval.sides import Sides


@dataclass(frozen=True)
class InTurn(Reranking):
    """Refines, then re-ranks by the neighbours that refined embeddings have.

    Args:
        refinement: comes first.
        reranking: such as `ContextualReranking()`.

    Raises:
        InputError: when applied: what either of both refuses.

    Example:
        >>> import numpy as np
        >>> from vicinal.models.refiner import ContextRefiner
        >>> from vicinal.retrieval import QueryExpansion, rerank
        >>> angles = np.array([0.0, 0.5, -0.55, 0.7])
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> method = InTurn(Refinement(ContextRefiner(dim=2, heads=1)), QueryExpansion(n=1))
        >>> rerank(vectors, vectors, 3, method, exclude=np.arange(4)).indices[0]
        array([1, 3, 2])
    """

    refinement: Refinement
    reranking: Reranking

    @property
    def reach(self) -> int:
        return self.refinement.reach

    @property
    def outcome(self) -> str:
        return self.reranking.outcome

    def apply(self, sides: Sides) -> Reranked:
        refined = self.refinement.apply(sides)
        return self.reranking.apply(Sides(refined.queries, refined.gallery, sides.places, sides.chunk))

    def __repr__(self) -> str:
        return f"{self.refinement!r}, then {self.reranking!r}"
