"""Query expansion and database-side augmentation: a vector takes some of its nearest neighbours along."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from vicinal.arguments import check_not_negative
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.rerank import Reranked, Reranking
from vicinal.retrieval.scores import UnitVectors
from vicinal.retrieval.sides import Sides

MOST_GATHERED = 8192  # vectors of neighbours held at a time


@dataclass(frozen=True)
class Expansion(Reranking):
    """What the methods below share: each lets vectors take along their n nearest, by weights of similarity^alpha."""

    n: int = 10
    alpha: float = 3.0

    def __post_init__(self) -> None:
        self._check_counts("n")
        check_not_negative(self, alpha=self.alpha)

    @property
    def reach(self) -> int:
        return self.n


@dataclass(frozen=True)
class QueryExpansion(Expansion):
    """Searches again with each query moved towards what it found first: Radenovic et al., "Fine-tuning CNN Image
    Retrieval with No Human Annotation", TPAMI 2018, Section 3.4 (alpha query expansion).

    The new query is the normalised sum of the query and its n nearest gallery images, each with the weight ``s^alpha``
    (0 where the similarity s is negative). The score is the cosine similarity to the new query.

    Args:
        n: neighbours added, without the query itself.
        alpha: 0 weighs all alike that are not negative (average query expansion); the larger, the less far ones count.

    Raises:
        InputError: an impossible n or alpha; when applied: more neighbours than there are.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> gallery = np.array([[0.8, 0.6], [0.75, -0.65], [0.6, 0.8]])
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, QueryExpansion(n=1)).indices
        array([[0, 2, 1]])
    """

    def apply(self, sides: Sides) -> Reranked:
        sides.check(self, "n", self.n, sides.most)
        expanded = _expanded(sides.queries, sides.gallery, sides.nearest_of_queries(self.n), self.alpha)
        return Reranked(UnitVectors(expanded, "query", device=sides.queries.device), sides.gallery)


@dataclass(frozen=True)
class DatabaseAugmentation(Expansion):
    """Searches a gallery of which each image has moved towards its own nearest: :class:`QueryExpansion` of the gallery.

    Queries stay as they are. Where a set searches itself, a query is among the neighbours that others take along, as
    any image of the gallery. (Database-side augmentation: Turcot and Lowe, ICCV workshops 2009; weighted as in alpha
    query expansion.)

    Args:
        n: neighbours added, without the image itself.
        alpha: as in query expansion.

    Raises:
        InputError: an impossible n or alpha; when applied: more neighbours than there are.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.5, 1.0, -0.55, -0.6])
        >>> gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, DatabaseAugmentation(n=1)).indices
        array([[2, 3, 0]])
    """

    def apply(self, sides: Sides) -> Reranked:
        sides.check(self, "n", self.n, len(sides.gallery) - 1)
        expanded = _expanded(sides.gallery, sides.gallery, sides.nearest_of_gallery(self.n), self.alpha)
        return Reranked(sides.queries, UnitVectors(expanded, "gallery vector", device=sides.gallery.device))


@dataclass(frozen=True)
class NeighborAverage(Expansion):
    """Searches with queries and gallery both moved: each becomes the normalised sum of itself and its n nearest.

    What a context refiner is without its blocks (Context Refiner, Table 4, "MS-Loss + NNs"), and the plainest thing
    to hold one against.

    Args:
        n: neighbours added, without the image itself.
        alpha: as in query expansion; 0, the default, weighs all alike.

    Raises:
        InputError: an impossible n or alpha; when applied: more neighbours than there are.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> angles = np.array([0.5, 1.0, -0.55, -0.6])
        >>> gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 3, NeighborAverage(n=1)).indices
        array([[0, 1, 2]])
    """

    n: int = 8
    alpha: float = 0.0

    def apply(self, sides: Sides) -> Reranked:
        queries = QueryExpansion(self.n, self.alpha).apply(sides).queries
        gallery = queries if sides.same else DatabaseAugmentation(self.n, self.alpha).apply(sides).gallery
        return Reranked(queries, gallery)


def _expanded(vectors: UnitVectors, gallery: UnitVectors, found: Neighbors, alpha: float) -> npt.NDArray[np.float32]:
    """Normalised sums of vectors and their neighbours, float32 [n, dim]."""
    expanded = np.empty((len(vectors), vectors.dim), dtype=np.float32)
    rows = max(1, MOST_GATHERED // found.indices.shape[1])
    for start in range(0, len(vectors), rows):
        place = slice(start, min(start + rows, len(vectors)))
        neighbors = gallery.take(found.indices[place].ravel()).view(*found.indices[place].shape, -1)
        scores = found.scores[place]
        weights = np.where(scores < 0, 0, scores.clip(0) ** np.float32(alpha))  # 0 ** 0 is 1
        added = torch.from_numpy(weights).to(neighbors.device)[:, :, None] * neighbors
        sums = vectors.block(place.start, place.stop) + added.sum(dim=1)
        expanded[place] = F.normalize(sums, dim=1).cpu().numpy()
    return expanded
