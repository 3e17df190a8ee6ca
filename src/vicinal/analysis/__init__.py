"""Findings in embeddings about the data and the model: hubs, duplicates, outliers, confusions, label errors, maps.

Every function takes embeddings and their table, or the nearest neighbors found once by :func:`query_neighbors`, and
returns data frames or small dataclasses; :mod:`vicinal.report` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.analysis.clustering import Clusters, clusters, embedding_map
    from vicinal.analysis.duplicates import duplicate_groups, exact_duplicates, near_duplicates, pixel_similarities
    from vicinal.analysis.findings import Findings, find_problems
    from vicinal.analysis.identities import photo_quality
    from vicinal.analysis.mislabeled import class_probabilities, confident_label_errors, label_errors
    from vicinal.analysis.neighbors import (
        Hubness,
        QueryNeighbors,
        confusion_matrix,
        confusions,
        hubness,
        query_neighbors,
    )
    from vicinal.analysis.outliers import ImageFacts, class_sizes, image_facts, outliers
    from vicinal.analysis.refiner import metrics_by_depth
    from vicinal.analysis.scores import class_scores, queries_by_score, query_changes
    from vicinal.analysis.similarities import PairSimilarities, SimilarityHistogram, pair_similarities
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = [
    "Clusters",
    "Findings",
    "Hubness",
    "ImageFacts",
    "PairSimilarities",
    "QueryNeighbors",
    "SimilarityHistogram",
    "class_probabilities",
    "class_scores",
    "class_sizes",
    "clusters",
    "confident_label_errors",
    "confusion_matrix",
    "confusions",
    "duplicate_groups",
    "embedding_map",
    "exact_duplicates",
    "find_problems",
    "hubness",
    "image_facts",
    "label_errors",
    "metrics_by_depth",
    "near_duplicates",
    "outliers",
    "pair_similarities",
    "photo_quality",
    "pixel_similarities",
    "queries_by_score",
    "query_changes",
    "query_neighbors",
]
