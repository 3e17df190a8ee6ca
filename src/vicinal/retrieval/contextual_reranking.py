"""Contextual re-ranking: images are alike that have the same neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vicinal.arguments import check_not_negative
from vicinal.errors import InputError
from vicinal.retrieval.neighbor_sets import NeighborSets, shared_members
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.range_search import within
from vicinal.retrieval.rerank import Lifts, Reranked, Reranking
from vicinal.retrieval.scores import UnitVectors, pair_scores
from vicinal.retrieval.sides import Sides

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ContextualReranking(Reranking):
    """Re-ranks by how many neighbours two images share: Liao et al., "Supervised Metric Learning to Rank for Retrieval
    via Contextual Similarity Optimization", ICML 2023, Appendix I.5 with Eq. 15 and 16.

    The score of query i and gallery image j is ``beta * w_ij + (1 - beta) * exp(2 s_ij - 2)``, where ``w_ij`` is
    ``|N(i) & N(j)| / |N(i)|`` if j is in N(i), else 0. N(i) is i itself and all images at least as similar to it as the
    (k - 1)-th of the others, or less similar by no more than `epsilon` in squared distance ``2 - 2 s``. (Eq. 15 is
    printed with that sign turned round.) Images as far as the last one all belong, so N(i) may be larger than k.

    As ``w`` is 0 outside of N(i), only the order within N(i) changes: with `epsilon` 0 and no ties, that of the first
    k - 1. A query outside of the gallery belongs to its own N(i), and to the N(j) of a gallery image j if it is at
    least as similar to j as N(j) asks for. Otherwise N(j) is what it is within the gallery: no query
    changes what another one finds.

    Time and memory grow with the number of images if embeddings are spread out. Of n equal ones each has all in its
    neighbourhood: n^2 members, and n^3 steps of a matrix product.

    Args:
        k: size of the neighbourhoods, the image itself among them. The paper takes 16 for CUB and Cars, 4 for SOP.
        beta: weight of shared neighbours, from 0 to below 1.
        epsilon: how much farther than the last neighbour, in squared distance, still counts as near.

    Raises:
        InputError: an impossible k, beta or epsilon; when applied: k larger than the gallery, or neighbourhoods of
            more than 17 million members in all (of embeddings that are nearly all equal, or a large epsilon).

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ContextualReranking(k=4), exclude=np.arange(6)).indices[0]
        array([4, 3, 2])
    """

    k: int = 16
    beta: float = 0.1
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        self._check_counts("k")
        if self.k == 1:
            raise InputError("ContextualReranking: k = 1 leaves an image alone with itself; use k >= 2")
        if not 0 <= self.beta < 1:
            raise InputError(f"ContextualReranking: beta = {self.beta} must be from 0 to below 1")
        check_not_negative(self, epsilon=self.epsilon)

    @property
    def reach(self) -> int:
        return self.k  # one more than there are neighbours, which tells whether another one is as near

    def apply(self, sides: Sides) -> Reranked:
        sides.check(self, "k", self.k, len(sides.gallery), least=2)
        found = sides.nearest_of_queries(min(self.k, sides.most))
        of_queries, bounds = self._neighborhoods(found, sides.queries, sides.gallery, sides.places)
        rows, of_gallery = np.arange(len(sides.gallery)), of_queries
        if not sides.same:
            rows = np.unique(of_queries.members)
            found = sides.nearest_of_gallery(min(self.k, len(sides.gallery) - 1), rows)
            of_gallery, bounds = self._neighborhoods(found, sides.gallery.subset(rows), sides.gallery, rows)
        return _Contextual(sides, self.beta, of_queries, _Gallery(rows, of_gallery, bounds))

    def _neighborhoods(
        self, found: Neighbors, vectors: UnitVectors, gallery: UnitVectors, places: Integers
    ) -> tuple[NeighborSets, Floats]:
        """N of each image as far as it lies in the gallery, and how similar another image must be to belong."""
        bounds = found.scores[:, self.k - 2] - np.float32(self.epsilon / 2)
        inside = found.scores >= bounds[:, None]
        known, itself = len(gallery) - (places >= 0), np.flatnonzero(places >= 0)
        unfinished = np.flatnonzero(inside[:, -1] & (found.scores.shape[1] < known))
        inside[unfinished] = False
        more_rows, more = within(vectors.subset(unfinished), gallery, bounds[unfinished])
        rows = np.concatenate([inside.nonzero()[0], unfinished[more_rows], itself])
        members = np.concatenate([found.indices[inside], more, places[itself]])
        return NeighborSets.of_pairs(rows, members, len(vectors)), bounds


@dataclass(frozen=True)
class _Gallery:
    """Neighbourhoods of the gallery images in `rows`, int64 ascending, and their bounds."""

    rows: Integers
    sets: NeighborSets
    bounds: Floats


class _Contextual(Reranked):
    def __init__(self, sides: Sides, beta: float, of_queries: NeighborSets, gallery: _Gallery) -> None:
        super().__init__(sides.queries, sides.gallery)
        self._places, self._beta = sides.places, beta
        self._of_queries, self._of_gallery = of_queries, gallery

    def most_lifts(self) -> Integers:
        return self._of_queries.sizes

    def lifts(self, start: int, stop: int) -> Lifts:
        pairs, members = self._of_queries.expand(np.arange(start, stop))
        rows, columns = pairs + start, self._of_queries.members[members]
        others = columns != self._places[rows]
        rows, columns = rows[others], columns[others]
        which = np.searchsorted(self._of_gallery.rows, columns)
        sets = self._of_queries.slice(start, stop)
        shared = shared_members(sets, rows - start, self._of_gallery.sets, which, len(self.gallery))
        outside = self._places[rows] < 0
        if outside.any():
            shared[outside] += self._is_near(rows[outside], columns[outside], which[outside])
        weights = shared / (self._of_queries.sizes[rows] + outside)
        return Lifts(rows - start, columns, self._beta / (1 - self._beta) * weights)

    def _is_near(self, rows: Integers, columns: Integers, which: Integers) -> npt.NDArray[np.bool_]:
        """Whether a query outside of the gallery belongs to the neighbourhood of a gallery image."""
        return pair_scores(self.queries, self.gallery, rows, columns) >= self._of_gallery.bounds[which]

    def raised(self, similarities: Floats, amounts: npt.NDArray[np.float64]) -> Floats:
        """The similarity at which exp(2 s - 2) is larger by the amount."""
        return (1 + np.log(np.exp(2.0 * similarities.astype(np.float64) - 2) + amounts) / 2).astype(np.float32)

    def score(self, similarities: Floats) -> Floats:
        return ((1 - self._beta) * np.exp(2 * similarities.astype(np.float64) - 2)).astype(np.float32)
