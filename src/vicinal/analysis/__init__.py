"""What embeddings tell about the data and the model: hubs, near duplicates, confusions, label errors, maps.

Every function takes embeddings and their table, or the nearest neighbors found once by :func:`query_neighbors`, and
returns data frames or small dataclasses; :mod:`vicinal.report` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from vicinal.analysis.changes import query_changes
    from vicinal.analysis.confusion import confusion_matrix, confusions
    from vicinal.analysis.duplicates import near_duplicates
    from vicinal.analysis.hubs import Hubness, hubness
    from vicinal.analysis.mislabeled import label_errors
    from vicinal.analysis.neighbors import QueryNeighbors, query_neighbors
    from vicinal.analysis.projection import embedding_map
    from vicinal.analysis.refiner import metrics_by_depth
    from vicinal.analysis.scores import class_scores, queries_by_score
    from vicinal.analysis.similarities import PairSimilarities, SimilarityHistogram, pair_similarities
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = [
    "Hubness",
    "PairSimilarities",
    "QueryNeighbors",
    "SimilarityHistogram",
    "class_scores",
    "confusion_matrix",
    "confusions",
    "embedding_map",
    "hubness",
    "label_errors",
    "metrics_by_depth",
    "near_duplicates",
    "pair_similarities",
    "queries_by_score",
    "query_changes",
    "query_neighbors",
]
