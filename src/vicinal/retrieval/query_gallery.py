"""Queries, the gallery that they search, and the nearest neighbors of both, each found only once."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import Neighbors, nearest
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError


class QueryGallery:
    """Queries and the gallery that they search, as a re-ranking method sees them.

    An image is never its own neighbor. Groups (cameras, sequences) restrict what a query may find, not what is near
    it, so neighbors may be of any group.

    Args:
        queries: [q, dim].
        gallery: [g, dim]; the same object as `queries` where one set searches itself.
        exclude_self: int64 [q], the gallery row that is the query itself, -1 for a query outside of the gallery.
        chunk_size: number of queries per block of a search; None chooses as many as fit into the memory budget.
        num_neighbors: how many neighbors per query will be asked for at most, so that the first search finds them all.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "vector")
        >>> query_gallery = QueryGallery(vectors, vectors, exclude_self=np.arange(3))
        >>> query_gallery.query_neighbors(1).ids.ravel(), query_gallery.gallery_neighbors(1).ids.ravel()
        (array([1, 0, 1]), array([1, 0, 1]))
    """

    def __init__(
        self,
        queries: UnitVectors,
        gallery: UnitVectors,
        exclude_self: Integers,
        chunk_size: int | None = None,
        num_neighbors: int = 0,
    ) -> None:
        self.queries, self.gallery, self.exclude_self = queries, gallery, exclude_self
        self.chunk_size, self._num_neighbors = chunk_size, num_neighbors
        self._ranking: Neighbors | None = None

    @classmethod
    def leave_one_out(cls, vectors: UnitVectors, chunk_size: int | None = None) -> QueryGallery:
        """Let every vector of one set search all others."""
        return cls(vectors, vectors, np.arange(len(vectors)), chunk_size)

    @cached_property
    def is_leave_one_out(self) -> bool:
        """Whether one set searches itself, so that a query's neighbors are those of its gallery row."""
        return self.queries is self.gallery and bool((self.exclude_self == np.arange(len(self.queries))).all())

    @cached_property
    def max_neighbors(self) -> int:
        """The least number of neighbors that any query has."""
        return len(self.gallery) - bool((self.exclude_self >= 0).any())

    def query_neighbors(self, k: int) -> Neighbors:
        """Return the k nearest gallery images of each query, without the query itself."""
        if self._ranking is None or self._ranking.ids.shape[1] < k:
            exclusions = Exclusions(len(self.queries), len(self.gallery), self.exclude_self)
            longest = max(k, min(self._num_neighbors, self.max_neighbors))
            self._ranking = nearest(self.queries, self.gallery, longest, exclusions, self.chunk_size)
        return Neighbors(self._ranking.scores[:, :k], self._ranking.ids[:, :k])

    def gallery_neighbors(self, k: int, rows: Integers | None = None) -> Neighbors:
        """Return the k nearest gallery images of each gallery row, or of the given ones, without the row itself."""
        rows = np.arange(len(self.gallery)) if rows is None else rows
        if self.is_leave_one_out:
            ranking = self.query_neighbors(k)
            return Neighbors(ranking.scores[rows], ranking.ids[rows])
        exclusions = Exclusions(len(rows), len(self.gallery), exclude_self=rows)
        return nearest(self.gallery.subset(rows), self.gallery, k, exclusions, self.chunk_size)

    def check_num_neighbors(self, method: object, name: str, value: int, max_value: int, min_value: int = 1) -> None:
        """Raise InputError when a method's argument asks for more neighbors than the gallery has.

        The gallery allows values up to `max_value`; where that is below the method's `min_value`, it is too small.
        """
        owner, size = type(method).__name__, len(self.gallery)
        if max_value < min_value:
            raise InputError(
                f"{owner}: a gallery of {size} is too small; use at least {size + min_value - max_value} images"
            )
        if value > max_value:
            raise InputError(
                f"{owner}: {name} = {value} is too large for a gallery of {size} images; use {name} <= {max_value}"
            )
