"""Contextual re-ranking: images with the same neighbors are similar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vicinal.retrieval.neighbors import Neighbors, range_search
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import RerankedScores, Reranking, ScoreIncrements
from vicinal.retrieval.reranking.neighbor_sets import NeighborSets, intersection_sizes
from vicinal.retrieval.scores import UnitVectors, pair_scores
from vicinal.utils.arguments import check_nonnegative
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class ContextualReranking(Reranking):
    """Re-ranks by the number of common neighbors of two images: Liao et al., "Supervised Metric Learning to Rank for
    Retrieval via Contextual Similarity Optimization", ICML 2023, Appendix I.5 with Eq. 15 and 16.

    The score of query i and gallery image j is ``beta * w_ij + (1 - beta) * exp(2 s_ij - 2)``, where ``w_ij`` is
    ``|N(i) & N(j)| / |N(i)|`` if j is in N(i), else 0. The neighborhood N(i) is i itself and all images that are at
    least as similar to it as the (k - 1)-th of the others, or less similar by at most `epsilon` in squared distance
    ``2 - 2 s``. (Eq. 15 is printed with the opposite sign.) All images at the distance of the last one belong to it, so
    N(i) may be larger than k.

    As ``w`` is 0 outside of N(i), only the order within N(i) changes: with `epsilon` 0 and no ties, that of the first
    k - 1. A query outside of the gallery belongs to its own N(i), and to the N(j) of a gallery image j if it is at
    least as similar to j as N(j) requires. Apart from that, N(j) is determined by the gallery alone: no query changes
    the result of another one.

    Time and memory grow linearly with the number of images if embeddings are spread out. If n of them are equal, each
    has all of them in its neighborhood: n^2 members, and a matrix product of n^3 steps.

    Args:
        k: size of the neighborhoods, including the image itself. The paper takes 16 for CUB and Cars, 4 for SOP.
        beta: weight of shared neighbors, from 0 to below 1.
        epsilon: how much farther than the last neighbor, in squared distance, an image may be to belong.

    Raises:
        InputError: k, beta or epsilon is invalid; when applied: k is larger than the gallery, or neighborhoods have
            more than 17 million members in total (embeddings are nearly all equal, or epsilon is large).

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ContextualReranking(k=4), exclude_self=np.arange(6)).ids[0]
        array([4, 3, 2])
    """

    k: int = 16
    beta: float = 0.1
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        self._check_counts("k")
        if self.k == 1:
            raise InputError("ContextualReranking: k = 1 makes an image its only neighbor; use k >= 2")
        if not 0 <= self.beta < 1:
            raise InputError(f"ContextualReranking: beta = {self.beta} must be from 0 to below 1")
        check_nonnegative(self, epsilon=self.epsilon)

    @property
    def num_neighbors(self) -> int:
        return self.k  # N has k - 1 others; one more tells whether another image is as near as the last

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        queries, gallery, exclude_self = query_gallery.queries, query_gallery.gallery, query_gallery.exclude_self
        query_gallery.check_num_neighbors(self, "k", self.k, len(gallery), min_value=2)
        neighbors = query_gallery.query_neighbors(min(self.k, query_gallery.max_neighbors))
        query_sets, thresholds = self._neighborhoods(neighbors, queries, gallery, exclude_self)
        if query_gallery.is_leave_one_out:
            members = _GalleryNeighborhoods(np.arange(len(gallery)), query_sets, thresholds)
        else:
            rows = np.unique(query_sets.members)
            neighbors = query_gallery.gallery_neighbors(min(self.k, len(gallery) - 1), rows)
            members = _GalleryNeighborhoods(rows, *self._neighborhoods(neighbors, gallery.subset(rows), gallery, rows))
        return _ContextualScores(query_gallery, self.beta, query_sets, members)

    def _neighborhoods(
        self, neighbors: Neighbors, vectors: UnitVectors, gallery: UnitVectors, exclude_self: Integers
    ) -> tuple[NeighborSets, Floats]:
        """Return N of each image, restricted to the gallery, and the similarity that membership requires."""
        thresholds = neighbors.scores[:, self.k - 2] - np.float32(self.epsilon / 2)
        is_member = neighbors.scores >= thresholds[:, None]
        num_others, in_gallery = len(gallery) - (exclude_self >= 0), np.flatnonzero(exclude_self >= 0)
        unfinished = np.flatnonzero(is_member[:, -1] & (neighbors.scores.shape[1] < num_others))
        is_member[unfinished] = False
        found_rows, found = range_search(vectors.subset(unfinished), gallery, thresholds[unfinished])
        rows = np.concatenate([is_member.nonzero()[0], unfinished[found_rows], in_gallery])
        members = np.concatenate([neighbors.ids[is_member], found, exclude_self[in_gallery]])
        return NeighborSets.from_pairs(rows, members, len(vectors)), thresholds


@dataclass(frozen=True)
class _GalleryNeighborhoods:
    """Neighborhoods of the gallery images `rows`, int64 ascending, and the similarities that membership requires."""

    rows: Integers
    sets: NeighborSets
    thresholds: Floats


class _ContextualScores(RerankedScores):
    def __init__(
        self, query_gallery: QueryGallery, beta: float, query_sets: NeighborSets, gallery: _GalleryNeighborhoods
    ) -> None:
        super().__init__(query_gallery.queries, query_gallery.gallery)
        self._exclude_self, self._beta = query_gallery.exclude_self, beta
        self._query_sets, self._gallery_neighborhoods = query_sets, gallery

    def max_increments(self) -> Integers:
        return self._query_sets.sizes

    def increments(self, start: int, stop: int) -> ScoreIncrements:
        offsets, positions = self._query_sets.expand(np.arange(start, stop))
        rows, columns = offsets + start, self._query_sets.members[positions]
        is_other = columns != self._exclude_self[rows]
        rows, columns = rows[is_other], columns[is_other]
        neighborhoods = self._gallery_neighborhoods
        which = np.searchsorted(neighborhoods.rows, columns)
        query_sets = self._query_sets.slice(start, stop)
        shared = intersection_sizes(query_sets, rows - start, neighborhoods.sets, which, len(self.gallery))
        is_outside = self._exclude_self[rows] < 0
        if is_outside.any():
            # a query belongs to a neighborhood if it is as similar as that requires
            scores = pair_scores(self.queries, self.gallery, rows[is_outside], columns[is_outside])
            shared[is_outside] += scores >= neighborhoods.thresholds[which[is_outside]]
        weights = shared / (self._query_sets.sizes[rows] + is_outside)
        return ScoreIncrements(rows - start, columns, self._beta / (1 - self._beta) * weights)

    def incremented(self, similarities: Floats, amounts: Doubles) -> Floats:
        """Return the similarities at which exp(2 s - 2) is larger by the amounts."""
        return (1 + np.log(np.exp(2.0 * similarities.astype(np.float64) - 2) + amounts) / 2).astype(np.float32)

    def score(self, similarities: Floats) -> Floats:
        return ((1 - self._beta) * np.exp(2 * similarities.astype(np.float64) - 2)).astype(np.float32)
