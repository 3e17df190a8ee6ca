"""The nearest gallery images of each query, which most analyses of embeddings start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vicinal.data.table import Table
from vicinal.evaluation.protocol import own_gallery_rows, query_gallery_rows
from vicinal.evaluation.relevance import class_group_codes
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import nearest
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

CHUNK_SIZE = 2048  # queries per block: many, because the whole gallery is normalized once per block


@dataclass(frozen=True, eq=False, repr=False)
class QueryNeighbors:
    """The nearest gallery images of each query, the most similar one first.

    Attributes:
        table: the images and their labels, if there are any; every row number below is a row of this table.
        queries: int64 [q], rows of the queries, ascending. Queries that no gallery image is left for are not included.
        gallery: int64 [g], rows of the gallery, ascending.
        scores: float32 [q, k], the cosine similarities of the neighbors to the query.
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
            >>> import pandas as pd
            >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
            >>> query_neighbors(np.eye(3), table).with_positives().queries
            array([0, 1])
        """
        kept = self.num_positives > 0
        names = ("queries", "scores", "ids", "num_positives")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})


def query_neighbors(embeddings: Array, table: Table, k: int = 10) -> QueryNeighbors:
    """Find the nearest gallery images of each query by cosine similarity, without re-ranking.

    With columns `is_query` and `is_gallery` the queries search the gallery; without them every image searches all
    others. As in :func:`~vicinal.evaluation.evaluate`, a query never finds itself, by its row or by its path, nor
    images of its own class and `group`.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding; without labels groups are ignored, and no query has positives.
        k: neighbors per query; fewer where some query has fewer gallery images left to find.

    Raises:
        InputError: embeddings and table have different numbers of rows, or no query has a gallery image to find.

    Example:
        >>> import pandas as pd
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
    found = nearest(query_vectors, gallery_vectors, k, excluded, min(CHUNK_SIZE, len(queries)))
    return QueryNeighbors(table, queries, gallery, found.scores, gallery[found.ids], num_positives)


def check_evaluation(evaluation: Evaluation, table: Table) -> None:
    """Check that an evaluation has the queries of a table.

    Raises:
        InputError: it has others.
    """
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
    """The number of gallery images of its class that each query can find; 0 without labels."""
    if not table.has("label"):
        return np.zeros(len(queries), dtype=np.int64)
    labels = table.labels
    class_sizes = np.bincount(labels[gallery], minlength=int(labels.max(initial=0)) + 1)
    # All that is excluded is of the query's class, except for its own image under another label.
    is_other = (own_rows >= 0) & (labels[gallery[own_rows]] != labels[queries])
    return class_sizes[labels[queries]] - num_excluded + is_other
