"""The margin loss, with a learned boundary between positive and negative distances."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.losses.row_functions import count_above_zero, count_negatives, count_positives, euclidean_distance
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import DistanceWeightedMiner, Miner
from vicinal.similarity.checks import can_read_values
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import check_bool, check_nonnegative, check_positive, check_positive_integer, given
from vicinal.utils.errors import InputError


class MarginLoss(RowLoss):
    """Margin loss on Euclidean distances D of normalized embeddings: positives below a boundary, negatives above,

        [margin + D_ap - beta]+  for a positive pair,  [margin - D_an + beta]+  for a negative pair

    and `nu * beta` for each anchor that has a pair, averaged over the pairs with a loss above 0. beta is a parameter of
    the loss that is learned with the network, one for all classes or one per class.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. (4) and (5), with the paper's
    margin, initial beta and distance-weighted sampling of as many negatives as positives.

    Args:
        margin: the paper's alpha, a distance.
        beta: initial boundary, a distance.
        learn_beta: whether beta is learned.
        num_classes: number of classes that each have their own beta; labels must then be 0 ... num_classes - 1. None:
            one beta for all classes.
        nu: weight of the regularisation that keeps beta low.
        miner: selects the pairs; the paper's distance-weighted sampling by default, None keeps all pairs.
        reduction: "violating", the authors' mean over pairs with a loss above 0; "pairs", over all pairs; "anchors",
            the sum divided by the number of anchors; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: an argument is out of range, or a label is not in 0 ... num_classes - 1.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss = MarginLoss(miner=None)
        >>> loss(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.4838, grad_fn=<SumBackward0>)
        >>> [(name, beta.shape) for name, beta in MarginLoss(num_classes=10).named_parameters()]
        [('beta', torch.Size([10]))]
    """

    reductions: ClassVar[tuple[str, ...]] = ("violating", "pairs", "anchors", "sum")

    def __init__(
        self,
        margin: float = 0.2,
        beta: float = 1.2,
        learn_beta: bool = True,
        num_classes: int | None = None,
        nu: float = 0.0,
        miner: Miner | None = DistanceWeightedMiner(),  # noqa: B008 - immutable
        reduction: Reduction = "violating",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_nonnegative(self, margin=margin, nu=nu)
        check_positive(self, beta=beta)
        check_positive_integer(self, **given(num_classes=num_classes))
        check_bool(self, learn_beta=learn_beta)
        self.margin = margin
        self.nu = nu
        self.num_classes = num_classes
        self.beta = nn.Parameter(torch.full((num_classes or 1,), float(beta)), requires_grad=learn_beta)

    def row_values(self, rows: Rows) -> Tensor:
        positives, negatives, beta = self._pair_values(rows)
        return positives.sum(dim=1) + negatives.sum(dim=1) + beta

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction in ("anchors", "sum"):
            return (self.row_values(rows),)
        positives, negatives, beta = self._pair_values(rows)
        values = positives.sum(dim=1) + negatives.sum(dim=1) + beta
        if self.reduction == "violating":
            return values, count_above_zero(positives) + count_above_zero(negatives)
        return values, count_positives(rows.positives) + count_negatives(rows.negatives)

    def _pair_values(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of positive and of negative pairs, and the regularisation term of each anchor."""
        beta = self._beta(rows)
        distances = euclidean_distance(rows.positives)
        positives = (self.margin + distances - beta).relu().masked_fill(rows.positives == math.inf, 0.0)
        negatives = (self.margin + beta - euclidean_distance(rows.negatives)).relu()
        return positives, negatives, self.nu * beta[:, 0] * self.contributes(rows)

    def _beta(self, rows: Rows) -> Tensor:
        beta = self.beta.to(rows.positives.dtype)
        if self.num_classes is None:
            return beta.expand(len(rows.positives))[:, None]
        assert rows.labels is not None
        return beta[rows.labels.long()][:, None]

    def value(self, source: PairSource) -> Tensor:
        if self.num_classes is not None:
            self._check_classes(source.labels, self.num_classes)
        return super().value(source)

    def _check_classes(self, labels: Tensor | None, num_classes: int) -> None:
        if labels is None or labels.ndim != 1 or labels.is_floating_point():
            raise InputError("MarginLoss: one beta per class needs one int label per embedding")
        if can_read_values(labels) and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
            raise InputError(
                f"MarginLoss: labels from {int(labels.min())} to {int(labels.max())} are not all in "
                f"0 ... {num_classes - 1} (num_classes = {num_classes})"
            )
