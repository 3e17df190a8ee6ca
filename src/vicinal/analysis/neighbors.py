"""The nearest neighbors of queries: hubs, and classes that are confused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.protocol import own_gallery_rows, query_gallery_rows
from vicinal.evaluation.relevance import class_group_codes
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import nearest
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.reranking.rerank import nearest_reranked
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

CHUNK_SIZE = 2048  # queries per block: many, because the whole gallery is normalized once per block


@dataclass(frozen=True, eq=False, repr=False)
class QueryNeighbors:
    """The nearest gallery images of each query, the most similar one first.

    Attributes:
        table: the images and their labels, if there are any; every row number below is a row of this table.
        queries: int64 [q], rows of the queries, ascending. Queries without a gallery image to find are not included.
        gallery: int64 [g], rows of the gallery, ascending.
        scores: float32 [q, k], the cosine similarities of the neighbors to the query, or the scores of a re-ranking.
        ids: int64 [q, k], rows of the neighbors.
        num_positives: int64 [q], the number of gallery images of its class that each query can find.
    """

    table: Table
    queries: Integers
    gallery: Integers
    scores: Floats
    ids: Integers
    num_positives: Integers

    def __repr__(self) -> str:
        return f"QueryNeighbors({len(self.queries)} queries, {len(self.gallery)} gallery images, k={self.k})"

    @property
    def k(self) -> int:
        """The number of neighbors per query."""
        return self.ids.shape[1]

    @cached_property
    def same_class(self) -> Booleans:
        """Whether each neighbor is of the query's class, bool [q, k]; False without labels."""
        if not self.table.has("label"):
            return np.zeros(self.ids.shape, dtype=bool)
        labels = self.table.labels
        return labels[self.ids] == labels[self.queries][:, None]

    def index(self, row: int) -> int:
        """The index in `queries` of the query in a row of the table."""
        return int(np.searchsorted(self.queries, row))

    def with_positives(self) -> QueryNeighbors:
        """The queries that can find an image of their class; no neighbor of the others can be right.

        Example:
            >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
            >>> query_neighbors(np.eye(3), table).with_positives().queries
            array([0, 1])
        """
        kept = self.num_positives > 0
        names = ("queries", "scores", "ids", "num_positives")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})


def query_neighbors(embeddings: Array, table: Table, k: int = 10, rerank: Reranking | None = None) -> QueryNeighbors:
    """Find the nearest gallery images of each query by cosine similarity, or by a re-ranking.

    With columns `is_query` and `is_gallery` the queries search the gallery; without them every image searches all
    others. As in :func:`~vicinal.evaluation.evaluate`, a query never finds itself, by its row or by its path, nor
    images of its own class and `group`.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding; without labels groups are ignored, and no query has positives.
        k: neighbors per query; fewer where some query has fewer gallery images left to find.
        rerank: a method by which rankings are re-ranked first, as in `evaluate`; None: without re-ranking.

    Raises:
        InputError: embeddings and table have different numbers of rows, or no query has a gallery image to find.

    Example:
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = query_neighbors(embeddings, table, k=1)
        >>> found.ids.ravel().tolist(), found.same_class.all().item()
        ([1, 0, 3, 2], True)
    """
    check_rows(embeddings, table)
    queries, gallery = query_gallery_rows(table)
    groups = class_group_codes(table) if table.has("label") else np.full(len(table), -1)
    own_rows = own_gallery_rows(table, queries, gallery)
    num_excluded = Exclusions(len(queries), len(gallery), own_rows, groups[queries], groups[gallery]).num_excluded()
    num_positives = _num_positives(table, queries, gallery, own_rows, num_excluded)
    has_gallery = len(gallery) > num_excluded
    if not has_gallery.any():
        raise InputError("no query has a gallery image to find; at least one query needs one")
    k = min(k, len(gallery) - int(num_excluded[has_gallery].max()))
    queries, num_positives = queries[has_gallery], num_positives[has_gallery]
    excluded = Exclusions(len(queries), len(gallery), own_rows[has_gallery], groups[queries], groups[gallery])
    query_vectors, gallery_vectors = (
        UnitVectors(embeddings, "embedding", _selected(rows, len(table))) for rows in (queries, gallery)
    )
    sides, chunk_size = (query_vectors, gallery_vectors), min(CHUNK_SIZE, len(queries))
    if rerank is None:
        found = nearest(*sides, k, excluded, chunk_size)
    else:
        found = nearest_reranked(*sides, k, rerank, excluded, chunk_size)
    return QueryNeighbors(table, queries, gallery, found.scores, gallery[found.ids], num_positives)


def check_evaluation(evaluation: Evaluation, table: Table) -> None:
    """Check that an evaluation has the queries of a table."""
    queries, _ = query_gallery_rows(table)
    if not np.array_equal(evaluation.query_indices, queries):
        raise InputError(
            f"the evaluation of {evaluation.num_queries} queries is not of this table, which has {len(queries)}; "
            "a table of separate queries and gallery needs the columns is_query, is_gallery"
        )


def _selected(rows: Integers, size: int) -> Integers | None:
    """None for all rows in order, which are read without a copy; otherwise the rows."""
    return None if np.array_equal(rows, np.arange(size)) else rows


def _num_positives(
    table: Table, queries: Integers, gallery: Integers, own_rows: Integers, num_excluded: Integers
) -> Integers:
    if not table.has("label"):
        return np.zeros(len(queries), dtype=np.int64)
    labels = table.labels
    class_sizes = np.bincount(labels[gallery], minlength=int(labels.max(initial=0)) + 1)
    # All that is excluded is of the query's class, except for its own image under another label.
    is_other = (own_rows >= 0) & (labels[gallery[own_rows]] != labels[queries])
    return class_sizes[labels[queries]] - num_excluded + is_other


@dataclass(frozen=True, eq=False)
class Hubness:
    """How often each gallery image is among the k nearest neighbors of the queries.

    Attributes:
        occurrences: one row per gallery image, the most frequent neighbor first. Columns: `row`, its row in the table;
            `k_occurrence`, the number of queries that have it among their k nearest; `same_class_fraction`, the
            fraction of these queries that are of its class, NaN without any, or without labels.
        skewness: of the k-occurrences; 0 if all images are found alike, far above 0 if there are hubs.
    """

    occurrences: pd.DataFrame
    skewness: float

    @property
    def mean(self) -> float:
        """The mean k-occurrence."""
        return float(self.occurrences["k_occurrence"].mean())

    @property
    def num_antihubs(self) -> int:
        """The number of gallery images that are not the neighbor of any query."""
        return int((self.occurrences["k_occurrence"] == 0).sum())


def hubness(neighbors: QueryNeighbors) -> Hubness:
    """Count how many queries have each gallery image among their nearest neighbors.

    Reference: Radovanović et al., "Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data", JMLR 2010:
    k-occurrences, their skewness, hubs and antihubs.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> found = hubness(query_neighbors(np.array([[2, 1], [3, 2], [1, 1]]), table, k=1))
        >>> found.occurrences
           row  k_occurrence  same_class_fraction
        0    1             2                  0.5
        1    0             1                  1.0
        2    2             0                  NaN
        >>> found.num_antihubs
        1
    """
    size = len(neighbors.table)
    counts = np.bincount(neighbors.ids.ravel(), minlength=size)[neighbors.gallery]
    right = np.bincount(neighbors.ids.ravel(), neighbors.same_class.ravel(), size)[neighbors.gallery]
    is_known = (counts > 0) & neighbors.table.has("label")
    fractions = np.divide(right, counts, out=np.full(len(counts), np.nan), where=is_known)
    columns = {"row": neighbors.gallery, "k_occurrence": counts, "same_class_fraction": fractions}
    occurrences = pd.DataFrame(columns).sort_values("k_occurrence", ascending=False, kind="stable", ignore_index=True)
    deviation = counts.std()
    return Hubness(occurrences, float((((counts - counts.mean()) / deviation) ** 3).mean()) if deviation else 0.0)


def confusions(neighbors: QueryNeighbors) -> pd.DataFrame:
    """Count, for each pair of classes, the queries of the one whose nearest image is of the other.

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
