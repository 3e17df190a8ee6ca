"""Pair losses: contrastive, binomial deviance, multi-similarity and circle loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vicinal.losses.row_functions import (
    count_above_zero,
    count_negatives,
    count_positives,
    log_one_plus_sum_exp,
    log_sum_exp,
    log_sum_exp_or_zero,
    replace_padding,
    replace_zeros,
    softplus,
    weighted_sum,
)
from vicinal.losses.row_loss import Reduction, RowLoss, mean_over
from vicinal.mining import Miner, MultiSimilarityMiner
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import check_finite, check_positive, given


class ContrastiveLoss(RowLoss):
    """Contrastive loss on similarities, with a margin for positives and another for negatives,

        mean_P [positive_margin - S_ij]+  +  mean_N [S_ij - negative_margin]+

    Each mean is over the pairs that violate its margin, and 0 if there are none.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (29); positive margin 0.9 alone, 0.75 with the similarity regulariser. Eq. (4) of Wang et al.,
    "Multi-Similarity Loss", CVPR 2019, where every positive pair contributes -S_ij, is
    `ContrastiveLoss(positive_margin=None, reduction="sum")`.

    Args:
        positive_margin: similarity that positives should reach; None: a positive pair contributes -S_ij.
        negative_margin: similarity that negatives should stay below.
        miner: selects the pairs; None keeps all.
        reduction: "violating", the two means of Eq. (29); "pairs", two means over all positive and all negative pairs;
            "sum", the sum of Eq. (4); "anchors", the sum over all pairs divided by the number of anchors.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: a margin is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> ContrastiveLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.4000)
    """

    reductions: ClassVar[tuple[str, ...]] = ("violating", "pairs", "sum", "anchors")
    supports_weights = True

    def __init__(
        self,
        positive_margin: float | None = 0.9,
        negative_margin: float = 0.6,
        miner: Miner | None = None,
        reduction: Reduction = "violating",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_finite(self, **given(positive_margin=positive_margin), negative_margin=negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def row_values(self, rows: Rows) -> Tensor:
        positives, negatives = self._pair_values(rows)
        return weighted_sum(positives, rows.positive_weights) + weighted_sum(negatives, rows.negative_weights)

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction in ("sum", "anchors"):
            return (self.row_values(rows),)
        positives, negatives = self._pair_values(rows)
        if self.reduction == "violating":
            num_negatives = count_above_zero(negatives, rows.negative_weights)
        else:
            num_negatives = count_negatives(rows.negatives, rows.negative_weights)
        if self.reduction == "violating" and self.positive_margin is not None:
            num_positives = count_above_zero(positives, rows.positive_weights)
        else:
            num_positives = count_positives(rows.positives, rows.positive_weights)
        positives = weighted_sum(positives, rows.positive_weights)
        return positives, weighted_sum(negatives, rows.negative_weights), num_positives, num_negatives

    def reduce(self, sums: Sequence[Tensor], source: PairSource) -> Tensor:
        if self.reduction in ("sum", "anchors"):
            return super().reduce(sums, source)
        return mean_over(sums[0], sums[2], source) + mean_over(sums[1], sums[3], source)

    def _pair_values(self, rows: Rows) -> tuple[Tensor, Tensor]:
        negatives = (rows.negatives - self.negative_margin).relu_()
        if self.positive_margin is None:
            return -replace_padding(rows.positives, 0.0), negatives
        return (self.positive_margin - rows.positives).relu_(), negatives


class BinomialDevianceLoss(RowLoss):
    """Binomial deviance loss, a smooth contrastive loss: the sum over all anchors i of

        1/P_i sum_P log(1 + exp(alpha (base - S_ij)))  +  1/N_i sum_N log(1 + exp(beta (S_ij - base)))

    where P_i and N_i are the numbers of positive and negative pairs of the anchor.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (9), with the constants of its experiments. Introduced by Yi et al., "Deep Metric Learning for Practical Person
    Re-Identification", 2014; other implementations use `base=0.5`.

    Args:
        alpha: positive factor of the similarities of positives.
        beta: positive factor of the similarities of negatives.
        base: the paper's lambda, a similarity.
        miner: selects the pairs; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a pair.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive, or base is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> BinomialDevianceLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(4.1683)
    """

    supports_weights = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 1.0,
        miner: Miner | None = None,
        reduction: Reduction = "sum",
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
        num_positives = replace_zeros(count_positives(rows.positives, rows.positive_weights))
        num_negatives = replace_zeros(count_negatives(rows.negatives, rows.negative_weights))
        return positives / num_positives + negatives / num_negatives


class MultiSimilarityLoss(RowLoss):
    """Multi-similarity loss: the mean over all anchors i of

        1/alpha log(1 + sum_P exp(-alpha (S_ik - base))) + 1/beta log(1 + sum_N exp(beta (S_ik - base)))

    where P and N are the positive and negative pairs that the miner selects.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (15), with the paper's values as defaults, except that `base` is that of the authors' published code and of
    other libraries. With the paper's 1, negatives hardly count while positives are pulled together; the page of
    findings about losses shows the cost of that.

    Args:
        alpha: positive factor of the similarities of positives.
        beta: positive factor of the similarities of negatives.
        base: the paper's lambda, a similarity; the paper has 1.
        miner: the paper's pair mining by default; None is the "MS weighting" of its Table 2.
        reduction: "anchors", the paper's mean over all anchors; "contributing", over those with a pair; "sum".
        plus_one: False removes the 1 from both logarithms, so that even perfect pairs have a gradient: Context Refiner,
            Eq. (4), which has no miner. The logarithm of an empty sum is then replaced by 0.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive, or base is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> labels = torch.tensor([7, 7, 9, 9])
        >>> MultiSimilarityLoss()(embeddings, labels)
        tensor(0.2795)
    """

    supports_weights = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        miner: Miner | None = MultiSimilarityMiner(epsilon=0.1),  # noqa: B008 - immutable
        reduction: Reduction = "anchors",
        plus_one: bool = True,
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, alpha=alpha, beta=beta)
        check_finite(self, base=base)
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.plus_one = plus_one

    def row_values(self, rows: Rows) -> Tensor:
        log = log_one_plus_sum_exp if self.plus_one else log_sum_exp_or_zero
        positives = log(rows.positives, -self.alpha, self.base, rows.positive_weights)
        return positives / self.alpha + log(rows.negatives, self.beta, self.base, rows.negative_weights) / self.beta


class CircleLoss(RowLoss):
    """Circle loss: the mean over all anchors of

        log(1 + sum_N exp(scale a_n (s_n - margin)) sum_P exp(-scale a_p (s_p - 1 + margin)))

    where the weights `a_n = [s_n + margin]+` and `a_p = [1 + margin - s_p]+` have no gradient.

    Reference: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020, Eq. (6) to
    (8), with its values for fine-grained retrieval (margin 0.4, scale 80; 0.25 and 256 for faces). The paper's formula
    is for one anchor.

    Args:
        margin: the paper's m.
        scale: the paper's gamma, positive.
        miner: selects the pairs; None keeps all.
        reduction: "anchors", the mean over all anchors; "contributing", over those with positives and negatives; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: scale is not positive, or margin is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> CircleLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(16.9733)
    """

    supports_weights = True

    def __init__(
        self,
        margin: float = 0.4,
        scale: float = 80.0,
        miner: Miner | None = None,
        reduction: Reduction = "anchors",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_finite(self, margin=margin)
        check_positive(self, scale=scale)
        self.margin = margin
        self.scale = scale

    def row_values(self, rows: Rows) -> Tensor:
        # Positive weights, because 0 times the infinity of the padding would be NaN.
        tiny = torch.finfo(rows.negatives.dtype).tiny
        weights = (rows.negatives.detach() + self.margin).clamp_min_(tiny)
        negatives = log_sum_exp(weights * (rows.negatives - self.margin), self.scale, rows.negative_weights)
        weights = (1 + self.margin - rows.positives.detach()).clamp_min(tiny)
        positives = log_sum_exp(weights * (rows.positives - 1 + self.margin), -self.scale, rows.positive_weights)
        return softplus(negatives + positives)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives & rows.has_negatives
