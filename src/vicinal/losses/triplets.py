"""The triplet loss, over all triplets of a batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from vicinal.arguments import check_finite
from vicinal.errors import InputError
from vicinal.losses.base import Reduction, RowLoss
from vicinal.losses.row_functions import count_negatives, count_positives, softplus, sum_over_triplets
from vicinal.mining import Miner
from vicinal.similarity import Rows

Triplets = Literal["all", "semi-hard"]


class TripletLoss(RowLoss):
    """Triplet loss: the mean over all triplets of an anchor a, a positive p and a negative n of

        [S_an - S_ap + margin]+

    in time that grows with the number of triplets, and memory that does not.

    - All triplets: `TripletLoss()`.
    - Each anchor's hardest positive and negative ("batch hard"): `TripletLoss(miner=HardestMiner())`.
    - Semi-hard, the negative less similar than the positive but within the margin: `TripletLoss(triplets="semi-hard")`.
    - Distance-weighted negatives: `TripletLoss(miner=DistanceWeightedMiner())`.

    Reference: Schroff et al., "FaceNet", CVPR 2015, whose margin of 0.2 on squared distances is 0.1 on similarities, in
    the form of Wang et al., "Multi-Similarity Loss", CVPR 2019, Eq. (5); soft margin: Hermans et al., "In Defense of
    the Triplet Loss", 2017 (there with `margin=0`).

    Args:
        margin: by how much positives should be more similar than negatives.
        triplets: "all", or the "semi-hard" ones, in which `S_ap - margin < S_an < S_ap`.
        soft: `log(1 + exp(S_an - S_ap + margin))` in place of the hinge.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "pairs", the mean over all triplets that were chosen; "violating", over those with a loss above 0, as
            other libraries do; "anchors", their sum by the number of anchors; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: margin is not finite, or triplets is none of the two.

    Example:
        >>> import torch
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
        if triplets not in ("all", "semi-hard"):
            raise InputError(f'TripletLoss: triplets = {triplets!r} must be "all" or "semi-hard"')
        self.margin = margin
        self.triplets = triplets
        self.soft = soft

    def row_values(self, rows: Rows) -> Tensor:
        return sum_over_triplets(rows.positives, rows.negatives, self._compare)[0]

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction in ("anchors", "sum"):
            return (self.row_values(rows),)
        sums, violating = sum_over_triplets(rows.positives, rows.negatives, self._compare)
        if self.reduction == "violating" or self.triplets == "semi-hard":
            return sums, violating
        return sums, count_positives(rows.positives) * count_negatives(rows.negatives)

    def _compare(self, differences: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and their slopes from `S_an - S_ap`."""
        violations = differences + self.margin
        losses = softplus(violations) if self.soft else violations.relu()
        slopes = violations.sigmoid() if self.soft else losses.sign()
        if self.triplets == "all":
            return losses, slopes
        semi_hard = ((differences < 0) & (violations > 0)).to(losses.dtype)
        return losses * semi_hard, slopes * semi_hard
