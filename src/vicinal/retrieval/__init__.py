"""Finding neighbours: exactly (`top_k`), re-ranked (`rerank`), or with an `Index` kept for many searches."""

from vicinal.retrieval.contextual_reranking import ContextualReranking
from vicinal.retrieval.expansion import DatabaseAugmentation, QueryExpansion
from vicinal.retrieval.index import Index, Matches
from vicinal.retrieval.neighbors import Neighbors, top_k
from vicinal.retrieval.reciprocal_reranking import ReciprocalReranking
from vicinal.retrieval.rerank import Reranking, rerank
from vicinal.retrieval.search import Found, find

__all__ = [
    "ContextualReranking",
    "DatabaseAugmentation",
    "Found",
    "Index",
    "Matches",
    "Neighbors",
    "QueryExpansion",
    "ReciprocalReranking",
    "Reranking",
    "find",
    "rerank",
    "top_k",
]
