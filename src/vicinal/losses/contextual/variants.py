"""Contextual similarity as in the paper, with autograd: for smooth memberships, the sigmoid and the minimum.

For steps and products value and gradient are computed in `matrix_form`. All matrices are [rows, n], the rows of all n
samples or those of one of several processes, which gather the rows of the others with their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.utils import distributed

MAX_DIFFERENCES = 2**26  # number of differences of two memberships that are held at a time


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The definition of contextual similarity. The fields are arguments of `ContextualLoss`."""

    epsilon: float
    alpha: float
    theta: Literal["step", "sigmoid"]
    temperature: float
    conjunction: Literal["product", "min"]
    complement: bool
    intersection: bool
    expansion: bool
    detach_sizes: bool
    detach_expansion_size: bool
    correct_gradient: bool

    @property
    def has_matrix_form(self) -> bool:
        """Whether value and gradient are products of matrices."""
        return self.theta == "step" and self.conjunction == "product"


def contextual_similarity(similarity: Tensor, k: int, variant: Variant, span: slice) -> Tensor:
    """Eq. (1) to (4): `w` [rows, n] of the rows of this process, equally many on each; self-similarities are 1."""
    kth_near, kth_close = similarity_of_kth(similarity, k)
    near, far = _neighborhood(similarity, kth_near, variant)
    w1 = _conjunction(near, _agreement(near, far, variant), variant) if variant.intersection else near
    return _expand(w1, _neighborhood(similarity, kth_close, variant)[0], variant, span) if variant.expansion else w1


def similarity_of_kth(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The similarity of each row to its k-th nearest, its own sample included, and to its k // 2-th, [rows, 1] each."""
    nearest = similarity.detach().topk(k, dim=1).values.clamp_max_(1.0)
    return nearest[:, k - 1 :], nearest[:, k // 2 - 1 : k // 2]


def are_neighbors(similarity: Tensor, k: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Which columns are among the k nearest of their row, or as near up to epsilon, and which among its k // 2."""
    near, close = (similarity >= kth - slack(epsilon, kth.dtype) for kth in similarity_of_kth(similarity, k))
    return near, close


def slack(epsilon: float, dtype: torch.dtype) -> float:
    """The largest difference by which a neighbor may be less similar than the k-th."""
    # Half the squared distance of unit vectors is 1 - s. Matrix products of different shapes round differently, and
    # similarities that differ by no more than that are ties.
    return epsilon / 2 + 16 * torch.finfo(dtype).eps


def _neighborhood(similarity: Tensor, kth: Tensor, variant: Variant) -> tuple[Tensor, Tensor]:
    """Eq. (2) or (21): how much each column is a neighbor of its row, and how much it is not."""
    if variant.theta == "sigmoid":
        margin = (similarity - kth + variant.epsilon / 2) * (2 / variant.temperature)
        return margin.sigmoid(), (-margin).sigmoid()
    near = _Step.apply(similarity - (kth - slack(variant.epsilon, kth.dtype)), 2 * variant.alpha)
    return near, 1 - near


def _agreement(near: Tensor, far: Tensor, variant: Variant) -> Tensor:
    """Eq. (3) without its first factor: the fractions of neighbors, and of non-neighbors, in common with a column."""
    fraction = _fraction_in_common(near, variant)
    return (fraction + _fraction_in_common(far, variant)) / 2 if variant.complement else fraction


def _fraction_in_common(members: Tensor, variant: Variant) -> Tensor:
    """The fraction of a row's members that are members of a column's row too; 1 for a row without members."""
    sizes, all_members = members.sum(dim=1, keepdim=True), _gather_rows(members)
    common = members @ all_members.T if variant.conjunction == "product" else _sums_of_minima(members, all_members)
    is_empty = sizes.detach() == 0
    sizes = sizes.detach() if variant.detach_sizes else sizes
    return (common + is_empty) / sizes.masked_fill(is_empty, 1.0)


def _sums_of_minima(members: Tensor, all_members: Tensor) -> Tensor:
    """The sum of the elementwise minima of each row of [rows, n] and each row of [n, n], [rows, n]."""
    # min(a, b) = (a + b - |a - b|) / 2. On a GPU in blocks of rows, as the gradient of `cdist` holds all differences.
    step = len(members) if members.device.type == "cpu" else max(1, MAX_DIFFERENCES // all_members.numel())
    distances = torch.cat([torch.cdist(part, all_members, p=1.0) for part in torch.split(members, step)])
    return (members.sum(dim=1)[:, None] + all_members.sum(dim=1) - distances) / 2


def _expand(w1: Tensor, close: Tensor, variant: Variant, span: slice) -> Tensor:
    """Eq. (4): the average over close reciprocal neighbors, made symmetric."""
    reciprocal = _conjunction(close, _transpose_rows(close, span), variant)
    sizes = reciprocal.sum(dim=1, keepdim=True)
    w2 = reciprocal @ _gather_rows(w1) / (sizes.detach() if variant.detach_expansion_size else sizes)
    return (w2 + _transpose_rows(w2, span)) / 2


def _gather_rows(rows: Tensor) -> Tensor:
    """The matrix [n, n], gathered from all processes unless these are all of its rows."""
    return rows if len(rows) == rows.shape[1] else distributed.all_gather(rows)


def _transpose_rows(rows: Tensor, span: slice) -> Tensor:
    """The rows of a span of the transpose, [rows, n]."""
    return _gather_rows(rows)[:, span].T


def _conjunction(a: Tensor, b: Tensor, variant: Variant) -> Tensor:
    return a * b if variant.conjunction == "product" else torch.minimum(a, b)


class _Step(torch.autograd.Function):
    """Eq. (1): 1 from 0 on, else 0, with a constant in place of its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.slope = slope
        return (x >= 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * ctx.slope, None


def with_gradient(function: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]], x: Tensor) -> Tensor:
    """The value of a function of one tensor; differentiable once, whatever autocast is in the backward pass.

    The function computes, from `x` detached, its value and, if the second argument says so, its gradient.
    """
    return _WithGradient.apply(function, x)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]], x: Tensor) -> Tensor:
        value, gradient = function(x.detach(), ctx.needs_input_grad[1])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        (gradient,) = ctx.saved_tensors
        return None, gradient * upstream
