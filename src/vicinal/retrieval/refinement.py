"""Refinement: every embedding is moved by its nearest neighbors before embeddings are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vicinal.models.execution import eval_mode
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import RerankedScores, Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk_size, check_same_dim
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

MAX_GATHERED_VALUES = 2**22  # of neighbors and attention heads in memory at a time; more would not fit into caches


def refine(
    refiner: ContextRefiner,
    embeddings: Array,
    gallery: Array | None = None,
    *,
    neighbors: int | None = None,
    depth: int | None = None,
    chunk_size: int | None = None,
) -> Floats:
    """Refine embeddings, each by its nearest neighbors: Context Refiner, Algorithm 2.

    Args:
        refiner: a refiner trained on embeddings of the same model; the computation runs on its device.
        embeddings: float [n, dim], numpy or torch, of any precision.
        gallery: float [g, dim], among which neighbors are searched; None searches among the other embeddings.
        neighbors: number of neighbors; None takes the refiner's own number. All are taken where there are fewer.
        depth: number of blocks; None applies all.
        chunk_size: number of embeddings at a time; None takes so many that about 32 MB are needed in addition to
            embeddings and result. (The search for neighbors takes about 64 MB.)

    Returns:
        float32 [n, dim], of length 1.

    Raises:
        InputError: an embedding contains NaN or infinity or has a different dimension, or a number is invalid.

    Example:
        >>> refine(ContextRefiner(dim=4, num_heads=2), np.eye(4)[[0, 0, 1]])  # an untrained refiner is the identity
        array([[1., 0., 0., 0.],
               [1., 0., 0., 0.],
               [0., 1., 0., 0.]], dtype=float32)
    """
    check_chunk_size(chunk_size)
    method = Refinement(refiner, "gallery", depth, neighbors)
    device = next(refiner.parameters()).device
    vectors = UnitVectors(embeddings, "embedding", device=device)
    refiner.check_dim(vectors.dim)  # before the search, which takes longest
    if gallery is None:
        query_gallery = QueryGallery.leave_one_out(vectors, chunk_size)
    else:
        others = UnitVectors(gallery, "gallery vector", device=device)
        query_gallery = QueryGallery(vectors, others, np.full(len(vectors), -1), chunk_size)
    return method.refine_queries(query_gallery)


@dataclass(frozen=True)
class Refinement(Reranking):
    """Refines the embeddings of queries and gallery and searches again: Context Refiner, Algorithm 2.

    The context of an image is its nearest neighbors without itself; other images of the same embedding may be among
    them. Where one set searches itself (leave-one-out), neighbors are searched among all other images, whatever
    `context` is.

    Args:
        refiner: a refiner trained on embeddings of the same model.
        context: where neighbors are searched if queries and gallery are separate: "everything", among queries and
            gallery together, as in the paper, so that the result of a query depends on the other queries; or "gallery",
            as in an index, whose gallery was refined before and whose queries come one by one.
        depth: number of blocks; None applies all.
        neighbors: number of neighbors; None takes the refiner's own number. All are taken where there are fewer. A
            refiner of the context "self" takes none.

    Raises:
        InputError: `context` is unknown or a number invalid; when applied: embeddings have a different dimension.

    Example:
        >>> from vicinal.retrieval import rerank
        >>> vectors, method = np.eye(4)[[0, 0, 1, 2]], Refinement(ContextRefiner(dim=4, num_heads=2))
        >>> rerank(vectors, vectors, 1, method, exclude_self=np.arange(4)).ids.ravel()
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
        if self.neighbors is not None and self.refiner.context == "self":
            raise InputError(f"Refinement: neighbors = {self.neighbors}, but the refiner has context = self")
        if self.depth is not None:
            self.refiner.check_depth(self.depth)

    @property
    def num_neighbors(self) -> int:
        if self.refiner.context == "self":
            return 0
        return self.refiner.neighbors if self.neighbors is None else self.neighbors

    @property
    def stage(self) -> str:
        return "refined"

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        self.refiner.check_dim(query_gallery.queries.dim)  # before the search, which takes longest
        if query_gallery.is_leave_one_out:
            refined = self._unit(self.refine_queries(query_gallery))
            return RerankedScores(refined, refined)
        is_outside = query_gallery.exclude_self < 0
        outside = query_gallery.queries.subset(np.flatnonzero(is_outside))
        gallery, chunk_size = query_gallery.gallery, query_gallery.chunk_size
        if self.context == "gallery":
            of_outside = QueryGallery(outside, gallery, np.full(len(outside), -1), chunk_size)
            searches = [QueryGallery.leave_one_out(gallery, chunk_size), of_outside]
        else:
            everything = torch.cat([vectors.block(0, len(vectors)) for vectors in (gallery, outside)])
            searches = [QueryGallery.leave_one_out(UnitVectors(everything, "embedding"), chunk_size)]
        refined = self._unit(np.concatenate([self.refine_queries(search) for search in searches]))
        size = len(gallery)  # the queries outside of the gallery come after it
        query_rows = np.where(is_outside, size + is_outside.cumsum() - 1, query_gallery.exclude_self)
        return RerankedScores(refined.subset(query_rows), refined.subset(np.arange(size)))

    def refine_queries(self, query_gallery: QueryGallery) -> Floats:
        """Refine the queries by their nearest gallery images, float32 [q, dim]."""
        context = self.find_context(query_gallery)
        return self.refine_vectors(query_gallery.queries, query_gallery.gallery, context, query_gallery.chunk_size)

    def find_context(self, query_gallery: QueryGallery) -> Integers:
        """Return the gallery rows of each query's neighbors, int64 [queries, k], as many as there are."""
        k = min(self.num_neighbors, query_gallery.max_neighbors)
        return query_gallery.query_neighbors(k).ids if k else np.empty((len(query_gallery.queries), 0), np.int64)

    def refine_vectors(
        self, vectors: UnitVectors, gallery: UnitVectors, context: Integers, chunk_size: int | None = None
    ) -> Floats:
        """Refine vectors by neighbors that are known.

        Args:
            vectors: [n, dim].
            gallery: [g, dim].
            context: int64 [n, k], the gallery rows of each vector's neighbors.
            chunk_size: number of vectors at a time; None takes so many that about 32 MB are needed.

        Returns:
            float32 [n, dim], of length 1.

        Raises:
            InputError: the dimensions differ.
        """
        refined = np.empty((len(vectors), vectors.dim), np.float32)
        for chunk, embeddings, neighbors in self._chunks(vectors, gallery, context, chunk_size):
            refined[chunk] = self.refiner(embeddings, neighbors, self.depth).float().cpu().numpy()
        return refined

    def attention(
        self, vectors: UnitVectors, gallery: UnitVectors, context: Integers, chunk_size: int | None = None
    ) -> Floats:
        """The attention to each neighbor, averaged over blocks and heads; arguments as in :meth:`refine_vectors`.

        Returns:
            float32 [n, k]; rows add up to 1, or to less where a null neighbor gets attention.
        """
        weights = np.empty(context.shape, np.float32)
        for chunk, embeddings, neighbors in self._chunks(vectors, gallery, context, chunk_size):
            of_blocks = self.refiner.attention_weights(embeddings, neighbors)[: self.depth]
            weights[chunk] = of_blocks.mean(dim=0).float().cpu().numpy()
        return weights

    def _chunks(
        self, vectors: UnitVectors, gallery: UnitVectors, context: Integers, chunk_size: int | None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, their embeddings and their neighbors [rows, k, dim], with the refiner in evaluation mode."""
        check_same_dim(vectors, gallery)
        self.refiner.check_dim(vectors.dim)
        k, weight = context.shape[1], next(self.refiner.parameters())
        rows = chunk_size or max(1, MAX_GATHERED_VALUES // (vectors.dim * (k + 2 * self.refiner.num_heads)))
        with eval_mode(self.refiner), torch.inference_mode():
            for start in range(0, len(vectors), rows):
                chunk = slice(start, min(start + rows, len(vectors)))
                embeddings = vectors.block(start, chunk.stop).to(weight)
                if self.refiner.context == "self":
                    yield chunk, embeddings, embeddings[:, None]
                else:
                    neighbors = gallery.take(context[chunk].ravel()).view(len(embeddings), k, vectors.dim)
                    yield chunk, embeddings, neighbors.to(weight)

    def _unit(self, refined: Floats) -> UnitVectors:
        return UnitVectors(refined, "refined embedding", device=next(self.refiner.parameters()).device)

    def __repr__(self) -> str:
        depth = self.refiner.depth if self.depth is None else self.depth
        return f"Refinement(depth={depth}, neighbors={self.num_neighbors}, context={self.context!r})"
