"""The contextual loss of small neighborhoods by sparse matrices: no matrix of all pairs is ever held."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.losses.contextual.matrices import SparseMatrix
from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, similarity_of_kth, slack, with_gradient
from vicinal.similarity.tiles import default_tile_rows
from vicinal.utils import distributed

Found = tuple[Tensor, Tensor]
NOTHING: Found = (torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.bool))


def find_neighborhoods(
    vectors: Tensor, k: int, epsilon: float, max_neighbors: float, is_divided: bool = False
) -> Neighborhoods[SparseMatrix] | None:
    """Find the neighborhoods of unit vectors [n, d], tile by tile.

    Args:
        vectors: float [n, d].
        k: number of neighbors, including the sample itself.
        epsilon: by how much larger a squared distance may be than the k-th.
        max_neighbors: as below.
        is_divided: whether the processes, which hold the same vectors, each search for a part of them.

    Returns:
        The neighborhoods; None if the mean number of neighbors of the rows of a tile exceeds `max_neighbors`.
    """
    n = len(vectors)
    span = distributed.own_rows(n) if is_divided else slice(0, n)
    search, step = NeighborSearch(k, epsilon, max_neighbors), default_tile_rows(n, vectors.device)
    for start in range(span.start, span.stop, step):
        tile = slice(start, min(start + step, span.stop))
        search.look(vectors[tile] @ vectors.T, tile)
        if search.found is None:
            break
    found = _gathered(search.found) if is_divided else search.found
    return neighborhoods_of(found, n, vectors.dtype)


def neighborhoods_of(found: list[Found] | None, n: int, dtype: torch.dtype) -> Neighborhoods[SparseMatrix] | None:
    """The neighborhoods of n samples from what was found of them, in order."""
    if found is None:
        return None
    near, close = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Neighborhoods(*(SparseMatrix.from_indices(entries, n, dtype) for entries in (near, near[close])))


class NeighborSearch:
    """A search for neighbors in the similarities of all samples, tile by tile; for the arguments see above.

    Attributes:
        found: of each tile row and column of the neighbors, int64 [m, 2], and whether it is a close one, bool [m]; None
            once there were too many.
    """

    def __init__(self, k: int, epsilon: float, max_neighbors: float) -> None:
        self.k, self.epsilon, self.max_neighbors = k, epsilon, max_neighbors
        self.found: list[Found] | None = [NOTHING]

    def look(self, similarity: Tensor, span: slice) -> None:
        """Search the similarities [rows, n] of a span of samples; those to themselves become 1."""
        if self.found is None:
            return
        similarity.diagonal(span.start).fill_(1.0)
        kths = similarity_of_kth(similarity, self.k)
        min_near, min_close = (kth - slack(self.epsilon, kth.dtype) for kth in kths)
        near = (similarity >= min_near).nonzero()
        if len(near) > self.max_neighbors * len(similarity):
            self.found = None
            return
        close = similarity[near[:, 0], near[:, 1]] >= min_close[near[:, 0], 0]
        self.found.append((near + torch.tensor([span.start, 0]), close))


def _gathered(found: list[Found] | None) -> list[Found] | None:
    """The neighbors that all processes have found, in order; None if one of them has found too many."""
    near, close = (torch.cat(parts) for parts in zip(*(found or [NOTHING]), strict=True))
    own = -1 if found is None else len(near)
    is_own = [rank == distributed.rank() for rank in range(distributed.world_size())]
    lengths = [int(length) for length in distributed.all_reduce_values([own * each for each in is_own])]
    if min(lengths) < 0:
        return None
    entries = distributed.all_gather_parts(torch.cat([near, close[:, None]], dim=1).int(), lengths)
    return [(entries[:, :2].long(), entries[:, 2].bool())]


def sparse_loss(
    vectors: Tensor, labels: Tensor, neighborhoods: Neighborhoods[SparseMatrix], variant: Variant
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`; differentiable once with respect to unit vectors [n, d]."""

    def loss(vectors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        contextual = ContextualSimilarity(neighborhoods, variant)
        error = (contextual.w() - SparseMatrix.from_labels(labels, vectors.dtype)).without_diagonal()
        value = error.sum_of_squares() / len(labels) ** 2
        if not needs_gradient:
            return value, None
        return value, _gradient(contextual, error, vectors).mul_(4 * variant.alpha / len(labels) ** 2)

    return with_gradient(loss, vectors)


def _gradient(contextual: ContextualSimilarity[SparseMatrix], grad_w: SparseMatrix, vectors: Tensor) -> Tensor:
    """The gradient with respect to the vectors: that of the similarities and its transpose, each times the vectors."""
    gradient, near = contextual.gradient(grad_w), contextual.near
    total = gradient.entries.times(vectors).add_(gradient.entries.transposed_times(vectors))
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total += gradient.grad_common.times(near.times(vectors))
        total += near.transposed_times(gradient.grad_common.times(vectors))
        total.addr_(gradient.grad_rows, vectors.sum(dim=0)).add_(gradient.grad_rows @ vectors)
    return total
