"""The contextual loss by whole matrices: for neighbourhoods of any size, for every variant, and for GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.contextual_definition import Definition, contextual_similarity, similarity_of_kth, slack
from vicinal.losses.contextual_terms import Neighborhoods, Similarity
from vicinal.losses.matrices import DenseMatrix


def loss_of_similarities(similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, of: Definition) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, differentiable once; i = j adds 0.

    Args:
        similarity: float [n, n]; its diagonal is overwritten.
        positive: bool [n, n], the y.
        known: bool [n, n], pairs whose y is known; the others add 0. None: all, and y is symmetric.
        k: neighbours of a sample, itself included.
        of: which contextual similarity.
    """
    similarity = similarity.fill_diagonal_(1.0)
    if of.correct_gradient:
        similarity = _CorrectGradient.apply(similarity, positive, ~positive if known is None else known & ~positive)
    if of.theta == "step" and of.conjunction == "product":
        return _DenseLoss.apply(similarity, positive, known, k, of)
    return _error(contextual_similarity(similarity, k, of), positive, known).square().sum() / len(positive) ** 2


def _error(w: Tensor, positive: Tensor, known: Tensor | None) -> Tensor:
    """The difference w - y, 0 where it does not count."""
    error = (w - positive.to(w.dtype)).fill_diagonal_(0.0)
    return error if known is None else error.masked_fill_(~known, 0.0)


class _DenseLoss(torch.autograd.Function):
    """Forms the gradient with the value: both are of the same matrices."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, of: Definition) -> Tensor:
        near, close = (
            DenseMatrix((similarity >= kth - slack(of.epsilon, kth.dtype)).to(kth.dtype))
            for kth in similarity_of_kth(similarity, k)
        )
        contextual = Similarity(Neighborhoods(near, close), of)
        error = DenseMatrix(_error(contextual.w().values, positive, known))
        value = error.sum_of_squares() / len(positive) ** 2
        if ctx.needs_input_grad[0]:
            by_w = (error + error.T).half() if of.expansion and known is not None else error
            ctx.save_for_backward(_gradient(contextual, by_w).mul_(4 * of.alpha / len(positive) ** 2))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None, None


def _gradient(contextual: Similarity[DenseMatrix], by_w: DenseMatrix) -> Tensor:
    entries, by_common, by_row = contextual.gradient(by_w)
    total = entries.values
    if by_common is not None and by_row is not None:
        total.addmm_(by_common.values, contextual.near.values).add_(by_row[:, None])
    return total


class _CorrectGradient(torch.autograd.Function):
    """Eq. (10): no gradient that would push a positive pair apart or pull a negative one together."""

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
