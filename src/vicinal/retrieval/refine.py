"""Refinement: every embedding looks at its nearest neighbours before it is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from vicinal.errors import InputError
from vicinal.models.embedder import evaluating
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.rerank import Reranked, Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk, check_same_dim
from vicinal.retrieval.sides import Sides

Integers = npt.NDArray[np.int64]

GATHERED_NUMBERS = 2**22  # numbers of neighbours, and of what heads make of them, held at a time, so that caches help


def refine(
    refiner: ContextRefiner,
    embeddings: Array,
    gallery: Array | None = None,
    *,
    neighbors: int | None = None,
    depth: int | None = None,
    chunk: int | None = None,
) -> npt.NDArray[np.float32]:
    """Refine embeddings, each by its nearest neighbours: Context Refiner, Algorithm 2.

    Args:
        refiner: trained on embeddings of the same model; computes where it lies.
        embeddings: float [n, dim], numpy or torch, any precision.
        gallery: float [g, dim], where neighbours are looked for; None: among the embeddings, without oneself.
        neighbors: how many; None: as many as the refiner was made for. Fewer where there are fewer.
        depth: blocks; None: all.
        chunk: embeddings at a time; by default so many that about 32 MB are needed beside embeddings and result. (The
            search for neighbours takes about 64 MB.)

    Returns:
        float32 [n, dim], of length 1.

    Raises:
        InputError: NaN or infinity, another dimension, or an impossible depth or number.

    Example:
        >>> refine(ContextRefiner(dim=4, heads=2), np.eye(4)[[0, 0, 1]])  # not trained: the identity
        array([[1., 0., 0., 0.],
               [1., 0., 0., 0.],
               [0., 1., 0., 0.]], dtype=float32)
    """
    check_chunk(chunk)
    device = next(refiner.parameters()).device
    vectors = UnitVectors(embeddings, "embedding", device=device)
    others = vectors if gallery is None else UnitVectors(gallery, "gallery vector", device=device)
    itself = np.arange(len(vectors)) if gallery is None else np.full(len(vectors), -1)
    sides = Sides(vectors, others, itself, chunk)
    method = Refinement(refiner, "gallery", depth, neighbors)
    refiner.check_dim(vectors.dim)  # before the search, which takes longest
    return method.refined(vectors, others, method.neighbors_of_queries(sides), chunk)


@dataclass(frozen=True)
class Refinement(Reranking):
    """Refines queries and gallery and searches again: Context Refiner, Algorithm 2.

    The context of an image is its nearest neighbours, never itself; other images with the same embedding may be among
    them. Where one set searches itself (leave-one-out) these are all other images, whatever `context` says.

    Args:
        refiner: trained on embeddings of the same model.
        context: with separate queries and gallery, where neighbours are looked for: "everything", queries and gallery
            together, as the paper does, so that what is found for a query depends on what else is asked; or "gallery",
            as in an index, where queries come one by one and the gallery was refined before.
        depth: blocks; None: all.
        neighbors: how many; None: as many as the refiner was made for. Fewer where there are fewer. A refiner that
            looks at itself takes none.

    Raises:
        InputError: an unknown context, or an impossible depth or number; when applied: another dimension.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> vectors, method = np.eye(4)[[0, 0, 1, 2]], Refinement(ContextRefiner(dim=4, heads=2))
        >>> rerank(vectors, vectors, 1, method, exclude=np.arange(4)).indices.ravel()
        array([1, 0, 0, 0])
    """

    refiner: ContextRefiner
    context: Literal["everything", "gallery"] = "everything"
    depth: int | None = None
    neighbors: int | None = None

    def __post_init__(self) -> None:
        if self.context not in ("everything", "gallery"):
            raise InputError(f"Refinement: context = {self.context!r} must be everything or gallery")
        if self.neighbors is not None and (self.neighbors != 0 or isinstance(self.neighbors, bool)):
            self._check_counts("neighbors")
        if self.neighbors is not None and self.refiner.context == "itself":
            raise InputError(f"Refinement: neighbors = {self.neighbors}, but this refiner looks at itself alone")
        if self.depth is not None:
            self.refiner.check_depth(self.depth)

    @property
    def reach(self) -> int:
        if self.refiner.context == "itself":
            return 0
        return self.refiner.neighbors if self.neighbors is None else self.neighbors

    @property
    def outcome(self) -> str:
        return "refined"

    def apply(self, sides: Sides) -> Reranked:
        self.refiner.check_dim(sides.queries.dim)  # before the search, which takes longest
        if sides.same:
            return self._of_one_set(sides)
        return self._of_gallery(sides) if self.context == "gallery" else self._of_everything(sides)

    def _of_one_set(self, sides: Sides) -> Reranked:
        refined = self._unit(self.refined(sides.queries, sides.queries, self.neighbors_of_queries(sides), sides.chunk))
        return Reranked(refined, refined)

    def _of_gallery(self, sides: Sides) -> Reranked:
        """The gallery looks at itself, and queries that are no gallery images look at the gallery."""
        gallery, strangers = sides.gallery, sides.queries.subset(np.flatnonzero(sides.places < 0))
        of_gallery = Sides(gallery, gallery, np.arange(len(gallery)), sides.chunk)
        of_strangers = Sides(strangers, gallery, np.full(len(strangers), -1), sides.chunk)
        parts = [
            self.refined(each.queries, gallery, self.neighbors_of_queries(each), sides.chunk)
            for each in (of_gallery, of_strangers)
        ]
        return _parted(self._unit(np.concatenate(parts)), sides)

    def _of_everything(self, sides: Sides) -> Reranked:
        """Queries that are no gallery images are put behind the gallery, and one set searches itself."""
        strangers = sides.queries.subset(np.flatnonzero(sides.places < 0))
        parts = [vectors.block(0, len(vectors)) for vectors in (sides.gallery, strangers)]
        everything = UnitVectors(torch.cat(parts), "embedding")
        refined = self._of_one_set(Sides(everything, everything, np.arange(len(everything)), sides.chunk)).queries
        return _parted(refined, sides)

    def neighbors_of_queries(self, sides: Sides) -> Integers:
        """Gallery rows [queries, k], fewer than wanted where there are fewer; none if the refiner asks for none."""
        wanted = min(self.reach, sides.most)
        return sides.nearest_of_queries(wanted).indices if wanted else np.empty((len(sides.queries), 0), np.int64)

    def refined(
        self, vectors: UnitVectors, gallery: UnitVectors, neighbors: Integers, chunk: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Refine vectors, float32 [n, dim], by gallery rows [n, k]."""
        check_same_dim(vectors, gallery)
        self.refiner.check_dim(vectors.dim)
        k, weight = neighbors.shape[1], next(self.refiner.parameters())
        rows = chunk or max(1, GATHERED_NUMBERS // (vectors.dim * (k + 2 * self.refiner.heads)))
        refined = np.empty((len(vectors), vectors.dim), np.float32)
        with evaluating(self.refiner), torch.inference_mode():
            for start in range(0, len(vectors), rows):
                place = slice(start, min(start + rows, len(vectors)))
                some = vectors.block(start, place.stop).to(weight)
                if self.refiner.context == "itself":
                    context = some[:, None]
                else:
                    context = gallery.take(neighbors[place].ravel()).view(len(some), k, vectors.dim).to(weight)
                refined[place] = self.refiner(some, context, self.depth).float().cpu().numpy()
        return refined

    def _unit(self, refined: npt.NDArray[np.float32]) -> UnitVectors:
        return UnitVectors(refined, "refined embedding", device=next(self.refiner.parameters()).device)

    def __repr__(self) -> str:
        depth = self.refiner.depth if self.depth is None else self.depth
        return f"Refinement(depth={depth}, neighbors={self.reach}, context={self.context!r})"


def _parted(refined: UnitVectors, sides: Sides) -> Reranked:
    """Queries and gallery of refined vectors in which strangers to the gallery stand behind it."""
    outside, size = sides.places < 0, len(sides.gallery)
    places = np.where(outside, size + outside.cumsum() - 1, sides.places)
    return Reranked(refined.subset(places), refined.subset(np.arange(size)))
