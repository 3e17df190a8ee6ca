"""The histogram loss: how often a random negative pair is more similar than a random positive one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal import distributed
from vicinal.arguments import check_at_least_one
from vicinal.losses.base import PairLoss
from vicinal.losses.row_functions import fill_absent
from vicinal.mining import Miner
from vicinal.similarity import Rows, Source


class HistogramLoss(PairLoss):
    """Histogram loss: the probability that a random negative pair of the batch is more similar than a random positive
    one, estimated from two histograms with R = bins + 1 nodes from -1 to 1 and linear assignment to the nodes,

        sum_r h-_r sum_{q <= r} h+_q

    Without a positive or without a negative pair it is 0.

    Reference: Ustinova and Lempitsky, "Learning Deep Embeddings with Histogram Loss", NIPS 2016, as written in Wang et
    al., "Multi-Similarity Loss", CVPR 2019, supplement, Eq. (3) to (9). The histograms are those of all pairs of the
    batch, so the rows are walked over twice: once to fill them, once for the gradient.

    Args:
        bins: number of bins, R - 1; their width is 2 / bins.
        miner: chooses pairs before the loss sees them; None keeps all.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.PairLoss`.

    Raises:
        InputError: bins is below 1.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> HistogramLoss(bins=4)(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2940)
    """

    def __init__(self, bins: int = 100, miner: Miner | None = None, tile_rows: int | None = None) -> None:
        super().__init__(miner, tile_rows)
        check_at_least_one(self, bins=bins)
        self.bins = bins

    def value(self, source: Source) -> Tensor:
        with torch.no_grad():
            positive, negative = (self._normalized(counts, source) for counts in self.sums(source, self._histograms))
            below, above = positive[0].cumsum(0), negative[0].flip(0).cumsum(0).flip(0)
            slopes = (above.diff() * positive[1], below.diff() * negative[1])
        value = (negative[0] * below).sum()

        def row_terms(rows: Rows) -> tuple[Tensor]:
            of_positives = self._pair_weights(fill_absent(rows.positives, -math.inf), slopes[0])
            return (of_positives + self._pair_weights(rows.negatives, slopes[1]),)

        # Its value is 0: only its gradient, the weight of each pair, is wanted.
        (weights,) = self.sums(source, row_terms)
        return value + weights * (distributed.world_size() if source.shared else 1)

    def _normalized(self, counts: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """A histogram that adds up to 1, or to 0 if it is empty; and the derivative of a node by a similarity."""
        counts = counts.double()
        if source.shared:
            counts = distributed.mean(counts) * distributed.world_size()
        total = counts.sum().clamp_min(1)
        dtype = source.anchors.dtype
        return (counts / total).to(dtype), (self.bins / 2 / total).to(dtype)

    def _histograms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._histogram(fill_absent(rows.positives, -math.inf)), self._histogram(rows.negatives)

    def _histogram(self, similarity: Tensor) -> Tensor:
        """What each row adds to each node, [rows, bins + 1]."""
        position = self._position(similarity)
        columns = _whole(position)
        upper = position.frac()
        lower = 1 - upper
        nodes = similarity.new_zeros(len(similarity), self.bins + 4)
        to_lower, to_upper = nodes.scatter_add(1, columns, lower), nodes.scatter_add(1, columns, upper)
        return to_lower[:, 2:-1] + to_upper[:, 1:-2]

    def _pair_weights(self, similarity: Tensor, slopes: Tensor) -> Tensor:
        """0 for each row, [rows], with the slope of each similarity's bin as its gradient."""
        columns = _whole(self._position(similarity.detach()))
        weights = F.pad(slopes, (2, 2)).expand(len(columns), -1).gather(1, columns)
        return _ZeroWithGradient.apply(similarity, weights)

    def _position(self, similarity: Tensor) -> Tensor:
        """How many bins a similarity lies above -1, and 2 more; 0 where there is no pair."""
        position = (similarity * (self.bins / 2)).add_(self.bins / 2 + 2)
        # A broken embedding makes the loss NaN elsewhere; here it must not become a column.
        return torch.threshold_(position, 1.5, 0.0).nan_to_num_(0.0)


def _whole(position: Tensor) -> Tensor:
    return position.int().long()  # quicker than at once


class _ZeroWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return similarity.new_zeros(len(similarity))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return weights * upstream[:, None], None
