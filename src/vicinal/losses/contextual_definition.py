"""Contextual similarity as the paper writes it down, with autograd: for the variants of smooth membership.

Those are the sigmoid and the minimum. Of steps and products value and gradient are formed in `contextual_terms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

MOST_MINIMA = 2**22
"""Minima of two memberships that are made at a time."""


@dataclass(frozen=True)
class Definition:
    """What contextual similarity is: the paper's by default. The fields are arguments of `ContextualLoss`."""

    epsilon: float = 0.05
    alpha: float = 10.0
    theta: Literal["step", "sigmoid"] = "step"
    temperature: float = 0.1
    conjunction: Literal["product", "min"] = "product"
    complement: bool = True
    intersection: bool = True
    expansion: bool = True
    detach_sizes: bool = True
    detach_expansion_size: bool = False
    correct_gradient: bool = False


def contextual_similarity(similarity: Tensor, k: int, of: Definition) -> Tensor:
    """Eq. (1) to (4): `w` of similarities, float [n, n] both, those of a sample with itself being 1."""
    of_near, of_close = similarity_of_kth(similarity, k)
    near, far = _neighborhood(similarity, of_near, of)
    shared = _and(near, _agreement(near, far, of), of) if of.intersection else near
    return _expanded(shared, _neighborhood(similarity, of_close, of)[0], of) if of.expansion else shared


def similarity_of_kth(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The similarity of each row's k-th nearest, its own sample included, and of its k // 2-th, [rows, 1] each."""
    nearest = similarity.detach().topk(k, dim=1).values.clamp_max_(1.0)
    return nearest[:, k - 1 :], nearest[:, k // 2 - 1 : k // 2]


def slack(epsilon: float, dtype: torch.dtype) -> float:
    """By how much less similar than the k-th a neighbour may be."""
    # Half the squared distance of unit vectors is 1 - s. Products of matrices of other shapes round differently, and
    # what differs by no more than that is a tie.
    return epsilon / 2 + 16 * torch.finfo(dtype).eps


def _neighborhood(similarity: Tensor, kth: Tensor, of: Definition) -> tuple[Tensor, Tensor]:
    """Eq. (2) or (21): how much each column is a neighbour of its row, and how much it is not."""
    if of.theta == "sigmoid":
        margin = (similarity - kth + of.epsilon / 2) * (2 / of.temperature)
        return margin.sigmoid(), (-margin).sigmoid()
    near = _Step.apply(similarity - (kth - slack(of.epsilon, kth.dtype)), 2 * of.alpha)
    return near, 1 - near


def _agreement(near: Tensor, far: Tensor, of: Definition) -> Tensor:
    """Eq. (3) without its first factor: the shares of a row's neighbours, and of its others, that a column has too."""
    share = _share_in_common(near, of)
    return (share + _share_in_common(far, of)) / 2 if of.complement else share


def _share_in_common(members: Tensor, of: Definition) -> Tensor:
    """What share of a row's members are members of a column's row too; all of none."""
    sizes = members.sum(dim=1, keepdim=True)
    common = members @ members.T if of.conjunction == "product" else _sums_of_minima(members)
    none = sizes.detach() == 0
    sizes = sizes.detach() if of.detach_sizes else sizes
    return (common + none) / sizes.masked_fill(none, 1.0)


def _sums_of_minima(members: Tensor) -> Tensor:
    """For each two rows of [n, n] the sum of the lesser of their entries: [n, n], in memory of some rows at a time."""
    parts = torch.split(members, max(1, MOST_MINIMA // members.numel()))
    return torch.cat([checkpoint(_minima_with, part, members, use_reentrant=False) for part in parts])


def _minima_with(part: Tensor, members: Tensor) -> Tensor:
    return torch.minimum(part[:, None], members).sum(dim=2)


def _expanded(shared: Tensor, close: Tensor, of: Definition) -> Tensor:
    """Eq. (4): averaged over close reciprocal neighbours, and made symmetric."""
    reciprocal = _and(close, close.T, of)
    sizes = reciprocal.sum(dim=1, keepdim=True)
    averaged = reciprocal @ shared / (sizes.detach() if of.detach_expansion_size else sizes)
    return (averaged + averaged.T) / 2


def _and(a: Tensor, b: Tensor, of: Definition) -> Tensor:
    return a * b if of.conjunction == "product" else torch.minimum(a, b)


class _Step(torch.autograd.Function):
    """Eq. (1): 1 from 0 on, else 0, as if it had a constant slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.slope = slope
        return (x >= 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * ctx.slope, None
