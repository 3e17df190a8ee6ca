"""Which classes are confused: the class of a query, and that of its nearest image."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors


def confusions(neighbors: QueryNeighbors) -> pd.DataFrame:
    """Count the pairs of two classes in which the nearest image of a query of the one is of the other.

    Queries that cannot find any image of their own class are left out.

    Returns:
        One row per pair of classes, the most frequent pair first:

        - `label`: class of the queries.
        - `nearest_label`: class of their nearest images.
        - `num_queries`: number of these queries.
        - `fraction`: the same as a fraction of the queries of the class.
        - `query`, `neighbor`: rows of the table, the most similar pair of these images.
        - `similarity`: its cosine similarity.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = query_neighbors(np.array([[3, 0], [3, 1], [2, 2], [0, 4]]), table)
        >>> confusions(found)[["label", "nearest_label", "num_queries", "fraction", "query", "neighbor"]]
          label nearest_label  num_queries  fraction  query  neighbor
        0   dog           cat            1       0.5      2         1
    """
    neighbors = neighbors.with_positives()
    labels, classes = neighbors.table.labels, np.array(neighbors.table.classes, dtype=object)
    wrong = np.flatnonzero(~neighbors.same_class[:, 0])
    query, neighbor = neighbors.queries[wrong], neighbors.ids[wrong, 0]
    frame = pd.DataFrame(
        {
            "label": labels[query],
            "nearest_label": labels[neighbor],
            "query": query,
            "neighbor": neighbor,
            "similarity": neighbors.scores[wrong, 0].astype(np.float64),
        }
    ).sort_values("similarity", ascending=False, kind="stable")
    pairs = frame.groupby(["label", "nearest_label"])
    counts = pairs.agg(num_queries=("query", "size")).join(pairs.first()).reset_index()
    class_sizes = np.bincount(labels[neighbors.queries], minlength=len(classes))
    counts.insert(3, "fraction", counts["num_queries"] / class_sizes[counts["label"]])
    counts = counts.sort_values("num_queries", ascending=False, kind="stable", ignore_index=True)
    return counts.assign(label=classes[counts["label"]], nearest_label=classes[counts["nearest_label"]])


def confusion_matrix(neighbors: QueryNeighbors) -> pd.DataFrame:
    """Count queries by their class (rows) and by the class of their nearest image (columns).

    The matrix is dense, with one row and column per class of the table; for many classes use :func:`confusions`.
    Queries that cannot find any image of their own class are left out.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> confusion_matrix(query_neighbors(np.array([[3, 0], [3, 1], [2, 2], [0, 4]]), table))
             cat  dog
        cat    2    0
        dog    1    1
    """
    neighbors = neighbors.with_positives()
    labels, classes = neighbors.table.labels, neighbors.table.classes
    size = len(classes)
    pairs = labels[neighbors.queries] * size + labels[neighbors.ids[:, 0]]
    return pd.DataFrame(np.bincount(pairs, minlength=size * size).reshape(size, size), index=classes, columns=classes)
