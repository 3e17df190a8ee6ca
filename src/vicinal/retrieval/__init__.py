"""Nearest neighbors: exact search (`top_k`), re-ranking, refinement, and an `Index` that is kept for many searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.retrieval.adapter import LinearAdapter as LinearAdapter
    from vicinal.retrieval.by_class import ClassSimilarities as ClassSimilarities
    from vicinal.retrieval.by_class import class_similarities as class_similarities
    from vicinal.retrieval.calibration import Calibration as Calibration
    from vicinal.retrieval.decisions import match_images as match_images
    from vicinal.retrieval.index.index import Index as Index
    from vicinal.retrieval.index.interface import ImageIndex as ImageIndex
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex as RemoteIndex
    from vicinal.retrieval.individuals import enrolled_photos as enrolled_photos
    from vicinal.retrieval.individuals import identify as identify
    from vicinal.retrieval.linkage import average_linkage as average_linkage
    from vicinal.retrieval.linkage import cluster_photos as cluster_photos
    from vicinal.retrieval.neighbors import Neighbors as Neighbors
    from vicinal.retrieval.neighbors import range_search as range_search
    from vicinal.retrieval.neighbors import top_k as top_k
    from vicinal.retrieval.query_gallery import QueryGallery as QueryGallery
    from vicinal.retrieval.refinement import Refinement as Refinement
    from vicinal.retrieval.refinement import refine as refine
    from vicinal.retrieval.reranking.base import RerankedScores as RerankedScores
    from vicinal.retrieval.reranking.base import Reranking as Reranking
    from vicinal.retrieval.reranking.contextual import ContextualReranking as ContextualReranking
    from vicinal.retrieval.reranking.expansion import DatabaseAugmentation as DatabaseAugmentation
    from vicinal.retrieval.reranking.expansion import NeighborAverage as NeighborAverage
    from vicinal.retrieval.reranking.expansion import QueryExpansion as QueryExpansion
    from vicinal.retrieval.reranking.local import LocalReranking as LocalReranking
    from vicinal.retrieval.reranking.local import PatchMatches as PatchMatches
    from vicinal.retrieval.reranking.local_features import LocalEncoder as LocalEncoder
    from vicinal.retrieval.reranking.local_features import LocalFeatures as LocalFeatures
    from vicinal.retrieval.reranking.local_features import StoredFeatures as StoredFeatures
    from vicinal.retrieval.reranking.reciprocal import ReciprocalReranking as ReciprocalReranking
    from vicinal.retrieval.reranking.rerank import SequentialReranking as SequentialReranking
    from vicinal.retrieval.reranking.rerank import rerank as rerank
    from vicinal.retrieval.scores import UnitVectors as UnitVectors
    from vicinal.retrieval.search import Decision as Decision
    from vicinal.retrieval.search import SearchResult as SearchResult
    from vicinal.retrieval.search import search_images as search_images
    from vicinal.retrieval.whitening import PCAWhitening as PCAWhitening
    from vicinal.utils.errors import EngineUnavailableError as EngineUnavailableError


__getattr__, __dir__ = lazy_imports(__name__)
