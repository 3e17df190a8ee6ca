"""k-reciprocal re-ranking: images with the same reciprocal neighbors are similar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import RerankedScores, Reranking, ScoreIncrements
from vicinal.retrieval.reranking.neighbor_sets import NeighborSets, intersection_sizes
from vicinal.retrieval.scores import UnitVectors, pair_scores
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers, chunk_ranges
from vicinal.utils.errors import InputError

MAX_ENTRIES = 2**18  # entries that are compared at a time, which stay in the cache
MIN_LAM = 1e-30  # 1 / lam must be a float32

Matrix = Any  # scipy.sparse.csr_array, [images, gallery]


@dataclass(frozen=True)
class ReciprocalReranking(Reranking):
    """Re-ranks by the common reciprocal neighbors of two images: Zhong et al., "Re-ranking Person Re-identification
    with k-reciprocal Encoding", CVPR 2017, Eq. 3 to 12.

    With the cosine distance ``d = 1 - s``:

    1. R(p, k): p itself, and each of its k nearest that has p among its own k nearest.
    2. R*(p): R(p, k1), and for each c in R(p, k1) the set R(c, k1 / 2) if at least two thirds of it are in R(p, k1).
    3. V_p: ``exp(-d(p, g))`` for every g in R*(p), else 0; then the mean of V over p and its k2 - 1 nearest.
    4. Jaccard distance: ``1 - sum min(V_p, V_g) / sum max(V_p, V_g)``.
    5. Distance: ``(1 - lam) * Jaccard + lam * d``.

    The score is 1 minus that distance. Any gallery image that shares an entry with the query can rise; all others keep
    their order. A query outside of the gallery has no entry in any V, not even its own, as in the paper, where V is
    over gallery images; it is among the k nearest of a gallery image if it is at least as similar as the k-th of them.
    So no query changes the result of another one.

    The published code also lets queries be neighbors of each other, takes "more than" two thirds, squared distances
    divided by each image's largest one (for unit vectors this is close to d), and V divided by its sum.

    Time and memory grow linearly with the number of images if embeddings are spread out. If n of them are equal, each
    shares neighbors with all, which takes time proportional to n^2; memory still grows with n only.

    Args:
        k1: number of neighbors, without the image itself.
        k2: number of images whose V is averaged, including the image itself, at most k1; 1 leaves V as it is.
        lam: weight of the original distance, from 1e-30 to 1. For the Jaccard distance alone take a small one such as
            1e-6, which also ranks images that share nothing.

    Raises:
        InputError: k1, k2 or lam is invalid; when applied: k1 is not smaller than the gallery.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ReciprocalReranking(k1=3, k2=1), exclude_self=np.arange(6)).ids[0]
        array([4, 2, 3])
    """

    k1: int = 20
    k2: int = 6
    lam: float = 0.3

    def __post_init__(self) -> None:
        self._check_counts("k1", "k2")
        if self.k2 > self.k1:
            raise InputError(f"ReciprocalReranking: k2 = {self.k2} must not be larger than k1 = {self.k1}")
        if not MIN_LAM <= self.lam <= 1:
            raise InputError(f"ReciprocalReranking: lam = {self.lam} must be from {MIN_LAM} to 1")

    @property
    def num_neighbors(self) -> int:
        return self.k1

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        queries, gallery = query_gallery.queries, query_gallery.gallery
        query_gallery.check_num_neighbors(self, "k1", self.k1, len(gallery) - 1)
        neighbors = query_gallery.gallery_neighbors(self.k1)
        encoder = _Encoder(gallery, neighbors, self.k1)
        encodings = encoder.encode(gallery, neighbors, np.arange(len(gallery)))
        averaged = self._average(encodings, neighbors, encodings)
        if query_gallery.is_leave_one_out:
            return _ReciprocalScores(query_gallery, self.lam, averaged, averaged)
        neighbors = query_gallery.query_neighbors(self.k1)
        query_encodings = encoder.encode(queries, neighbors, query_gallery.exclude_self)
        return _ReciprocalScores(
            query_gallery, self.lam, self._average(query_encodings, neighbors, encodings), averaged
        )

    def _average(self, encodings: Matrix, neighbors: Neighbors, gallery_encodings: Matrix) -> Matrix:
        """Local query expansion: return the mean of V over each image and its k2 - 1 nearest."""
        nearest = neighbors.ids[:, : self.k2 - 1]
        starts = np.arange(len(nearest) + 1) * nearest.shape[1]
        selection = sparse.csr_array((np.ones(nearest.size), nearest.ravel(), starts), shape=encodings.shape)
        return (encodings + selection @ gallery_encodings) / self.k2


class _Encoder:
    """Encodes images as V, their similarities to reciprocal neighbors in the gallery."""

    def __init__(self, gallery: UnitVectors, neighbors: Neighbors, k1: int) -> None:
        self._gallery, self._neighbors, self._k1 = gallery, neighbors, k1
        images = np.arange(len(gallery))
        rows, columns = self._is_reciprocal(neighbors, images, round(k1 / 2)).nonzero()
        members = np.concatenate([neighbors.ids[rows, columns], images])
        self._half_sets = NeighborSets.from_pairs(np.concatenate([rows, images]), members, len(images))

    def encode(self, vectors: UnitVectors, neighbors: Neighbors, exclude_self: Integers) -> Matrix:
        """Return V of images before averaging, [images, gallery]; `exclude_self` are their own gallery rows or -1."""
        rows, columns = self._is_reciprocal(neighbors, exclude_self, self._k1).nonzero()
        members, in_gallery = neighbors.ids[rows, columns], np.flatnonzero(exclude_self >= 0)
        all_rows = np.concatenate([rows, in_gallery])
        all_members = np.concatenate([members, exclude_self[in_gallery]])
        sets = NeighborSets.from_pairs(all_rows, all_members, len(vectors))
        shared = intersection_sizes(sets, rows, self._half_sets, members, len(self._gallery))
        is_added = 3 * shared >= 2 * self._half_sets.sizes[members]
        pairs, positions = self._half_sets.expand(members[is_added])
        all_rows = np.concatenate([all_rows, rows[is_added][pairs]])
        all_members = np.concatenate([all_members, self._half_sets.members[positions]])
        sets = NeighborSets.from_pairs(all_rows, all_members, len(vectors))
        weights = np.exp(pair_scores(vectors, self._gallery, sets.rows, sets.members).astype(np.float64) - 1)
        return sparse.csr_array((weights, sets.members, sets.starts), shape=(len(vectors), len(self._gallery)))

    def _is_reciprocal(self, neighbors: Neighbors, exclude_self: Integers, k: int) -> Booleans:
        """Return whether an image is among the k nearest of each of its own k nearest, bool [images, k]."""
        near, gallery_near = neighbors.ids[:, :k], self._neighbors.ids[:, :k]
        reciprocal = np.empty(near.shape, dtype=np.bool_)
        for start, stop in chunk_ranges(np.full(len(near), k * k), MAX_ENTRIES):
            own_rows = exclude_self[start:stop, None, None]
            reciprocal[start:stop] = (gallery_near[near[start:stop]] == own_rows).any(axis=2)
        outside = np.flatnonzero(exclude_self < 0)
        if len(outside) and k:
            reciprocal[outside] = neighbors.scores[outside, :k] >= self._neighbors.scores[near[outside], k - 1]
        return reciprocal


class _ReciprocalScores(RerankedScores):
    def __init__(self, query_gallery: QueryGallery, lam: float, queries: Matrix, gallery: Matrix) -> None:
        super().__init__(query_gallery.queries, query_gallery.gallery)
        self._lam, self._encodings = lam, queries
        transposed = gallery.T.tocsr()  # for each gallery image the images whose V has an entry for it
        self._holders = NeighborSets(transposed.indptr.astype(np.int64), transposed.indices.astype(np.int64))
        self._weights = transposed.data
        self._query_sums, self._gallery_sums = queries.sum(axis=1), gallery.sum(axis=1)
        ends = np.concatenate([[0], np.cumsum(self._holders.sizes[queries.indices])])
        self._num_compared = np.diff(ends[queries.indptr])  # the number of entries each query is compared with
        self._max_increments = np.minimum(self._num_compared, len(self.gallery))

    def max_increments(self) -> Integers:
        return self._max_increments

    def increments(self, start: int, stop: int) -> ScoreIncrements:
        chunks = chunk_ranges(self._num_compared[start:stop], MAX_ENTRIES)
        parts = [self._increments(start + first, start + last) for first, last in chunks]
        rows, columns, amounts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ScoreIncrements(rows - start, columns, amounts)

    def _increments(self, start: int, stop: int) -> tuple[Integers, Integers, Doubles]:
        encodings = self._encodings[start:stop]
        entries, positions = self._holders.expand(encodings.indices)
        minima = np.minimum(encodings.data[entries], self._weights[positions])
        starts = np.searchsorted(entries, encodings.indptr)
        shape = stop - start, len(self.gallery)
        shared = sparse.csr_array((minima, self._holders.members[positions], starts), shape=shape)
        shared = shared.tocsc().tocsr()  # sorts the columns of each row, faster than sorting does
        shared.sum_duplicates()
        rows = np.repeat(np.arange(start, stop), np.diff(shared.indptr))
        columns = shared.indices.astype(np.int64)
        union = self._query_sums[rows] + self._gallery_sums[columns] - shared.data
        return rows, columns, (1 - self._lam) / self._lam * shared.data / union

    def incremented(self, similarities: Floats, amounts: Doubles) -> Floats:
        return (similarities + amounts).astype(np.float32)

    def score(self, similarities: Floats) -> Floats:
        return (self._lam * similarities.astype(np.float64)).astype(np.float32)
