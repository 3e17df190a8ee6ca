"""Images whose nearest neighbors agree on another class."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors


def label_errors(neighbors: QueryNeighbors, num_votes: int = 5, min_votes: int = 3) -> pd.DataFrame:
    """Find queries whose nearest neighbors are all of one other class: their label is probably wrong.

    The `num_votes` nearest neighbors must agree. Of a class with fewer gallery images all must be among the nearest,
    and at least `min_votes` of them. Queries that cannot find any image of their own class are left out.

    Reference: Wilson, "Asymptotic Properties of Nearest Neighbor Rules Using Edited Data", 1972, which removes samples
    that the majority of their neighbors disagrees with; here the neighbors must be unanimous.

    Args:
        neighbors: the nearest neighbors of each query.
        num_votes: neighbors that must agree.
        min_votes: the least number of votes, for small classes.

    Returns:
        One row per probable error, the most similar neighbors first:

        - `row`: row of the query in the table.
        - `label`: its label.
        - `suggested_label`: the class that its neighbors agree on.
        - `num_votes`: how many of its nearest neighbors agree.
        - `similarity`: their mean similarity to the query.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat"] * 5 + ["dog"] * 3}))
        >>> embeddings = np.array([[5, 1], [5, 2], [5, 3], [5, 4], [1, 5], [2, 5], [3, 5], [4, 6]])
        >>> label_errors(query_neighbors(embeddings, table, k=3))[["row", "label", "suggested_label", "num_votes"]]
           row label suggested_label  num_votes
        0    4   cat             dog          3
    """
    neighbors = neighbors.with_positives()
    table, labels = neighbors.table, neighbors.table.labels
    voted = labels[neighbors.ids]
    suggested = voted[:, 0]
    class_sizes = np.bincount(labels[neighbors.gallery], minlength=len(table.classes))
    votes = np.minimum(class_sizes[suggested], min(num_votes, neighbors.k))
    num_agreeing = (voted == suggested[:, None]).cumprod(axis=1).sum(axis=1)
    found = np.flatnonzero(~neighbors.same_class[:, 0] & (votes >= min_votes) & (num_agreeing >= votes))
    errors = pd.DataFrame(
        {
            "row": neighbors.queries[found],
            "label": [table.classes[code] for code in labels[neighbors.queries[found]]],
            "suggested_label": [table.classes[code] for code in suggested[found]],
            "num_votes": votes[found],
            "similarity": [float(neighbors.scores[query, : votes[query]].mean()) for query in found],
        }
    )
    return errors.sort_values("similarity", ascending=False, kind="stable", ignore_index=True)
