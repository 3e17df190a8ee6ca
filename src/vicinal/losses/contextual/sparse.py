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


def find_neighborhoods(
    vectors: Tensor, k: int, epsilon: float, max_neighbors: float
) -> Neighborhoods[SparseMatrix] | None:
    """Find the neighborhoods of unit vectors [n, d], tile by tile.

    Returns:
        The neighborhoods; None if the mean number of neighbors of the rows of a tile exceeds `max_neighbors`.
    """
    n, rows = len(vectors), default_tile_rows(len(vectors), vectors.device)
    tiles: list[tuple[Tensor, Tensor]] = []
    for start in range(0, n, rows):
        similarity = vectors[start : start + rows] @ vectors.T
        similarity.diagonal(start).fill_(1.0)
        min_near, min_close = (kth - slack(epsilon, kth.dtype) for kth in similarity_of_kth(similarity, k))
        near = (similarity >= min_near).nonzero()
        if len(near) > max_neighbors * len(similarity):
            return None
        close = similarity[near[:, 0], near[:, 1]] >= min_close[near[:, 0], 0]
        tiles.append((near + torch.tensor([start, 0]), close))
    near, close = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return Neighborhoods(*(SparseMatrix.from_indices(entries, n, vectors.dtype) for entries in (near, near[close])))


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
