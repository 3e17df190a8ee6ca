"""Losses with a margin: the triplet loss, over all triplets of a batch, and the margin loss with a learned boundary."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vicinal.losses.row_functions import (
    count_above_zero,
    count_negatives,
    count_positives,
    euclidean_distance,
    max_positives,
    softplus,
)
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import DistanceWeightedMiner, Miner
from vicinal.similarity.embeddings import check_label_range
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import (
    check_bool,
    check_choice,
    check_finite,
    check_nonnegative,
    check_positive,
    check_positive_integer,
    given,
)
from vicinal.utils.devices import uses_kernel
from vicinal.utils.errors import InputError

Triplets = Literal["all", "semi-hard"]


class TripletLoss(RowLoss):
    """Triplet loss: the mean over all triplets of an anchor a, a positive p and a negative n of

        [S_an - S_ap + margin]+

    in time that grows with positive pairs x references, and memory that does not.

    - All triplets: `TripletLoss()`.
    - Each anchor's hardest positive and negative ("batch hard"): `TripletLoss(miner=HardestMiner())`.
    - Semi-hard, the negative less similar than the positive, by less than the margin:
      `TripletLoss(triplets="semi-hard")`.
    - Distance-weighted negatives: `TripletLoss(miner=DistanceWeightedMiner())`.

    Reference: Schroff et al., "FaceNet", CVPR 2015, whose margin of 0.2 on squared distances is 0.1 on similarities, in
    the form of Wang et al., "Multi-Similarity Loss", CVPR 2019, Eq. (5); soft margin: Hermans et al., "In Defense of
    the Triplet Loss", 2017 (there with `margin=0`).

    Args:
        margin: by how much positives should be more similar than negatives.
        triplets: "all", or the "semi-hard" ones, in which `S_ap - margin < S_an < S_ap`.
        soft: whether the hinge is replaced by `log(1 + exp(S_an - S_ap + margin))`.
        miner: selects the pairs; None keeps all.
        reduction: "pairs", the mean over all selected triplets; "violating", over those with a loss above 0, as in
            other libraries; "anchors", their sum divided by the number of anchors; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: margin is not finite, or triplets is neither "all" nor "semi-hard".

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> TripletLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.0500)
    """

    reductions: ClassVar[tuple[str, ...]] = ("pairs", "violating", "anchors", "sum")

    def __init__(
        self,
        margin: float = 0.1,
        triplets: Triplets = "all",
        soft: bool = False,
        miner: Miner | None = None,
        reduction: Reduction = "pairs",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_finite(self, margin=margin)
        check_bool(self, soft=soft)
        check_choice(self, ("all", "semi-hard"), triplets=triplets)
        self.margin = margin
        self.triplets = triplets
        self.soft = soft

    def row_values(self, rows: Rows) -> Tensor:
        return self._sums(rows)[0]

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        sums, violating = self._sums(rows)
        if self.reduction in ("anchors", "sum"):
            return (sums,)
        if self.reduction == "violating" or self.triplets == "semi-hard":
            return sums, violating
        return sums, count_positives(rows.positives) * count_negatives(rows.negatives)

    def _sums(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The sum over the triplets of each anchor, and the number of triplets with a loss above zero."""
        sums, violating, *_ = _sum_over_triplets(
            rows.positives, rows.negatives, self.margin, self.soft, self.triplets == "semi-hard"
        )
        return sums, violating


# A custom operator, so that memory does not grow with the number of triplets: if torch.compile traced it, all triplets
# would be held at once.
@torch.library.custom_op("vicinal::sum_over_triplets", mutates_args=())
def _sum_over_triplets(
    positives: Tensor, negatives: Tensor, margin: float, soft: bool, semi_hard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of the losses of each anchor, the number of losses above zero, and the two gradients of the sum."""
    if uses_kernel(negatives, "sum_over_triplets", _kernel_agrees):
        from vicinal.losses import rank_kernels  # imports Triton

        return rank_kernels.sum_over_triplets(positives, negatives, margin, soft, semi_hard)
    return _add_triplets(positives, negatives, margin, soft, semi_hard)


def _add_triplets(
    positives: Tensor, negatives: Tensor, margin: float, soft: bool, semi_hard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total, violating = positives.new_zeros(len(positives)), positives.new_zeros(len(positives))
    grad_positives, grad_negatives = torch.zeros_like(positives), torch.zeros_like(negatives)
    number = max_positives(positives)
    hardest = positives.topk(number, dim=1, largest=False)
    for k in range(number):
        losses, slopes = _hinges(negatives - hardest.values[:, k, None], margin, soft, semi_hard)
        total += losses.sum(dim=1)
        violating += losses.sign().sum(dim=1)
        grad_negatives += slopes
        grad_positives.scatter_(1, hardest.indices[:, k, None], -slopes.sum(dim=1, keepdim=True))
    return total, violating, grad_positives, grad_negatives


def _kernel_agrees(device: torch.device) -> bool:
    """Whether the kernel computes the same as the function above, on a small example with padding."""
    from vicinal.losses import rank_kernels

    values = torch.linspace(-1, 1, 42, device=device).cos().reshape(2, 21)
    positives = values[:, ::5].clone().index_fill_(1, torch.tensor([4], device=device), float("inf"))
    for soft, semi_hard in ((False, False), (True, False), (False, True)):
        arguments = positives, values, 0.1, soft, semi_hard
        both = rank_kernels.sum_over_triplets(*arguments), _add_triplets(*arguments)
        if not all(torch.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in zip(*both, strict=True)):
            return False
    return True


def _hinges(differences: Tensor, margin: float, soft: bool, semi_hard: bool) -> tuple[Tensor, Tensor]:
    """The losses of triplets and their derivatives, from `S_an - S_ap`."""
    violations = differences + margin
    losses = softplus(violations) if soft else violations.relu()
    slopes = violations.sigmoid() if soft else losses.sign()
    if not semi_hard:
        return losses, slopes
    selected = ((differences < 0) & (violations > 0)).to(losses.dtype)
    return losses * selected, slopes * selected


@_sum_over_triplets.register_fake
def _(
    positives: Tensor, negatives: Tensor, margin: float, soft: bool, semi_hard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = positives.new_empty(len(positives))
    return rows, torch.empty_like(rows), torch.empty_like(positives), torch.empty_like(negatives)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, upstream: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return None, None, None, None, None
    grad_positives, grad_negatives = ctx.saved_tensors
    return grad_positives * upstream[:, None], grad_negatives * upstream[:, None], None, None, None


_sum_over_triplets.register_autograd(_backward, setup_context=_save_gradients)


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
        beta = self.beta.to(rows.positives.dtype)
        if self.num_classes is None:
            beta = beta.expand(len(rows.positives))[:, None]
        else:
            assert rows.labels is not None
            beta = beta[rows.labels.long()][:, None]
        distances = euclidean_distance(rows.positives)
        positives = (self.margin + distances - beta).relu().masked_fill(rows.positives == math.inf, 0.0)
        negatives = (self.margin + beta - euclidean_distance(rows.negatives)).relu()
        return positives, negatives, self.nu * beta[:, 0] * self.contributes(rows)

    def value(self, source: PairSource) -> Tensor:
        self._check_labels(source)
        return super().value(source)

    def _anchor_values(self, source: PairSource) -> Tensor:
        self._check_labels(source)
        return super()._anchor_values(source)

    def _check_labels(self, source: PairSource) -> None:
        if self.num_classes is not None:
            labels = source.labels
            if labels is None or labels.ndim != 1 or labels.is_floating_point():
                raise InputError("MarginLoss: one beta per class needs one int label per embedding")
            check_label_range("MarginLoss", labels, self.num_classes)
