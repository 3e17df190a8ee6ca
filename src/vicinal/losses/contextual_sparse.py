"""The contextual loss of small neighbourhoods, by sparse matrices: no matrix of all pairs is ever held."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.contextual_definition import Definition, similarity_of_kth, slack
from vicinal.losses.contextual_terms import Neighborhoods, Similarity
from vicinal.losses.matrices import SparseMatrix
from vicinal.tiles import default_tile_rows


def find_neighborhoods(vectors: Tensor, k: int, epsilon: float, most: float) -> Neighborhoods[SparseMatrix] | None:
    """The neighbourhoods of unit vectors [n, d], tile by tile; None as soon as there are more than `most` a row."""
    n, rows = len(vectors), default_tile_rows(len(vectors))
    tiles: list[tuple[Tensor, Tensor]] = []
    for start in range(0, n, rows):
        similarity = vectors[start : start + rows] @ vectors.T
        similarity.diagonal(start).fill_(1.0)
        of_near, of_close = (kth - slack(epsilon, kth.dtype) for kth in similarity_of_kth(similarity, k))
        near = (similarity >= of_near).nonzero()
        if len(near) > most * len(similarity):
            return None
        close = similarity[near[:, 0], near[:, 1]] >= of_close[near[:, 0], 0]
        tiles.append((near + torch.tensor([start, 0]), close))
    near, close = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return Neighborhoods(*(SparseMatrix.of_ones(entries, n, vectors.dtype) for entries in (near, near[close])))


def loss_of_neighborhoods(
    vectors: Tensor, labels: Tensor, found: Neighborhoods[SparseMatrix], of: Definition
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, differentiable once by the unit vectors [n, d]."""
    return _SparseLoss.apply(vectors, labels, found, of)


class _SparseLoss(torch.autograd.Function):
    """Forms the gradient with the value: both are of the same matrices."""

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, labels: Tensor, found: Neighborhoods[SparseMatrix], of: Definition
    ) -> Tensor:
        contextual = Similarity(found, of)
        error = (contextual.w() - SparseMatrix.of_classes(labels, vectors.dtype)).without_diagonal()
        if ctx.needs_input_grad[0]:
            gradient = _gradient(contextual, error, vectors.detach())
            ctx.save_for_backward(gradient.mul_(4 * of.alpha / len(labels) ** 2))
        return error.sum_of_squares() / len(labels) ** 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None


def _gradient(contextual: Similarity[SparseMatrix], by_w: SparseMatrix, vectors: Tensor) -> Tensor:
    """The gradient by the vectors: that by the similarities and its transpose, each times the vectors."""
    entries, by_common, by_row = contextual.gradient(by_w)
    total = entries.times(vectors).add_(entries.transposed_times(vectors))
    if by_common is not None and by_row is not None:
        near = contextual.near
        total += by_common.times(near.times(vectors))
        total += near.transposed_times(by_common.times(vectors))
        total.addr_(by_row, vectors.sum(dim=0)).add_(by_row @ vectors)
    return total
