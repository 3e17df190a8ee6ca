"""Outliers: images that lie in a much sparser region than their neighbors."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors
from vicinal.utils.arrays import Doubles

MIN_FACTOR = 3.0  # of cosine distances, which are like squares of Euclidean ones
EPSILON = 1e-10  # is added to distances, since those of duplicates are 0


def outliers(neighbors: QueryNeighbors, min_factor: float = MIN_FACTOR) -> pd.DataFrame:
    """Find images whose local outlier factor is large: they lie in a much sparser region than their neighbors.

    Distances are 1 - cosine similarity. The reachability distance of an image from a neighbor is at least the distance
    of that neighbor to its own k-th neighbor; the local density is 1 over the mean reachability distance; the factor is
    the mean density of the neighbors over one's own: about 1 in the midst of a cluster of any density.

    A group of more than k alike images is a cluster and not found, nor are images that the model maps into the midst of
    others, as models do that know few kinds of images.

    Reference: Breunig et al., "LOF: Identifying Density-Based Local Outliers", SIGMOD 2000, definitions 5 to 7.

    Args:
        neighbors: the nearest neighbors of each image among all others.
        min_factor: images with at least this local outlier factor are found.

    Returns:
        One row per outlier, the largest factor first: `row`, its row in the table; `outlier_factor`;
        `similarity`, that to its nearest neighbor.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> embeddings = np.array([[1, 0.0], [1, 0.1], [1, 0.2], [1, 0.3], [0, 1]])
        >>> table = Table(pd.DataFrame({"path": list("abcde")}))
        >>> outliers(query_neighbors(embeddings, table, k=2))["row"].tolist()
        [4]
    """
    factors = _local_outlier_factors(neighbors)
    found = np.flatnonzero(factors >= min_factor)
    frame = pd.DataFrame(
        {
            "row": neighbors.queries[found],
            "outlier_factor": factors[found],
            "similarity": neighbors.scores[found, 0].astype(np.float64),
        }
    )
    return frame.sort_values("outlier_factor", ascending=False, kind="stable", ignore_index=True)


def _local_outlier_factors(neighbors: QueryNeighbors) -> Doubles:
    positions = np.searchsorted(neighbors.queries, neighbors.ids)
    distances = (1 - neighbors.scores.astype(np.float64)).clip(min=0)
    reachability = np.maximum(distances, distances[positions, -1])
    densities = 1 / (reachability.mean(axis=1) + EPSILON)
    return densities[positions].mean(axis=1) / densities
