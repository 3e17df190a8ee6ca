"""The histogram loss: how often a random negative pair is more similar than a random positive one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_at_least_one
from vicinal.losses.base import PairLoss
from vicinal.losses.row_functions import fill_absent, zero_with_gradient
from vicinal.losses.soft_histogram import node_counts, slopes_at
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
            positives = fill_absent(rows.positives, -math.inf)
            of_positives = zero_with_gradient(positives, slopes_at(positives, slopes[0]))
            return (of_positives + zero_with_gradient(rows.negatives, slopes_at(rows.negatives, slopes[1])),)

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
        return node_counts(fill_absent(rows.positives, -math.inf), self.bins), node_counts(rows.negatives, self.bins)
