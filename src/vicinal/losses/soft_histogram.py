"""Histograms of similarities that are differentiable: each similarity is divided between the two nodes next to it.

The nodes are equidistant from -1 to 1, both ends included. The parts of a similarity decrease linearly with its
distance from the nodes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def soft_histogram(similarity: Tensor, bins: int) -> Tensor:
    """The histogram of each row, [rows, bins + 1]; differentiable once.

    Args:
        similarity: float [rows, columns], in [-1, 1], or -inf, which is not counted.
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
    """The same as :func:`soft_histogram`, without gradient."""
    position = _position(similarity, bins)
    columns = _floor(position)
    upper = position.frac()
    lower = 1 - upper
    nodes = similarity.new_zeros(len(similarity), bins + 4)
    to_lower, to_upper = nodes.scatter_add(1, columns, lower), nodes.scatter_add(1, columns, upper)
    return to_lower[:, 2:-1] + to_upper[:, 1:-2]


def slopes_at(similarity: Tensor, slopes: Tensor) -> Tensor:
    """For each similarity the slope between the two nodes next to it, [rows, columns]; 0 for -inf.

    Args:
        similarity: float [rows, columns].
        slopes: float [bins], for all rows, or [rows, bins].
    """
    columns = _floor(_position(similarity.detach(), slopes.shape[-1]))
    return F.pad(slopes, (2, 2)).expand(len(columns), -1).gather(1, columns)


def _position(similarity: Tensor, bins: int) -> Tensor:
    """The distance of each similarity from -1 in bins, plus 2; 0 for padding."""
    position = (similarity * (bins / 2)).add_(bins / 2 + 2)
    # A NaN, which makes the loss NaN elsewhere, must not become a column index.
    return torch.threshold_(position, 1.5, 0.0).nan_to_num_(0.0)


def _floor(position: Tensor) -> Tensor:
    return position.int().long()  # faster than .long() alone
