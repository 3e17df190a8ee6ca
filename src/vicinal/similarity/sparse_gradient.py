"""Products of a gradient with few entries, as of a loss with a margin that most pairs keep, and vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_FRACTION = 1 / 64
"""Up to this fraction of nonzero entries gathering vectors is cheaper than a matrix product."""
SAMPLED_ROWS = 16
"""One of so many rows tells a gradient with many entries, of which no list is made then."""

Entries = tuple[Tensor, Tensor]


def few_entries(gradient: Tensor) -> Entries | None:
    """The rows and columns of the nonzero entries if :func:`add_sparse_products` of so few is cheap.

    A GPU is not waited for: there the result is None.
    """
    sample = gradient[::SAMPLED_ROWS]
    if gradient.device.type != "cpu" or int(sample.count_nonzero()) > MAX_FRACTION * sample.numel():
        return None
    rows, columns = gradient.nonzero(as_tuple=True)
    return (rows, columns) if len(rows) <= MAX_FRACTION * gradient.numel() else None


def add_sparse_products(
    gradient: Tensor,
    entries: Entries,
    anchors: Tensor,
    references: Tensor,
    totals: tuple[Tensor | None, Tensor | None],
) -> None:
    """Add `gradient @ references` and `gradient.T @ anchors` to two tensors; None: it is not wanted.

    Example:
        >>> totals = torch.zeros(2, 1), torch.zeros(3, 1)
        >>> gradient = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
        >>> entries = gradient.nonzero(as_tuple=True)
        >>> add_sparse_products(gradient, entries, torch.ones(2, 1), torch.tensor([[4.0], [5.0], [6.0]]), totals)
        >>> totals[0].flatten(), totals[1].flatten()
        (tensor([12., 18.]), tensor([0., 0., 5.]))
    """
    rows, columns = entries
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
