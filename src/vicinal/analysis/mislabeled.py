"""Labels that are probably wrong: by the votes of neighbors, and by confident learning."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from vicinal.analysis.neighbors import QueryNeighbors
from vicinal.utils.arrays import Booleans, Doubles, Integers

TEMPERATURE = 0.05
EPSILON = 1e-6  # by which a probability may miss its threshold, as in cleanlab


def label_errors(neighbors: QueryNeighbors, num_votes: int = 5, min_votes: int = 3) -> pd.DataFrame:
    """Find queries whose nearest neighbors are all of one other class: their label is probably wrong.

    The `num_votes` nearest neighbors must agree. If their class has fewer gallery images, at least `min_votes`, all of
    these must be the nearest. Queries that cannot find any image of their own class are left out.

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


def class_probabilities(neighbors: QueryNeighbors) -> csr_array:
    """Estimate the probability of each class for each query from the labels of its neighbors.

    A neighbor of cosine similarity s has the weight exp(s / 0.05). No query votes for itself, so the
    probabilities are out of sample; those of classes without a neighbor are 0 and not stored.

    Args:
        neighbors: the nearest neighbors of each query, in a table with labels.

    Returns:
        float64 [queries, classes], a sparse array; every row has the sum 1.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> found = query_neighbors(np.array([[1, 0.0], [1, 0.1], [1, 0.2]]), table, k=2)
        >>> class_probabilities(found).toarray().round(2)
        array([[0.57, 0.43],
               [0.5 , 0.5 ],
               [1.  , 0.  ]])
    """
    weights = np.exp((neighbors.scores - neighbors.scores.max(axis=1, keepdims=True)).astype(np.float64) / TEMPERATURE)
    weights /= weights.sum(axis=1, keepdims=True)
    shape = (len(neighbors.queries), len(neighbors.table.classes))
    starts = np.arange(0, weights.size + 1, neighbors.k)
    votes = csr_array((weights.ravel(), neighbors.table.labels[neighbors.ids].ravel(), starts), shape=shape)
    votes.sum_duplicates()
    return votes


def confident_label_errors(neighbors: QueryNeighbors) -> pd.DataFrame:
    """Find queries whose label is probably wrong: another class is as probable as it is for images of that class.

    The threshold of a class is the mean probability of that class over the images with that label. An image is counted
    in the confident joint under the most probable class whose threshold it reaches. Its label is an error if it is
    neither that class nor the most probable class of all.

    Reference: Northcutt, Jiang & Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 2021,
    equations 1 and 2; the errors are the off-diagonals of the confident joint (section 3.2, method 2). Probabilities
    are those of :func:`class_probabilities`. These are the errors of cleanlab's
    `find_label_issues(filter_by="confident_learning")`.

    Args:
        neighbors: the nearest neighbors of each query. Queries that cannot find any image of their class are left out.

    Returns:
        One row per probable error, the least self-confident first:

        - `row`: row of the query in the table.
        - `label`: its label.
        - `suggested_label`: the class under which it is counted.
        - `self_confidence`: the probability of its label.
        - `probability`: that of the suggested label.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat"] * 5 + ["dog"] * 3}))
        >>> embeddings = np.array([[5, 1], [5, 2], [5, 3], [5, 4], [1, 5], [2, 5], [3, 5], [4, 6]])
        >>> confident_label_errors(query_neighbors(embeddings, table, k=3))[["row", "label", "suggested_label"]]
           row label suggested_label
        0    4   cat             dog
    """
    neighbors = neighbors.with_positives()
    labels = neighbors.table.labels[neighbors.queries]
    votes = class_probabilities(neighbors)
    self_confidence = _values_at(votes, labels)
    thresholds = _class_means(self_confidence, labels, votes.shape[1])
    is_confident = votes.data >= thresholds[votes.indices] - EPSILON
    confident, best = _largest(votes, is_confident), _largest(votes, np.ones_like(is_confident))
    found = np.flatnonzero((confident >= 0) & (confident != labels) & (best != labels))
    classes = np.array(neighbors.table.classes, dtype=object)
    errors = pd.DataFrame(
        {
            "row": neighbors.queries[found],
            "label": classes[labels[found]],
            "suggested_label": classes[confident[found]],
            "self_confidence": self_confidence[found],
            "probability": _values_at(votes, confident)[found],
        }
    )
    return errors.sort_values(
        ["self_confidence", "probability"], ascending=[True, False], kind="stable", ignore_index=True
    )


def _class_means(self_confidence: Doubles, labels: Integers, num_classes: int) -> Doubles:
    sums, counts = np.bincount(labels, self_confidence, num_classes), np.bincount(labels, minlength=num_classes)
    means: Doubles = np.divide(sums, counts, out=np.ones(num_classes), where=counts > 0)
    return means.clip(min=2 * EPSILON)


def _values_at(votes: csr_array, columns: Integers) -> Doubles:
    """The value of each row in one column; 0 where it is not stored."""
    rows = np.repeat(np.arange(votes.shape[0]), np.diff(votes.indptr))
    hit = votes.indices == columns[rows]
    values = np.zeros(votes.shape[0])
    values[rows[hit]] = votes.data[hit]
    return values


def _largest(votes: csr_array, is_candidate: Booleans) -> Integers:
    """The column of the largest candidate of each row, the lowest of equal ones; -1 without any."""
    rows = np.repeat(np.arange(votes.shape[0]), np.diff(votes.indptr))[is_candidate]
    columns, values = votes.indices[is_candidate], votes.data[is_candidate]
    order = np.lexsort((columns, -values, rows))
    present, at = np.unique(rows[order], return_index=True)
    largest = np.full(votes.shape[0], -1)
    largest[present] = columns[order[at]]
    return largest
