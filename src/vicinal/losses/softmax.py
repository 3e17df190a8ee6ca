"""Negative log-likelihoods of a softmax over an anchor's row: N-pairs, NT-Xent, NCA, SupCon."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from vicinal.losses.row_functions import count_positives, log_sum_exp, replace_padding, softplus, zero_if_empty
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import Miner
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import check_positive


class NTXentLoss(RowLoss):
    """NT-Xent, the normalized temperature-scaled cross entropy: the mean over all positive pairs (i, j) of

        -log( exp(S_ij / temperature) / (exp(S_ij / temperature) + sum_N exp(S_ik / temperature)) )

    with the negatives k of anchor i. An anchor may have several positives; each is compared only with the negatives.

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020, Eq. (1),
    where each anchor has one positive.

    Args:
        temperature: positive; the paper's best value by default.
        miner: selects the pairs; None keeps all.
        reduction: "pairs", the paper's mean over positive pairs; "anchors", the mean over all anchors of the mean over
            their positives; "contributing", the same over the anchors that have a positive; "sum", over pairs.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: temperature is not positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> NTXentLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.7083)
    """

    reductions: ClassVar[tuple[str, ...]] = ("pairs", "anchors", "contributing", "sum")

    def __init__(
        self,
        temperature: float = 0.1,
        miner: Miner | None = None,
        reduction: Reduction = "pairs",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, temperature=temperature)
        self.temperature = temperature

    def row_values(self, rows: Rows) -> Tensor:
        negatives = log_sum_exp(rows.negatives, 1 / self.temperature)
        total = softplus(negatives[:, None] - rows.positives / self.temperature).sum(dim=1)
        if self.reduction in ("pairs", "sum"):
            return total
        return total / count_positives(rows.positives).clamp_min(1)

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction == "pairs":
            return self.row_values(rows), count_positives(rows.positives)
        return super().row_terms(rows)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives


class NPairsLoss(NTXentLoss):
    """N-pairs loss: the mean over all positive pairs (i, j) of

        log(1 + sum_N exp(scale (S_ik - S_ij)))

    with the negatives k of anchor i. The paper's batch has one anchor and one positive per class, and the negatives are
    the positives of other classes: `NPairsLoss()(anchors, labels, positives, labels)`. A batch that is compared with
    itself generalises this to any number of samples per class.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NIPS 2016, Eq. (8), on
    cosine similarities as in Wang et al., "Multi-Similarity Loss", CVPR 2019, supplement. Sohn's embeddings are not
    normalized; `scale` replaces their squared norm.

    Args:
        scale: positive factor of the similarities.
        miner: selects the pairs; None keeps all.
        reduction: "pairs", the paper's mean over pairs; "anchors", the mean over all anchors of the mean over their
            positives; "contributing", the same over the anchors that have a positive; "sum", over pairs.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: scale is not positive.

    Example:
        >>> anchors, positives, labels = torch.eye(2), torch.tensor([[0.6, 0.8], [0.0, 1.0]]), torch.tensor([3, 4])
        >>> NPairsLoss()(anchors, labels, positives, labels)
        tensor(0.5178)
    """

    def __init__(
        self,
        scale: float = 1.0,
        miner: Miner | None = None,
        reduction: Reduction = "pairs",
        tile_rows: int | None = None,
    ) -> None:
        check_positive(self, scale=scale)
        super().__init__(1 / scale, miner, reduction, tile_rows)
        self.scale = scale


class NCALoss(RowLoss):
    """Neighborhood component analysis: minus the sum over all anchors i of

        log( sum_P exp(scale S_ij) / sum_{k != i} exp(scale S_ik) )

    An anchor without positives contributes 0. The computation is in logarithms, so that no softmax underflows.

    Reference: Goldberger et al., "Neighbourhood Components Analysis", NIPS 2004, as written in Wang et al.,
    "Multi-Similarity Loss", CVPR 2019, supplement, Eq. (1). The original has squared distances in place of
    similarities, which is the same as `scale=2`.

    Args:
        scale: positive factor of the similarities.
        miner: selects the pairs; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a positive.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: scale is not positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> NCALoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(3.2024)
    """

    supports_weights = True

    def __init__(
        self, scale: float = 1.0, miner: Miner | None = None, reduction: Reduction = "sum", tile_rows: int | None = None
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, scale=scale)
        self.scale = scale

    def row_values(self, rows: Rows) -> Tensor:
        positives = log_sum_exp(replace_padding(rows.positives, -math.inf), self.scale, rows.positive_weights)
        negatives = log_sum_exp(rows.negatives, self.scale, rows.negative_weights)
        return torch.where(rows.has_positives, softplus(negatives - zero_if_empty(positives)), 0.0)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives


class SupConLoss(RowLoss):
    """Supervised contrastive loss: the sum over all anchors i of

        -1/P_i sum_P log( exp(S_ij / temperature) / sum_{k != i} exp(S_ik / temperature) )

    with the P_i positives j of the anchor. An anchor without positives contributes 0.

    Reference: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, Eq. (2). Their code takes the mean over
    anchors (`reduction="anchors"`).

    Args:
        temperature: positive; the paper's 0.1 by default.
        miner: selects the pairs; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a positive.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: temperature is not positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SupConLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(2.8331)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        miner: Miner | None = None,
        reduction: Reduction = "sum",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, temperature=temperature)
        self.temperature = temperature

    def row_values(self, rows: Rows) -> Tensor:
        scale = 1 / self.temperature
        positives = zero_if_empty(log_sum_exp(replace_padding(rows.positives, -math.inf), scale))
        log_denominator = positives + softplus(log_sum_exp(rows.negatives, scale) - positives)
        count = count_positives(rows.positives).clamp_min(1)
        mean_positive = scale * replace_padding(rows.positives, 0.0).sum(dim=1) / count
        return torch.where(rows.has_positives, log_denominator - mean_positive, 0.0)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives
