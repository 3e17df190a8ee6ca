"""Average precision from histograms of similarities: the losses FastAP and SoftBinAP."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal.arguments import check_at_least_one
from vicinal.errors import InputError
from vicinal.losses.base import Reduction
from vicinal.losses.ranking import RankingLoss
from vicinal.losses.row_functions import count_positives, fill_absent
from vicinal.losses.soft_histogram import soft_histogram
from vicinal.mining import Miner
from vicinal.similarity import Rows

SMALLEST = 1e-30
"""Less than any count; division by 0 would leave NaN in the gradient even where its result is not used."""


class BinnedAPLoss(RankingLoss):
    """The formula of the two losses below, which differ in their nodes.

    Attributes:
        bins: number of intervals between nodes over the similarities -1 to 1.
    """

    bins: int

    def shortfall(self, rows: Rows) -> Tensor:
        positives = soft_histogram(fill_absent(rows.positives, -math.inf), self.bins)
        of_negatives = _from_above(soft_histogram(rows.negatives, self.bins))
        of_all = of_negatives + _from_above(positives)
        imprecision = torch.where(of_all > 0, of_negatives / of_all.clamp_min(SMALLEST), 1.0)
        return (positives * imprecision).sum(dim=1) / count_positives(rows.positives).clamp_min(1)


def _from_above(histogram: Tensor) -> Tensor:
    """What each node and all nodes of higher similarity have."""
    return histogram.flip(1).cumsum(1).flip(1)


class FastAPLoss(BinnedAPLoss):
    """FastAP loss: 1 less the average precision of each query, from histograms of its similarities,

        1/P sum_r h+_r H+_r / H_r

    with nodes r from similarity 1 down to -1, h+_r what the P positives have at a node by linear assignment to the two
    nearest ones, H+_r its sum up to the node, and H_r that of positives and negatives. A query without a positive does
    not count.

    Reference: Cakir et al., "Deep Metric Learning to Rank", CVPR 2019, Eq. (5) to (8), whose histograms over squared
    distances from 0 to 4 are these.

    Args:
        bins: intervals between the nodes, of which there is one more. The published code has 10.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

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
        check_at_least_one(self, bins=bins)
        self.bins = bins


class SoftBinAPLoss(BinnedAPLoss):
    """SoftBinAP loss (APQ, listwise loss): the formula of :class:`FastAPLoss` with 20 nodes, ends included.

    Reference: Revaud et al., "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV
    2019, Eq. (6) to (10). There the query is one of its own positives; here it is not.

    Args:
        nodes: the paper's M, at least 2; the intervals between them are one fewer.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

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
        if type(nodes) is not int or nodes < 2:
            raise InputError(f"SoftBinAPLoss: nodes = {nodes} must be at least 2, a whole number")
        self.nodes = nodes
        self.bins = nodes - 1
