"""Findings in embeddings about the data and the model: hubs, duplicates, outliers, confusions, label errors, maps.

Every function takes embeddings and their table, or the nearest neighbors found once by :func:`query_neighbors`, and
returns data frames or small dataclasses; :mod:`vicinal.report` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.analysis.clustering import Clusters as Clusters
    from vicinal.analysis.clustering import clusters as clusters
    from vicinal.analysis.clustering import embedding_map as embedding_map
    from vicinal.analysis.duplicates import duplicate_groups as duplicate_groups
    from vicinal.analysis.duplicates import exact_duplicates as exact_duplicates
    from vicinal.analysis.duplicates import near_duplicates as near_duplicates
    from vicinal.analysis.duplicates import pixel_similarities as pixel_similarities
    from vicinal.analysis.findings import Findings as Findings
    from vicinal.analysis.findings import find_problems as find_problems
    from vicinal.analysis.identities import photo_quality as photo_quality
    from vicinal.analysis.mislabeled import class_probabilities as class_probabilities
    from vicinal.analysis.mislabeled import confident_label_errors as confident_label_errors
    from vicinal.analysis.mislabeled import label_errors as label_errors
    from vicinal.analysis.neighbors import Hubness as Hubness
    from vicinal.analysis.neighbors import QueryNeighbors as QueryNeighbors
    from vicinal.analysis.neighbors import confusion_matrix as confusion_matrix
    from vicinal.analysis.neighbors import confusions as confusions
    from vicinal.analysis.neighbors import hubness as hubness
    from vicinal.analysis.neighbors import query_neighbors as query_neighbors
    from vicinal.analysis.outliers import ImageFacts as ImageFacts
    from vicinal.analysis.outliers import class_sizes as class_sizes
    from vicinal.analysis.outliers import image_facts as image_facts
    from vicinal.analysis.outliers import outliers as outliers
    from vicinal.analysis.refiner import metrics_by_depth as metrics_by_depth
    from vicinal.analysis.scores import class_scores as class_scores
    from vicinal.analysis.scores import queries_by_score as queries_by_score
    from vicinal.analysis.scores import query_changes as query_changes
    from vicinal.analysis.similarities import PairSimilarities as PairSimilarities
    from vicinal.analysis.similarities import SimilarityHistogram as SimilarityHistogram
    from vicinal.analysis.similarities import pair_similarities as pair_similarities
else:
    __getattr__, __dir__ = lazy_imports(__name__)
