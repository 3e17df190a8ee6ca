"""Nearest neighbors: exact search (`top_k`), re-ranking, refinement, and an `Index` that is kept for many searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.retrieval.adapter import LinearAdapter
    from vicinal.retrieval.by_class import ClassSimilarities, class_similarities
    from vicinal.retrieval.calibration import Calibration
    from vicinal.retrieval.decisions import match_images
    from vicinal.retrieval.index.index import Index
    from vicinal.retrieval.index.interface import ImageIndex
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex
    from vicinal.retrieval.individuals import enrolled_photos, identify
    from vicinal.retrieval.linkage import average_linkage, cluster_photos
    from vicinal.retrieval.neighbors import Neighbors, range_search, top_k
    from vicinal.retrieval.query_gallery import QueryGallery
    from vicinal.retrieval.refinement import Refinement, refine
    from vicinal.retrieval.reranking.base import RerankedScores, Reranking
    from vicinal.retrieval.reranking.contextual import ContextualReranking
    from vicinal.retrieval.reranking.expansion import DatabaseAugmentation, NeighborAverage, QueryExpansion
    from vicinal.retrieval.reranking.local import LocalReranking, PatchMatches
    from vicinal.retrieval.reranking.local_features import LocalEncoder, LocalFeatures, StoredFeatures
    from vicinal.retrieval.reranking.reciprocal import ReciprocalReranking
    from vicinal.retrieval.reranking.rerank import SequentialReranking, rerank
    from vicinal.retrieval.scores import UnitVectors
    from vicinal.retrieval.search import Decision, SearchResult, search_images
    from vicinal.retrieval.whitening import PCAWhitening
    from vicinal.utils.errors import EngineUnavailableError

__all__ = [
    "Calibration",
    "ClassSimilarities",
    "ContextualReranking",
    "DatabaseAugmentation",
    "Decision",
    "EngineUnavailableError",
    "ImageIndex",
    "Index",
    "LinearAdapter",
    "LocalEncoder",
    "LocalFeatures",
    "LocalReranking",
    "NeighborAverage",
    "Neighbors",
    "PCAWhitening",
    "PatchMatches",
    "QueryExpansion",
    "QueryGallery",
    "ReciprocalReranking",
    "Refinement",
    "RemoteIndex",
    "RerankedScores",
    "Reranking",
    "SearchResult",
    "SequentialReranking",
    "StoredFeatures",
    "UnitVectors",
    "average_linkage",
    "class_similarities",
    "cluster_photos",
    "enrolled_photos",
    "identify",
    "match_images",
    "range_search",
    "refine",
    "rerank",
    "search_images",
    "top_k",
]

__getattr__, __dir__ = lazy_imports(__name__)
