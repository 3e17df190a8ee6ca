"""k-reciprocal re-ranking: images are alike that have the same reciprocal neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from vicinal.errors import InputError
from vicinal.retrieval.neighbor_sets import NeighborSets, pieces, shared_members
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.rerank import Lifts, Reranked, Reranking
from vicinal.retrieval.scores import UnitVectors, pair_scores
from vicinal.retrieval.sides import Sides

MOST_AT_ONCE = 2**18  # entries that are compared at a time: so many stay in the cache
LEAST_LAM = 1e-30  # 1 / lam must be a float32

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Matrix = Any  # scipy.sparse.csr_array, [images, gallery]


@dataclass(frozen=True)
class ReciprocalReranking(Reranking):
    """Re-ranks by the reciprocal neighbours that two images share: Zhong et al., "Re-ranking Person Re-identification
    with k-reciprocal Encoding", CVPR 2017, Eq. 3 to 12.

    With the cosine distance ``d = 1 - s``:

    1. R(p, k): of p's k nearest, those among whose own k nearest p is; and p itself.
    2. R*(p): R(p, k1) and every R(c, k1 / 2) of a c in R(p, k1) of which at least two thirds are in R(p, k1).
    3. V_p: ``exp(-d(p, g))`` for every g in R*(p), else 0; then the mean of V over p and its k2 - 1 nearest.
    4. Jaccard distance: ``1 - sum min(V_p, V_g) / sum max(V_p, V_g)``.
    5. Distance: ``(1 - lam) * Jaccard + lam * d``.

    The score is 1 minus that distance. Any gallery image that shares something with the query can rise; all others keep
    their order. A query outside of the gallery has no entry in any V, also not in its own, as in the paper, where V is
    of gallery images; it is among the k nearest of a gallery image if it is at least as similar as the k-th of them. So
    no query changes what another one finds.

    The published code also lets queries be neighbours of each other, takes "more than" two thirds, squared distances
    divided by each image's largest one (for unit vectors this is near to d), and V divided by its sum.

    Time and memory grow with the number of images if embeddings are spread out. Of n equal ones each shares neighbours
    with all, which takes time as n^2; memory still grows with n only.

    Args:
        k1: neighbours looked at, without the image itself.
        k2: images whose V is averaged, the image itself among them; 1 leaves V as it is, at most k1.
        lam: weight of the original distance, from 1e-30 to 1. For the Jaccard distance alone take a small one such as
            1e-6, which also ranks what shares nothing.

    Raises:
        InputError: an impossible k1, k2 or lam; when applied: k1 as large as the gallery.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ReciprocalReranking(k1=3, k2=1), exclude=np.arange(6)).indices[0]
        array([4, 2, 3])
    """

    k1: int = 20
    k2: int = 6
    lam: float = 0.3

    def __post_init__(self) -> None:
        self._check_counts("k1", "k2")
        if self.k2 > self.k1:
            raise InputError(f"ReciprocalReranking: k2 = {self.k2} must not be larger than k1 = {self.k1}")
        if not LEAST_LAM <= self.lam <= 1:
            raise InputError(f"ReciprocalReranking: lam = {self.lam} must be from {LEAST_LAM} to 1")

    @property
    def reach(self) -> int:
        return self.k1

    def apply(self, sides: Sides) -> Reranked:
        sides.check(self, "k1", self.k1, len(sides.gallery) - 1)
        gallery = sides.nearest_of_gallery(self.k1)
        encoder = _Encoder(sides.gallery, gallery, self.k1)
        own = encoder.encode(sides.gallery, gallery, np.arange(len(sides.gallery)))
        of_gallery = self._averaged(own, gallery, own)
        if sides.same:
            return _Reciprocal(sides, self.lam, of_gallery, of_gallery)
        queries = sides.nearest_of_queries(self.k1)
        of_queries = self._averaged(encoder.encode(sides.queries, queries, sides.places), queries, own)
        return _Reciprocal(sides, self.lam, of_queries, of_gallery)

    def _averaged(self, vectors: Matrix, found: Neighbors, of_gallery: Matrix) -> Matrix:
        """Local query expansion: the mean of V over each image and its k2 - 1 nearest."""
        nearest = found.indices[:, : self.k2 - 1]
        starts = np.arange(len(nearest) + 1) * nearest.shape[1]
        chosen = sparse.csr_array((np.ones(nearest.size), nearest.ravel(), starts), shape=vectors.shape)
        return (vectors + chosen @ of_gallery) / self.k2


class _Encoder:
    """Turns images into V, by what their neighbours in the gallery say of them."""

    def __init__(self, vectors: UnitVectors, found: Neighbors, k1: int) -> None:
        self._vectors, self._found, self._k1 = vectors, found, k1
        images = np.arange(len(vectors))
        rows, columns = self._is_reciprocal(found, images, round(k1 / 2)).nonzero()
        members = np.concatenate([found.indices[rows, columns], images])
        self._halves = NeighborSets.of_pairs(np.concatenate([rows, images]), members, len(images))

    def encode(self, vectors: UnitVectors, found: Neighbors, places: Integers) -> Matrix:
        """V of images, before averaging; `places` are their own gallery rows, -1 for none."""
        rows, columns = self._is_reciprocal(found, places, self._k1).nonzero()
        members, itself = found.indices[rows, columns], np.flatnonzero(places >= 0)
        all_rows, all_members = np.concatenate([rows, itself]), np.concatenate([members, places[itself]])
        sets = NeighborSets.of_pairs(all_rows, all_members, len(vectors))
        shared = shared_members(sets, rows, self._halves, members, len(self._vectors))
        kept = 3 * shared >= 2 * self._halves.sizes[members]
        pairs, more = self._halves.expand(members[kept])
        all_rows = np.concatenate([all_rows, rows[kept][pairs]])
        all_members = np.concatenate([all_members, self._halves.members[more]])
        sets = NeighborSets.of_pairs(all_rows, all_members, len(vectors))
        weights = np.exp(pair_scores(vectors, self._vectors, sets.rows, sets.members).astype(np.float64) - 1)
        return sparse.csr_array((weights, sets.members, sets.starts), shape=(len(vectors), len(self._vectors)))

    def _is_reciprocal(self, found: Neighbors, places: Integers, k: int) -> Mask:
        """Whether an image is among the k nearest of each of its own k nearest, bool [images, k]."""
        near, lists = found.indices[:, :k], self._found.indices[:, :k]
        reciprocal = np.empty(near.shape, dtype=np.bool_)
        for start, stop in pieces(np.full(len(near), k * k), MOST_AT_ONCE):
            reciprocal[start:stop] = (lists[near[start:stop]] == places[start:stop, None, None]).any(axis=2)
        outside = np.flatnonzero(places < 0)
        if len(outside) and k:
            reciprocal[outside] = found.scores[outside, :k] >= self._found.scores[near[outside], k - 1]
        return reciprocal


class _Reciprocal(Reranked):
    def __init__(self, sides: Sides, lam: float, of_queries: Matrix, of_gallery: Matrix) -> None:
        super().__init__(sides.queries, sides.gallery)
        self._lam, self._of_queries = lam, of_queries
        inverted = of_gallery.T.tocsr()  # for each gallery image those in whose V it is
        self._holders = NeighborSets(inverted.indptr.astype(np.int64), inverted.indices.astype(np.int64))
        self._weights = inverted.data
        self._query_sums, self._gallery_sums = of_queries.sum(axis=1), of_gallery.sum(axis=1)
        ends = np.concatenate([[0], np.cumsum(self._holders.sizes[of_queries.indices])])
        self._work = np.diff(ends[of_queries.indptr])  # for each query, how many entries it is compared with
        self._most_lifts = np.minimum(self._work, len(self.gallery))

    def most_lifts(self) -> Integers:
        return self._most_lifts

    def lifts(self, start: int, stop: int) -> Lifts:
        works = pieces(self._work[start:stop], MOST_AT_ONCE)
        parts = [self._lifts(start + first, start + last) for first, last in works]
        rows, columns, amounts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Lifts(rows - start, columns, amounts)

    def _lifts(self, start: int, stop: int) -> tuple[Integers, Integers, npt.NDArray[np.float64]]:
        vectors = self._of_queries[start:stop]
        entries, places = self._holders.expand(vectors.indices)
        least = np.minimum(vectors.data[entries], self._weights[places])
        starts = np.searchsorted(entries, vectors.indptr)
        shape = stop - start, len(self.gallery)
        shared = sparse.csr_array((least, self._holders.members[places], starts), shape=shape)
        shared = shared.tocsc().tocsr()  # sorts the columns of each row, and faster than sorting does
        shared.sum_duplicates()
        rows = np.repeat(np.arange(start, stop), np.diff(shared.indptr))
        columns = shared.indices.astype(np.int64)
        union = self._query_sums[rows] + self._gallery_sums[columns] - shared.data
        return rows, columns, (1 - self._lam) / self._lam * shared.data / union

    def raised(self, similarities: Floats, amounts: npt.NDArray[np.float64]) -> Floats:
        return (similarities + amounts).astype(np.float32)

    def score(self, similarities: Floats) -> Floats:
        return (self._lam * similarities.astype(np.float64)).astype(np.float32)
