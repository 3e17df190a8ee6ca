"""Losses of histograms of similarities: the histogram loss, FastAP and SoftBinAP."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.base import zero_loss
from vicinal.losses.ranking import RankingLoss
from vicinal.losses.row_functions import count_positives, replace_padding, zero_with_gradient
from vicinal.losses.row_loss import PairLoss, Reduction
from vicinal.mining import Miner
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import sum_over_rows
from vicinal.utils import distributed
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.errors import InputError

MIN_COUNT = 1e-30
"""Less than any count; a division by 0 would leave NaN in the gradient even where its result is not used."""


def soft_histogram(similarity: Tensor, bins: int) -> Tensor:
    """The histogram of each row, [rows, bins + 1], of numbers from -1 to 1, or -inf, which is not counted."""
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
    """For each similarity the slope, of [bins] or [rows, bins], between the two nodes next to it; 0 for -inf."""
    columns = _floor(_position(similarity.detach(), slopes.shape[-1]))
    return F.pad(slopes, (2, 2)).expand(len(columns), -1).gather(1, columns)


def _position(similarity: Tensor, bins: int) -> Tensor:
    """The distance of each similarity from -1 in bins, plus 2; 0 for padding."""
    position = (similarity * (bins / 2)).add_(bins / 2 + 2)
    # A NaN, which makes the loss NaN elsewhere, must not become a column index.
    return torch.threshold_(position, 1.5, 0.0).nan_to_num_(0.0)


def _floor(position: Tensor) -> Tensor:
    return position.int().long()  # faster than .long() alone


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


class BinnedAPLoss(RankingLoss):
    """The formula of FastAP and SoftBinAP, with `bins` intervals between the nodes, from similarity -1 to 1."""

    bins: int

    def ranking_error(self, rows: Rows) -> Tensor:
        positives = soft_histogram(replace_padding(rows.positives, -math.inf), self.bins)
        num_negatives = _cumulative(soft_histogram(rows.negatives, self.bins))
        num_pairs = num_negatives + _cumulative(positives)
        error = torch.where(num_pairs > 0, num_negatives / num_pairs.clamp_min(MIN_COUNT), 1.0)
        return (positives * error).sum(dim=1) / count_positives(rows.positives).clamp_min(1)


def _cumulative(histogram: Tensor) -> Tensor:
    """The sum over each node and all nodes of higher similarity."""
    return histogram.flip(1).cumsum(1).flip(1)


class FastAPLoss(BinnedAPLoss):
    """FastAP loss: 1 minus the average precision of each query, from histograms of its similarities,

        1/P sum_r h+_r H+_r / H_r

    with nodes r from similarity 1 down to -1, the histogram h+ of the P positives by linear assignment to the two
    nearest nodes, its cumulative sum H+, and that of positives and negatives, H. Queries without positives are ignored.

    Reference: Cakir et al., "Deep Metric Learning to Rank", CVPR 2019, Eq. (5) to (8). Its histograms over squared
    distances from 0 to 4 are the same.

    Args:
        bins: number of intervals between the nodes. The published code uses 10.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: bins is below 1.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> FastAPLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2500)
    """

    def __init__(
        self,
        bins: int = 10,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive_integer(self, bins=bins)
        self.bins = bins


class SoftBinAPLoss(BinnedAPLoss):
    """SoftBinAP loss (APQ, listwise loss): the formula of :class:`FastAPLoss` with 20 nodes, ends included.

    Reference: Revaud et al., "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV
    2019, Eq. (6) to (10). There the query is one of its own positives; here it is not.

    Args:
        nodes: number of nodes, the paper's M, at least 2.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: nodes is below 2.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SoftBinAPLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2667)
    """

    def __init__(
        self,
        nodes: int = 20,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive_integer(self, nodes=nodes)
        if nodes < 2:
            raise InputError(f"SoftBinAPLoss: nodes = {nodes} must be at least 2, a whole number")
        self.nodes = nodes
        self.bins = nodes - 1
