"""Histograms of similarities whose counts have a gradient: each similarity is shared by the two nodes beside it.

The nodes lie from -1 to 1 at equal distances, both ends included; a similarity's shares fall linearly with its distance
from the nodes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def soft_histogram(similarity: Tensor, bins: int) -> Tensor:
    """What each row has at each node, [rows, bins + 1]; differentiable once.

    Args:
        similarity: float [rows, columns], in [-1, 1], or -inf for none.
        bins: number of intervals between nodes.

    Example:
        >>> soft_histogram(torch.tensor([[-1.0, 0.25, -float("inf")]]), bins=4)
        tensor([[1.0000, 0.0000, 0.5000, 0.5000, 0.0000]])
    """
    return _SoftHistogram.apply(similarity, bins)


class _SoftHistogram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, bins: int) -> Tensor:
        ctx.save_for_backward(similarity)
        ctx.bins = bins
        return node_counts(similarity, bins)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (similarity,) = ctx.saved_tensors
        return slopes_at(similarity, upstream.diff(dim=1) * (ctx.bins / 2)), None


def node_counts(similarity: Tensor, bins: int) -> Tensor:
    """As :func:`soft_histogram`, without gradient."""
    position = _position(similarity, bins)
    columns = _whole(position)
    upper = position.frac()
    lower = 1 - upper
    nodes = similarity.new_zeros(len(similarity), bins + 4)
    to_lower, to_upper = nodes.scatter_add(1, columns, lower), nodes.scatter_add(1, columns, upper)
    return to_lower[:, 2:-1] + to_upper[:, 1:-2]


def slopes_at(similarity: Tensor, slopes: Tensor) -> Tensor:
    """For each similarity the slope between the two nodes beside it, [rows, columns]; 0 for none.

    Args:
        similarity: float [rows, columns].
        slopes: float [bins], for all rows, or [rows, bins].
    """
    columns = _whole(_position(similarity.detach(), slopes.shape[-1]))
    return F.pad(slopes, (2, 2)).expand(len(columns), -1).gather(1, columns)


def _position(similarity: Tensor, bins: int) -> Tensor:
    """How many bins a similarity lies above -1, and 2 more; 0 where there is no pair."""
    position = (similarity * (bins / 2)).add_(bins / 2 + 2)
    # A broken embedding makes the loss NaN elsewhere; here it must not become a column.
    return torch.threshold_(position, 1.5, 0.0).nan_to_num_(0.0)


def _whole(position: Tensor) -> Tensor:
    return position.int().long()  # quicker than at once
