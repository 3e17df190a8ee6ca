"""Lifted structure losses: smooth maxima over an anchor's positives and over its negatives."""

from __future__ import annotations

from torch import Tensor

from vicinal.losses.row_functions import log_sum_exp, softplus, weighted_sum, zero_if_empty
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import Miner
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import check_finite, check_positive


class LiftedStructureLoss(RowLoss):
    """Lifted structure loss: the sum over all anchors i of

        [ log sum_P exp(margin - S_ik) + log sum_N exp(S_ik) ]+

    An anchor without positives or without negatives contributes 0.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (6): the generalised form of Hermans et al., 2017, of Song et al., "Deep Metric Learning via Lifted Structured
    Feature Embedding", CVPR 2016, whose margin is the default.

    Args:
        margin: the paper's lambda.
        miner: selects the pairs; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with positives
            and negatives.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: margin is not finite.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> LiftedStructureLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(4.7021)
    """

    supports_weights = True

    def __init__(
        self,
        margin: float = 1.0,
        miner: Miner | None = None,
        reduction: Reduction = "sum",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_finite(self, margin=margin)
        self.margin = margin

    def row_values(self, rows: Rows) -> Tensor:
        positives = log_sum_exp(rows.positives, -1.0, rows.positive_weights)
        return (self.margin + positives + log_sum_exp(rows.negatives, 1.0, rows.negative_weights)).relu()

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives & rows.has_negatives


class LiftedStructureStarLoss(RowLoss):
    """LiftedStruct*, the lifted structure loss with larger weights for hard pairs: the mean over all anchors i of

        1/alpha log sum_P exp(-alpha S_ik) + 1/beta log sum_N exp(beta S_ik)

    The logarithm of an empty sum is replaced by 0.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (16), with its constants.

    Args:
        alpha: positive factor of the similarities of positives.
        beta: positive factor of the similarities of negatives.
        miner: selects the pairs; None keeps all.
        reduction: "anchors", the paper's mean over all anchors; "contributing", over those with a pair; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> LiftedStructureStarLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(-0.2300)
    """

    supports_weights = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        miner: Miner | None = None,
        reduction: Reduction = "anchors",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta

    def row_values(self, rows: Rows) -> Tensor:
        return _lifted_star(rows, self.alpha, self.beta)


class BinLiftedLoss(RowLoss):
    """BinLifted, whose pair weights are the mean of those of binomial deviance and LiftedStruct*: the mean over all
    anchors i of half of

        1/alpha (sum_P log(1 + exp(alpha (base - S_ik))) + log sum_P exp(-alpha S_ik))
        + 1/beta (sum_N log(1 + exp(beta (S_ik - base))) + log sum_N exp(beta S_ik))

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Section 4.2, with the weights that Eq. (10) of its supplement writes out (the binomial part is not divided by the
    number of pairs there, unlike in Eq. (9)) and the constants of its experiments.

    Args:
        alpha: positive factor of the similarities of positives.
        beta: positive factor of the similarities of negatives.
        base: the paper's lambda, a similarity.
        miner: selects the pairs; None keeps all.
        reduction: "anchors", the mean over all anchors as in Eq. (16); "contributing", over those with a pair; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive, or base is not finite.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> BinLiftedLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.1455)
    """

    supports_weights = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 1.0,
        miner: Miner | None = None,
        reduction: Reduction = "anchors",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, alpha=alpha, beta=beta)
        check_finite(self, base=base)
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def row_values(self, rows: Rows) -> Tensor:
        positives = weighted_sum(softplus(self.alpha * (self.base - rows.positives)), rows.positive_weights)
        negatives = weighted_sum(softplus(self.beta * (rows.negatives - self.base)), rows.negative_weights)
        return (positives / self.alpha + negatives / self.beta + _lifted_star(rows, self.alpha, self.beta)) / 2


def _lifted_star(rows: Rows, alpha: float, beta: float) -> Tensor:
    positives = log_sum_exp(rows.positives, -alpha, rows.positive_weights)
    negatives = log_sum_exp(rows.negatives, beta, rows.negative_weights)
    return zero_if_empty(positives) / alpha + zero_if_empty(negatives) / beta
