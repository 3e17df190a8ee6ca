"""Average precision from histograms of similarities: FastAP and SoftBinAP."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal.losses.ranking import RankingLoss
from vicinal.losses.row_functions import count_positives, replace_padding
from vicinal.losses.row_loss import Reduction
from vicinal.losses.soft_histogram import soft_histogram
from vicinal.mining import Miner
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.errors import InputError

MIN_COUNT = 1e-30
"""Less than any count; a division by 0 would leave NaN in the gradient even where its result is not used."""


class BinnedAPLoss(RankingLoss):
    """The formula of FastAP and SoftBinAP.

    Attributes:
        bins: number of intervals between the nodes, from similarity -1 to 1.
    """

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
