"""Pair losses: functions of an anchor's positive and negative similarities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses.base import Reduction, RowLoss
from vicinal.mining import Miner, MultiSimilarityMiner
from vicinal.similarity import Rows


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
        reduction: "anchors", the paper's mean over all anchors, or "contributing", the mean over those with a pair.
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
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 < value < math.inf:
                raise InputError(f"MultiSimilarityLoss: {name} = {value} must be positive")
        if not math.isfinite(base):
            raise InputError(f"MultiSimilarityLoss: base = {base} must be a finite number")
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def row_values(self, rows: Rows) -> Tensor:
        shifted = rows.similarity - self.base
        positives = log_one_plus_sum_exp(-self.alpha * shifted, rows.positive)
        negatives = log_one_plus_sum_exp(self.beta * shifted, rows.negative)
        return positives / self.alpha + negatives / self.beta


def log_one_plus_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """`log(1 + sum exp(x))` over the entries of each row that the mask names; 0 for an empty row. Never overflows."""
    exponents = exponents.masked_fill(~mask, -math.inf)
    # The 1 is exp(0): with the shift at least 0, an empty row gives log(1) and no inf - inf.
    shift = exponents.detach().amax(dim=1).clamp_min(0.0)
    return torch.log(torch.exp(-shift) + torch.exp(exponents - shift[:, None]).sum(dim=1)) + shift
