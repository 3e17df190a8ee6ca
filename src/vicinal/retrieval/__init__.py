"""Finding neighbours: exactly (`top_k`), re-ranked (`rerank`), or with an `Index` kept for many searches."""

from vicinal.retrieval.contextual_reranking import ContextualReranking
from vicinal.retrieval.expansion import DatabaseAugmentation, NeighborAverage, QueryExpansion
from vicinal.retrieval.in_turn import InTurn
from vicinal.retrieval.index import Index
from vicinal.retrieval.neighbors import Neighbors, top_k
from vicinal.retrieval.reciprocal_reranking import ReciprocalReranking
from vicinal.retrieval.refine import Refinement, refine
from vicinal.retrieval.rerank import Reranking, rerank
from vicinal.retrieval.search import Found, find
from vicinal.retrieval.structure import Matches
from vicinal.retrieval.whitening import PCAWhitening

__all__ = [
    "ContextualReranking",
    "DatabaseAugmentation",
    "Found",
    "InTurn",
    "Index",
    "Matches",
    "NeighborAverage",
    "Neighbors",
    "PCAWhitening",
    "QueryExpansion",
    "ReciprocalReranking",
    "Refinement",
    "Reranking",
    "find",
    "refine",
    "rerank",
    "top_k",
]
