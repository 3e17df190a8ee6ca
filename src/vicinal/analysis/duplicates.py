"""Images whose embeddings are nearly the same."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors

DUPLICATE_SIMILARITY = 0.999


def near_duplicates(neighbors: QueryNeighbors, threshold: float = DUPLICATE_SIMILARITY) -> pd.DataFrame:
    """Find pairs of a query and one of its neighbors that are more similar than the threshold.

    Args:
        neighbors: the nearest neighbors of each query.
        threshold: cosine similarity above which two images count as duplicates.

    Returns:
        One row per pair, the most similar pair first; a pair that is found twice is there once:

        - `first`, `second`: rows of the table, the lower one first.
        - `similarity`: their cosine similarity.
        - `same_label`: whether they have the same label; always true in a table without labels.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "dog"]}))
        >>> near_duplicates(query_neighbors(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), table))
           first  second  similarity  same_label
        0      0       2         1.0       False
    """
    queries, ranks = np.nonzero(neighbors.scores > threshold)
    pairs = np.sort(np.stack([neighbors.queries[queries], neighbors.ids[queries, ranks]], axis=1), axis=1)
    first, second = pairs.T
    labels = neighbors.table.labels if neighbors.table.has("label") else np.zeros(len(neighbors.table), dtype=np.int64)
    frame = pd.DataFrame(
        {
            "first": first,
            "second": second,
            "similarity": neighbors.scores[queries, ranks].astype(np.float64),
            "same_label": labels[first] == labels[second],
        }
    )
    return frame.drop_duplicates(["first", "second"]).sort_values(
        ["similarity", "first", "second"], ascending=[False, True, True], ignore_index=True
    )
