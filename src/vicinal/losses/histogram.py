"""The histogram loss."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from vicinal.losses.base import zero_loss
from vicinal.losses.row_functions import replace_padding, zero_with_gradient
from vicinal.losses.row_loss import PairLoss
from vicinal.losses.soft_histogram import node_counts, slopes_at
from vicinal.mining import Miner
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import sum_over_rows
from vicinal.utils import distributed
from vicinal.utils.arguments import check_positive_integer


class HistogramLoss(PairLoss):
    """Histogram loss: the probability that a random negative pair of the batch is more similar than a random positive
    one, estimated from two histograms with R = bins + 1 nodes from -1 to 1 and linear assignment to the nodes,

        sum_r h-_r sum_{q <= r} h+_q

    It is 0 without a positive pair or without a negative pair.

    Reference: Ustinova and Lempitsky, "Learning Deep Embeddings with Histogram Loss", NIPS 2016, as written in Wang et
    al., "Multi-Similarity Loss", CVPR 2019, supplement, Eq. (3) to (9). The histograms are over all pairs of the batch,
    so the rows are computed twice: once for the histograms, once for the gradient.

    Args:
        bins: number of bins, R - 1, of width 2 / bins.
        miner: selects the pairs; None keeps all.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.PairLoss`.

    Raises:
        InputError: bins is below 1.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> HistogramLoss(bins=4)(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2940)
    """

    def __init__(self, bins: int = 100, miner: Miner | None = None, tile_rows: int | None = None) -> None:
        super().__init__(miner, tile_rows)
        check_positive_integer(self, bins=bins)
        self.bins = bins

    def value(self, source: PairSource) -> Tensor:
        if source.is_empty:
            return zero_loss(source)
        sums = partial(sum_over_rows, self.count_call(source), tile_rows=self.tile_rows, miner=self.miner)
        with torch.no_grad():
            positive, negative = (self._normalized(counts, source) for counts in sums(self._node_counts))
            below, above = positive[0].cumsum(0), negative[0].flip(0).cumsum(0).flip(0)
            slopes = (above.diff() * positive[1], below.diff() * negative[1])

        def gradient_terms(rows: Rows) -> tuple[Tensor]:
            positives = replace_padding(rows.positives, -math.inf)
            of_positives = zero_with_gradient(positives, slopes_at(positives, slopes[0]))
            return (of_positives + zero_with_gradient(rows.negatives, slopes_at(rows.negatives, slopes[1])),)

        (zero,) = sums(gradient_terms)
        return (negative[0] * below).sum() + zero * (distributed.world_size() if source.is_distributed else 1)

    def _normalized(self, counts: Tensor, source: PairSource) -> tuple[Tensor, Tensor]:
        """A histogram with sum 1, or 0 if it is empty, and the derivative of a node with respect to a similarity."""
        counts = counts.double()
        if source.is_distributed:
            counts = distributed.all_reduce_mean(counts) * distributed.world_size()
        total = counts.sum().clamp_min(1)
        dtype = source.anchors.dtype
        return (counts / total).to(dtype), (self.bins / 2 / total).to(dtype)

    def _node_counts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        positives = replace_padding(rows.positives, -math.inf)
        return node_counts(positives, self.bins), node_counts(rows.negatives, self.bins)
