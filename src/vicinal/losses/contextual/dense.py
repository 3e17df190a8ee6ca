"""The contextual loss by dense matrices: for neighborhoods of any size, for all variants, and for GPUs."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.contextual.matrices import DenseMatrix
from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, are_neighbors, contextual_similarity

D = TypeVar("D", bound=DenseMatrix)


def dense_loss(
    similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, variant: Variant, first: int = 0
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, where i = j contributes 0; differentiable once.

    Args:
        similarity: float [rows, n]; that of a sample to itself is overwritten. All n rows; without the matrix form also
            those of this process, of equally many on each: then the mean over processes is the loss.
        positive: bool [rows, n], the y.
        known: bool [rows, n], pairs whose y is known; others contribute 0. None: all, and y is symmetric.
        k: number of neighbors of a sample, including itself.
        variant: definition of contextual similarity.
        first: number of the first row.
    """
    similarity.diagonal(first).fill_(1.0)
    if variant.correct_gradient:
        negative = ~positive if known is None else known & ~positive
        similarity = _CorrectGradient.apply(similarity, positive, negative)
    if variant.has_matrix_form:
        return _DenseLoss.apply(similarity, positive, known, k, variant)
    rows, n = similarity.shape
    w = contextual_similarity(similarity, k, variant, slice(first, first + rows))
    return error_of(w, positive, known, first).square().sum() / (rows * n)


def error_of(w: Tensor, positive: Tensor, known: Tensor | None, first: int = 0) -> Tensor:
    """The difference w - y of some rows from `first` on, [rows, n]; 0 where it does not count."""
    error = w - positive.to(w.dtype)
    error.diagonal(first).fill_(0.0)
    return error if known is None else error.masked_fill_(~known, 0.0)


class _DenseLoss(torch.autograd.Function):
    """Computes the gradient with the value, from the same matrices."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, variant: Variant
    ) -> Tensor:
        near, close = (
            DenseMatrix(neighbors.to(similarity.dtype)) for neighbors in are_neighbors(similarity, k, variant.epsilon)
        )
        contextual = ContextualSimilarity(Neighborhoods(near, close), variant)
        error = DenseMatrix(error_of(contextual.w().values, positive, known))
        value = error.sum_of_squares() / len(positive) ** 2
        if ctx.needs_input_grad[0]:
            grad_w = (error + error.T).half() if variant.expansion and known is not None else error
            gradient = gradient_of(contextual, grad_w).values
            ctx.save_for_backward(gradient.mul_(4 * variant.alpha / len(positive) ** 2))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None, None


def gradient_of(contextual: ContextualSimilarity[D], grad_w: D) -> D:
    """The gradient with respect to the similarities, without its factor."""
    gradient = contextual.gradient(grad_w)
    total = gradient.entries
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total.add_product_(gradient.grad_common, contextual.near)
        total.values.add_(total.own(gradient.grad_rows))
    return total


class _CorrectGradient(torch.autograd.Function):
    """Eq. (10): removes the gradient that would push a positive pair apart or pull a negative pair together."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(positive, negative)
        return similarity.view_as(similarity)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        positive, negative = ctx.saved_tensors
        wrong = (positive & (upstream > 0)) | (negative & (upstream < 0))
        return upstream.masked_fill(wrong, 0.0), None, None
