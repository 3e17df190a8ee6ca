"""The settings of `vicinal clean`, which are also the flags of the command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CleanSettings:
    """What counts as a finding.

    Args:
        num_neighbors: neighbors of each image, from which label errors, outliers and hubs are told.
        min_similarity: the least cosine similarity of near duplicates. None takes 0.95 where pixels are compared too,
            else 0.995.
        min_pixel_similarity: the least correlation of the pixels of near duplicates.
        min_outlier_factor: the least local outlier factor of outliers.
        num_clusters: number of clusters of k-means. None takes HDBSCAN, which needs none.
        min_cluster_size: the least number of images of a cluster of HDBSCAN.
        seed: seed of k-means.
    """

    num_neighbors: int = 10
    min_similarity: float | None = None
    min_pixel_similarity: float = 0.85
    min_outlier_factor: float = 3.0
    num_clusters: int | None = None
    min_cluster_size: int = 5
    seed: int = 0
