"""Products of a gradient with few entries, as of a loss with a margin that most pairs keep, and vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_FRACTION = 1 / 64
"""Up to this fraction of nonzero entries gathering vectors is cheaper than a matrix product."""
SAMPLED_ROWS = 16
"""One of so many rows is counted first, as counting takes long where there are many entries."""


def is_sparse(gradient: Tensor) -> bool:
    """Whether a gradient has so few entries that :func:`add_sparse_products` is cheap. A GPU is not waited for."""
    parts = (gradient[::SAMPLED_ROWS], gradient)
    return gradient.device.type == "cpu" and all(
        int(part.count_nonzero()) <= MAX_FRACTION * part.numel() for part in parts
    )


def add_sparse_products(
    gradient: Tensor, anchors: Tensor, references: Tensor, totals: tuple[Tensor | None, Tensor | None]
) -> None:
    """Add `gradient @ references` and `gradient.T @ anchors` to two tensors; None: it is not wanted.

    Example:
        >>> totals = torch.zeros(2, 1), torch.zeros(3, 1)
        >>> gradient = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
        >>> add_sparse_products(gradient, torch.ones(2, 1), torch.tensor([[4.0], [5.0], [6.0]]), totals)
        >>> totals[0].flatten(), totals[1].flatten()
        (tensor([12., 18.]), tensor([0., 0., 5.]))
    """
    rows, columns = gradient.nonzero(as_tuple=True)
    if not len(rows):
        return
    weights = gradient[rows, columns]
    if totals[0] is not None:
        totals[0].add_(_weighted_sums(rows, references, columns, weights, len(gradient)))
    if totals[1] is not None:
        columns, order = columns.sort(stable=True)
        totals[1].add_(_weighted_sums(columns, anchors, rows[order], weights[order], gradient.shape[1]))


def _weighted_sums(groups: Tensor, vectors: Tensor, selected: Tensor, weights: Tensor, num_groups: int) -> Tensor:
    """The weighted sum of the selected vectors of each group, [num_groups, d]; groups ascend."""
    first = torch.searchsorted(groups, torch.arange(num_groups))
    return F.embedding_bag(selected, vectors, first, mode="sum", per_sample_weights=weights)
