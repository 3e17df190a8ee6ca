"""Query expansion and database-side augmentation: vectors are averaged with their nearest neighbors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import RerankedScores, Reranking
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arguments import check_nonnegative

MAX_GATHERED = 8192  # neighbor vectors in memory at a time


@dataclass(frozen=True)
class Expansion(Reranking):
    """Base of the methods that replace vectors by sums with their n nearest, weighted by similarity^alpha."""

    n: int = 10
    alpha: float = 3.0

    def __post_init__(self) -> None:
        self._check_counts("n")
        check_nonnegative(self, alpha=self.alpha)

    @property
    def num_neighbors(self) -> int:
        return self.n

    def _expand_queries(self, query_gallery: QueryGallery) -> UnitVectors:
        query_gallery.check_num_neighbors(self, "n", self.n, query_gallery.max_neighbors)
        neighbors = query_gallery.query_neighbors(self.n)
        return self._expand(query_gallery.queries, query_gallery.gallery, neighbors, "query")

    def _expand_gallery(self, query_gallery: QueryGallery) -> UnitVectors:
        query_gallery.check_num_neighbors(self, "n", self.n, len(query_gallery.gallery) - 1)
        neighbors = query_gallery.gallery_neighbors(self.n)
        return self._expand(query_gallery.gallery, query_gallery.gallery, neighbors, "gallery vector")

    def _expand(self, vectors: UnitVectors, gallery: UnitVectors, neighbors: Neighbors, name: str) -> UnitVectors:
        """Return normalized sums of vectors and their neighbors."""
        expanded = np.empty((len(vectors), vectors.dim), dtype=np.float32)
        rows = max(1, MAX_GATHERED // self.n)
        for start in range(0, len(vectors), rows):
            chunk = slice(start, min(start + rows, len(vectors)))
            ids, scores = neighbors.ids[chunk], neighbors.scores[chunk]
            gathered = gallery.take(ids.ravel()).view(*ids.shape, -1)
            weights = np.where(scores < 0, 0, scores.clip(0) ** np.float32(self.alpha))  # 0 ** 0 is 1
            weighted = torch.from_numpy(weights).to(gathered.device)[:, :, None] * gathered
            sums = vectors.block(chunk.start, chunk.stop) + weighted.sum(dim=1)
            expanded[chunk] = F.normalize(sums, dim=1).cpu().numpy()
        return UnitVectors(expanded, name, device=vectors.device)


@dataclass(frozen=True)
class QueryExpansion(Expansion):
    """Searches again with each query moved towards its first results: Radenovic et al., "Fine-tuning CNN Image
    Retrieval with No Human Annotation", TPAMI 2018, Section 3.4 (alpha query expansion).

    The new query is the normalized sum of the query and its n nearest gallery images, each weighted by ``s^alpha`` (0
    where the similarity s is negative). The score is the cosine similarity to the new query.

    Args:
        n: number of neighbors, without the query itself.
        alpha: exponent of the weights; 0 gives all similarities that are not negative the same weight (average query
            expansion), larger values give distant neighbors less.

    Raises:
        InputError: n or alpha is invalid; when applied: n is larger than the number of neighbors.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> gallery = np.array([[0.8, 0.6], [0.75, -0.65], [0.6, 0.8]])
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, QueryExpansion(n=1)).ids
        array([[0, 2, 1]])
    """

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        return RerankedScores(self._expand_queries(query_gallery), query_gallery.gallery)


@dataclass(frozen=True)
class DatabaseAugmentation(Expansion):
    """Searches a gallery whose images are moved towards their own nearest: :class:`QueryExpansion` of the gallery.

    Queries stay as they are. Where a set searches itself, a query is among the neighbors of other images, like any
    image of the gallery. (Database-side augmentation: Turcot and Lowe, ICCV workshops 2009; weighted as in alpha query
    expansion.)

    Args:
        n: number of neighbors, without the image itself.
        alpha: exponent of the weights, as in :class:`QueryExpansion`.

    Raises:
        InputError: n or alpha is invalid; when applied: n is larger than the number of neighbors.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.5, 1.0, -0.55, -0.6])
        >>> gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, DatabaseAugmentation(n=1)).ids
        array([[2, 3, 0]])
    """

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        return RerankedScores(query_gallery.queries, self._expand_gallery(query_gallery))


@dataclass(frozen=True)
class NeighborAverage(Expansion):
    """Searches with queries and gallery both moved: each becomes the normalized sum of itself and its n nearest.

    It is a context refiner without its blocks (Context Refiner, Table 4, "MS-Loss + NNs"), the simplest baseline for
    one.

    Args:
        n: number of neighbors, without the image itself.
        alpha: exponent of the weights, as in :class:`QueryExpansion`; 0, the default, weights all equally.

    Raises:
        InputError: n or alpha is invalid; when applied: n is larger than the number of neighbors.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.5, 1.0, -0.55, -0.6])
        >>> gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, NeighborAverage(n=1)).ids
        array([[0, 1, 2]])
    """

    n: int = 8
    alpha: float = 0.0

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        queries = self._expand_queries(query_gallery)
        gallery = queries if query_gallery.is_leave_one_out else self._expand_gallery(query_gallery)
        return RerankedScores(queries, gallery)
