"""Weighting rules, and the loss that a rule defines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.losses.row_functions import count_negatives, count_positives
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import Miner
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError


class WeightingRule(ABC):
    """Computes the weights of pairs row by row; a new rule is one method.

    :class:`WeightedPairLoss` detaches the weights and ignores those of padding. :func:`torch.compile` compiles the
    method too.
    """

    @abstractmethod
    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Compute the weights of positives and of negatives, in the shapes of `rows.positives` and `rows.negatives`.

        Weights are normally not negative: a negative weight pushes a positive pair apart.
        """


@dataclass(frozen=True)
class EqualWeights(WeightingRule):
    """Gives every pair the weight 1. After a multi-similarity miner this is "MS mining" alone.

    Reference: Wang et al., CVPR 2019, Section 5.1, Table 2.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> EqualWeights()(rows)
        (tensor([[1., 1.]]), tensor([[1.]]))
    """

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.ones_like(rows.positives), torch.ones_like(rows.negatives)


class LossWeights(nn.Module, WeightingRule):
    """Gives pairs the weights that a loss gives them.

    `WeightedPairLoss(LossWeights(loss))` has the gradient of the loss, if both have the same reduction, "sum" or
    "anchors", but another value. For a triplet loss, recall@k, Smooth-AP or SupAP torch.compile cannot compile it.

    Args:
        loss: its `row_values` and its miner are used, its reduction is not, and its parameters are not learned.

    Raises:
        InputError: the loss is not a :class:`~vicinal.losses.RowLoss`, or has a random miner, which belongs in the
            `WeightedPairLoss`.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
        >>> rows = Rows(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> LossWeights(MultiSimilarityLoss(beta=10))(rows)
        (tensor([[0.0000, 0.6457]]), tensor([[0.8808]]))
    """

    def __init__(self, loss: RowLoss) -> None:
        super().__init__()
        if not isinstance(loss, RowLoss):
            raise InputError(f"LossWeights: {type(loss).__name__} is not a RowLoss, so no row has weights of its own")
        if loss.miner is not None and loss.miner.is_random:
            raise InputError(
                f"LossWeights: {type(loss).__name__} has a random miner; give it miner=None, and the miner to the "
                "WeightedPairLoss"
            )
        self.loss = deepcopy(loss).requires_grad_(False)

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.loss.miner is not None:
            rows = self.loss.miner(rows)

        def total(positives: Tensor, negatives: Tensor) -> Tensor:
            return self.loss.row_values(rows._replace(positives=positives, negatives=negatives)).sum()

        if torch.compiler.is_compiling():
            grad_positives, grad_negatives = torch.func.grad(total, argnums=(0, 1))(rows.positives, rows.negatives)
        else:
            with torch.inference_mode(False), torch.enable_grad():
                leaves = tuple(part.detach().clone().requires_grad_() for part in (rows.positives, rows.negatives))
                grad_positives, grad_negatives = torch.autograd.grad(total(*leaves), leaves, materialize_grads=True)
        return -grad_positives, grad_negatives


class WeightedPairLoss(RowLoss):
    """The loss of a weighting rule: the sum over all anchors of

        sum_N w_ij S_ij - sum_P w_ij S_ij

    with the weights w held constant. Only its gradient is meaningful: its value may grow during training, because the
    weights change.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (3).

    Args:
        rule: computes the weights of the pairs that the miner selects.
        miner: selects the pairs; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a pair;
            "pairs", the sum divided by the number of pairs that the miner selects.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: when called: the weights do not have the shapes of the rows.

    Example:
        >>> from vicinal.mining import MultiSimilarityMiner
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss = WeightedPairLoss(EqualWeights(), MultiSimilarityMiner())
        >>> loss(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2000)
    """

    reductions: ClassVar[tuple[str, ...]] = ("sum", "anchors", "contributing", "pairs")

    def __init__(
        self,
        rule: WeightingRule,
        miner: Miner | None = None,
        reduction: Reduction = "sum",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        if not isinstance(rule, WeightingRule):
            raise InputError(
                f"WeightedPairLoss: rule must be a WeightingRule such as EqualWeights(), not {shown(rule)}"
            )
        self.rule = rule

    def row_values(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            weights = self.rule(rows)
        for name, weight, pairs in zip(("positives", "negatives"), weights, rows[:2], strict=True):
            if weight.shape != pairs.shape:
                raise InputError(
                    f"{type(self.rule).__name__}: weights of {name} are {list(weight.shape)} and must be "
                    f"{list(pairs.shape)}"
                )
        positives = _weighted(rows.positives, weights[0], rows.positives < math.inf)
        return _weighted(rows.negatives, weights[1], rows.negatives > -math.inf) - positives

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction == "pairs":
            return self.row_values(rows), count_positives(rows.positives) + count_negatives(rows.negatives)
        return super().row_terms(rows)


def _weighted(similarity: Tensor, weights: Tensor, present: Tensor) -> Tensor:
    """The sum of weight times similarity over the pairs of each row, [rows]."""
    # Both are masked: 0 times infinity is NaN, and a rule may return anything for padding.
    return (torch.where(present, weights, 0.0) * torch.where(present, similarity, 0.0)).sum(dim=1)
