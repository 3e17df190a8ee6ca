"""Clusters of photos by average linkage, without a given number of clusters."""

from __future__ import annotations

import numpy as np

from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError

MAX_CLUSTERED = 10_000  # photos, whose distances take 400 MB


def average_linkage(unit: Floats) -> Doubles:
    """Merge the two clusters with the highest mean similarity between their photos, until one cluster is left.

    Args:
        unit: float32 [n, d], of length 1.

    Returns:
        float64 [n - 1, 4], as of `scipy.cluster.hierarchy.linkage`: two clusters, 1 - their mean cosine similarity, and
        the number of photos of both.

    Raises:
        InputError: there are more than 10,000 photos.
    """
    from scipy.cluster.hierarchy import linkage  # takes time to import

    if len(unit) > MAX_CLUSTERED:
        raise InputError(f"{len(unit):,} photos are too many to be clustered; give at most {MAX_CLUSTERED:,} at a time")
    if len(unit) < 2:
        return np.empty((0, 4))
    distances = [1.0 - unit[row + 1 :] @ unit[row] for row in range(len(unit) - 1)]
    return linkage(np.maximum(np.concatenate(distances), 0).astype(np.float64), "average")


def cluster_photos(unit: Floats, min_similarity: float) -> Integers:
    """Cluster photos by :func:`average_linkage`: merge clusters that are at least this similar.

    Args:
        unit: float32 [n, d], of length 1.
        min_similarity: the least mean cosine similarity of the photos of two clusters that are merged.

    Returns:
        int64 [n], the cluster of each photo, from 0, the largest first; of equal ones, that with the earlier photo.

    Example:
        >>> cluster_photos(np.eye(2, dtype=np.float32)[[0, 1, 1]], 0.5)
        array([1, 0, 0])
    """
    from scipy.cluster.hierarchy import fcluster

    if len(unit) < 2:
        return np.zeros(len(unit), dtype=np.int64)
    found = fcluster(average_linkage(unit), max(1.0 - min_similarity, 0.0), "distance")
    _, first, codes, counts = np.unique(found, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.lexsort((first, -counts))] = np.arange(len(counts))
    return rank[codes]
