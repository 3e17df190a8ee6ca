"""The settings of `vicinal clean`, which are also the flags of the command."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.utils.arguments import check_nonnegative, check_positive_integer
from vicinal.utils.errors import InputError

MAX_SEED = 2**32 - 1  # of scikit-learn


@dataclass(frozen=True)
class CleanSettings:
    """What counts as a finding.

    Args:
        num_neighbors: neighbors of each image, from which label errors and outliers are told.
        min_similarity: the least cosine similarity of near duplicates. None takes 0.95 where pixels are compared too,
            else 0.995.
        min_pixel_similarity: the least correlation of the pixels of near duplicates.
        min_outlier_factor: the least local outlier factor of outliers.
        num_clusters: number of clusters of k-means. None takes HDBSCAN, which needs none.
        min_cluster_size: the least number of images of a cluster of HDBSCAN.
        seed: seed of k-means.

    Raises:
        InputError: a value is impossible.
    """

    num_neighbors: int = 10
    min_similarity: float | None = None
    min_pixel_similarity: float = 0.85
    min_outlier_factor: float = 3.0
    num_clusters: int | None = None
    min_cluster_size: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive_integer(self, num_neighbors=self.num_neighbors, min_cluster_size=self.min_cluster_size)
        if self.num_clusters is not None:
            check_positive_integer(self, num_clusters=self.num_clusters)
        check_nonnegative(self, min_outlier_factor=self.min_outlier_factor)
        for name in ("min_similarity", "min_pixel_similarity"):
            value = getattr(self, name)
            if value is not None and not -1 <= value <= 1:
                raise InputError(f"{name} = {value} must be from -1 to 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed = {self.seed} must be from 0 to {MAX_SEED}")
