"""The contextual loss of small neighborhoods by sparse matrices: no matrix of all pairs is ever held."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.contextual.matrices import SparseMatrix
from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, similarity_of_kth, slack
from vicinal.similarity.tiles import default_tile_rows
from vicinal.utils import distributed


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
    found = _search(vectors, distributed.own_rows(n) if is_divided else slice(0, n), k, epsilon, max_neighbors)
    found = _gathered(found) if is_divided else found
    if found is None:
        return None
    near, close = found
    return Neighborhoods(*(SparseMatrix.from_indices(entries, n, vectors.dtype) for entries in (near, near[close])))


def _search(vectors: Tensor, span: slice, k: int, epsilon: float, max_neighbors: float) -> tuple[Tensor, Tensor] | None:
    """The neighbors of a span of rows: row and column, int64 [m, 2], and whether it is a close one, bool [m]."""
    step = default_tile_rows(len(vectors), vectors.device)
    tiles = [(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.bool))]
    for start in range(span.start, span.stop, step):
        similarity = vectors[start : min(start + step, span.stop)] @ vectors.T
        similarity.diagonal(start).fill_(1.0)
        min_near, min_close = (kth - slack(epsilon, kth.dtype) for kth in similarity_of_kth(similarity, k))
        near = (similarity >= min_near).nonzero()
        if len(near) > max_neighbors * len(similarity):
            return None
        close = similarity[near[:, 0], near[:, 1]] >= min_close[near[:, 0], 0]
        tiles.append((near + torch.tensor([start, 0]), close))
    near, close = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return near, close


def _gathered(found: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """The neighbors that all processes have found, in order; None if one of them has found too many."""
    own = -1 if found is None else len(found[0])
    is_own = [rank == distributed.rank() for rank in range(distributed.world_size())]
    lengths = [int(length) for length in distributed.all_reduce_values([own * each for each in is_own])]
    if min(lengths) < 0 or found is None:
        return None
    entries = torch.cat([found[0], found[1][:, None]], dim=1).int()
    entries = distributed.all_gather_parts(entries, lengths)
    return entries[:, :2].long(), entries[:, 2].bool()


def sparse_loss(
    vectors: Tensor, labels: Tensor, neighborhoods: Neighborhoods[SparseMatrix], variant: Variant
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`; differentiable once with respect to unit vectors [n, d]."""
    return _SparseLoss.apply(vectors, labels, neighborhoods, variant)


class _SparseLoss(torch.autograd.Function):
    """Computes the gradient with the value, from the same matrices."""

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, labels: Tensor, neighborhoods: Neighborhoods[SparseMatrix], variant: Variant
    ) -> Tensor:
        contextual = ContextualSimilarity(neighborhoods, variant)
        error = (contextual.w() - SparseMatrix.from_labels(labels, vectors.dtype)).without_diagonal()
        if ctx.needs_input_grad[0]:
            gradient = _gradient(contextual, error, vectors.detach())
            ctx.save_for_backward(gradient.mul_(4 * variant.alpha / len(labels) ** 2))
        return error.sum_of_squares() / len(labels) ** 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None


def _gradient(contextual: ContextualSimilarity[SparseMatrix], grad_w: SparseMatrix, vectors: Tensor) -> Tensor:
    """The gradient with respect to the vectors: that of the similarities and its transpose, each times the vectors."""
    gradient, near = contextual.gradient(grad_w), contextual.near
    total = gradient.entries.times(vectors).add_(gradient.entries.transposed_times(vectors))
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total += gradient.grad_common.times(near.times(vectors))
        total += near.transposed_times(gradient.grad_common.times(vectors))
        total.addr_(gradient.grad_rows, vectors.sum(dim=0)).add_(gradient.grad_rows @ vectors)
    return total
