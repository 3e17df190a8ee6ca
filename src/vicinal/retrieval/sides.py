"""Who searches whom, and each image's nearest, found once however often they are asked for."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from vicinal.errors import InputError
from vicinal.retrieval.neighbors import LeftOut, Neighbors, nearest
from vicinal.retrieval.scores import UnitVectors

Integers = npt.NDArray[np.int64]


class Sides:
    """Queries and the gallery they search, as a re-ranking sees them.

    An image is never its own neighbour. Groups (cameras, sequences) say what must not be found, not what is near, so
    neighbours are of any group.

    Args:
        queries: [q, dim].
        gallery: [g, dim]; the same object as `queries` where one set searches itself.
        places: int64 [q], the gallery row that is the query itself, -1 for a query outside of the gallery.
        chunk: queries a block of a search; by default chosen to fill the memory budget.
        found: what a search for the queries' nearest found before, if there was one.
        wanted: how many of the queries' nearest will be asked for at most, so that the first search finds them all.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "vector")
        >>> sides = Sides(vectors, vectors, np.arange(3))
        >>> sides.nearest_of_queries(1).indices.ravel(), sides.nearest_of_gallery(1).indices.ravel()
        (array([1, 0, 1]), array([1, 0, 1]))
    """

    def __init__(
        self,
        queries: UnitVectors,
        gallery: UnitVectors,
        places: Integers,
        chunk: int | None = None,
        found: Neighbors | None = None,
        wanted: int = 0,
    ) -> None:
        self.queries, self.gallery, self.places = queries, gallery, places
        self.chunk, self._wanted = chunk, wanted
        self._found = found

    @cached_property
    def same(self) -> bool:
        """Whether one set searches itself, so that a query's neighbours are those of its gallery row."""
        return self.queries is self.gallery and bool((self.places == np.arange(len(self.queries))).all())

    @cached_property
    def most(self) -> int:
        """How many neighbours every query has."""
        return len(self.gallery) - bool((self.places >= 0).any())

    def nearest_of_queries(self, k: int) -> Neighbors:
        """The k nearest gallery images of each query, without itself."""
        if self._found is None or self._found.indices.shape[1] < k:
            left_out = LeftOut(len(self.queries), len(self.gallery), self.places)
            enough = max(k, min(self._wanted, self.most))
            self._found = nearest(self.queries, self.gallery, enough, left_out, self.chunk)
        return Neighbors(self._found.scores[:, :k], self._found.indices[:, :k])

    def nearest_of_gallery(self, k: int, rows: Integers | None = None) -> Neighbors:
        """The k nearest gallery images of each gallery image, or of those in the given rows, without itself."""
        rows = np.arange(len(self.gallery)) if rows is None else rows
        if self.same:
            found = self.nearest_of_queries(k)
            return Neighbors(found.scores[rows], found.indices[rows])
        return nearest(
            self.gallery.subset(rows), self.gallery, k, LeftOut(len(rows), len(self.gallery), rows), self.chunk
        )

    def check(self, owner: object, name: str, value: int, most: int, least: int = 1) -> None:
        """Refuse a number of neighbours that the gallery does not have.

        Raises:
            InputError: `value` is larger than `most`; or `most` is below `least`, so that no value will do.
        """
        method, images = type(owner).__name__, len(self.gallery)
        if most < least:
            raise InputError(f"{method}: a gallery of {images} is too small; it takes {images + least - most} images")
        if value > most:
            raise InputError(
                f"{method}: {name} = {value} is too large for a gallery of {images} images; use {name} <= {most}"
            )
