"""Losses that weigh a pair by its own similarity, alone or also by others': contrastive, binomial and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vicinal.arguments import check_finite, check_positive
from vicinal.losses.base import Reduction, RowLoss, mean_over
from vicinal.losses.row_functions import (
    count_above_zero,
    count_negatives,
    count_positives,
    fill_absent,
    log_one_plus_sum_exp,
    log_sum_exp,
    softplus,
    zero_if_empty,
)
from vicinal.mining import Miner, MultiSimilarityMiner
from vicinal.similarity import Rows, Source


class ContrastiveLoss(RowLoss):
    """Contrastive loss on similarities: positives below a margin and negatives above another, each half averaged over
    the pairs that violate its margin,

        mean_P [positive_margin - S_ij]+  +  mean_N [S_ij - negative_margin]+

    A half without a violating pair is 0.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (29); positive margin 0.9 alone, 0.75 beside the similarity regulariser. Eq. (4) of Wang et al.,
    "Multi-Similarity Loss", CVPR 2019, where a positive pair adds -S_ij whatever it is, is
    `ContrastiveLoss(positive_margin=None, reduction="sum")`.

    Args:
        positive_margin: similarity that positives should reach; None: a positive pair adds -S_ij.
        negative_margin: similarity that negatives should stay below.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "violating", the mean of Eq. (29) for each half; "pairs", the mean of each half over all its pairs;
            "sum", that of Eq. (4); "anchors", the sum over all pairs by the number of anchors.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: a margin is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> ContrastiveLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.4000)
    """

    reductions: ClassVar[tuple[str, ...]] = ("violating", "pairs", "sum", "anchors")

    def __init__(
        self,
        positive_margin: float | None = 0.9,
        negative_margin: float = 0.6,
        miner: Miner | None = None,
        reduction: Reduction = "violating",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_finite(self, positive_margin=positive_margin, negative_margin=negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def row_values(self, rows: Rows) -> Tensor:
        positives, negatives = self._pair_values(rows)
        return positives.sum(dim=1) + negatives.sum(dim=1)

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction in ("sum", "anchors"):
            return (self.row_values(rows),)
        positives, negatives = self._pair_values(rows)
        counts: tuple[Tensor, Tensor] = count_positives(rows.positives), count_negatives(rows.negatives)
        if self.reduction == "violating":
            every_positive = self.positive_margin is None
            counts = counts[0] if every_positive else count_above_zero(positives), count_above_zero(negatives)
        return positives.sum(dim=1), negatives.sum(dim=1), *counts

    def reduce(self, sums: Sequence[Tensor], source: Source) -> Tensor:
        if self.reduction in ("sum", "anchors"):
            return super().reduce(sums, source)
        return mean_over(sums[0], sums[2], source) + mean_over(sums[1], sums[3], source)

    def _pair_values(self, rows: Rows) -> tuple[Tensor, Tensor]:
        negatives = (rows.negatives - self.negative_margin).relu_()
        if self.positive_margin is None:
            return -fill_absent(rows.positives, 0.0), negatives
        return (self.positive_margin - rows.positives).relu_(), negatives


class BinomialDevianceLoss(RowLoss):
    """Binomial deviance loss, a smooth contrastive loss: the sum over all anchors i of

        1/P_i sum_P log(1 + exp(alpha (base - S_ij)))  +  1/N_i sum_N log(1 + exp(beta (S_ij - base)))

    with P_i and N_i the numbers of the anchor's positive and negative pairs.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (9), with the constants of its experiments. Introduced by Yi et al., "Deep Metric Learning for Practical Person
    Re-Identification", 2014; other code uses `base=0.5`.

    Args:
        alpha: steepness for positives, positive.
        beta: steepness for negatives, positive.
        base: the similarity lambda around which pairs are weighed.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a pair.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive, or base is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> BinomialDevianceLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(4.1683)
    """

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
        positives = softplus(self.alpha * (self.base - rows.positives)).sum(dim=1)
        negatives = softplus(self.beta * (rows.negatives - self.base)).sum(dim=1)
        return positives / count_positives(rows.positives).clamp_min(1) + negatives / count_negatives(
            rows.negatives
        ).clamp_min(1)


class MultiSimilarityLoss(RowLoss):
    """Multi-similarity loss: the mean over all anchors i of

        1/alpha log(1 + sum_P exp(-alpha (S_ik - base))) + 1/beta log(1 + sum_N exp(beta (S_ik - base)))

    where P and N are the positive and negative pairs that the miner leaves.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (15), with the paper's values as defaults. The authors' published code and other libraries use `base=0.5`
    (and `beta=40` in one configuration).

    Args:
        alpha: steepness for positives, positive.
        beta: steepness for negatives, positive.
        base: the similarity lambda around which pairs are weighed.
        miner: the paper's pair mining by default; None is the "MS weighting" of its Table 2.
        reduction: "anchors", the paper's mean over all anchors; "contributing", over those with a pair; "sum".
        plus_one: False leaves out the 1 in both logarithms, so that pairs pull however good they are: Context Refiner,
            Eq. (4), which has no miner. A side without a pair is 0.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: alpha or beta is not positive, or base is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> labels = torch.tensor([7, 7, 9, 9])
        >>> MultiSimilarityLoss()(embeddings, labels)
        tensor(0.2605)
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 1.0,
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
        positives, negatives = self._log(rows.positives, -self.alpha), self._log(rows.negatives, self.beta)
        return positives / self.alpha + negatives / self.beta

    def _log(self, similarity: Tensor, scale: float) -> Tensor:
        if self.plus_one:
            return log_one_plus_sum_exp(similarity, scale, self.base)
        return zero_if_empty(log_sum_exp(similarity, scale) - scale * self.base)


class CircleLoss(RowLoss):
    """Circle loss: the mean over all anchors of

        log(1 + sum_N exp(scale a_n (s_n - margin)) sum_P exp(-scale a_p (s_p - 1 + margin)))

    where the weights `a_n = [s_n + margin]+` and `a_p = [1 + margin - s_p]+` carry no gradient.

    Reference: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020, Eq. (6) to
    (8), with its values for fine-grained retrieval (margin 0.4, scale 80; 0.25 and 256 for faces). The paper's formula
    is that of one anchor.

    Args:
        margin: the paper's m.
        scale: the paper's gamma, positive.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "anchors", the mean over all anchors; "contributing", over those with positives and negatives; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: scale is not positive, or margin is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> CircleLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(16.9733)
    """

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
        # The floor keeps the product with the infinity that stands for no pair from being 0 times infinity.
        floor = torch.finfo(rows.negatives.dtype).tiny
        hardness = (rows.negatives.detach() + self.margin).clamp_min_(floor)
        negatives = log_sum_exp(hardness * (rows.negatives - self.margin), self.scale)
        hardness = (1 + self.margin - rows.positives.detach()).clamp_min(floor)
        positives = log_sum_exp(hardness * (rows.positives - 1 + self.margin), -self.scale)
        return softplus(negatives + positives)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives & rows.has_negatives
