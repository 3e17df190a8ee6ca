"""General pair weighting: a pair loss is equivalent to a weight of each pair, and a weighting rule defines a loss.

A loss depends on the embeddings only through the similarities S, so its gradient is that of

    F = sum over negative pairs of w_ij S_ij - sum over positive pairs of w_ij S_ij,   w_ij = |dL / dS_ij| held constant

:func:`pair_weights` computes the weights of a loss, :class:`WeightedPairLoss` is the loss F of a weighting rule.

Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
Section 3.1, Eq. (1) to (3). It assumes that a loss pulls positive pairs together and pushes negative pairs apart.
SupCon also pushes apart a positive pair that is much closer than the anchor's other positives, and a ranking loss may
push apart a positive that is ranked before another one. Their weights would be negative, which
`pair_weights(..., signed=True)` shows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.losses.base import Loss, loss_terms
from vicinal.losses.row_functions import count_negatives, count_positives
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.mining import Miner
from vicinal.similarity.embeddings import at_least_float32
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import shown
from vicinal.utils.devices import ieee_products
from vicinal.utils.errors import InputError

__all__ = ["EqualWeights", "LossWeights", "WeightedPairLoss", "WeightingRule", "pair_weights", "similarity_weights"]


def __dir__() -> list[str]:
    return __all__


def pair_weights(loss: Loss, source: PairSource, *, signed: bool = False) -> Tensor:
    """Compute the weight that a loss gives each pair of a batch, `|dL / dS_ij|`.

    For a loss with a random miner these are the weights of its next call. The loss does not change: the call is not
    counted, and no parameter gets a gradient. Time and memory grow with n c, whatever the tiles.

    Args:
        loss: any loss that depends only on similarities, as almost all do, or a sum of such losses.
        source: n anchors and c references, from :meth:`vicinal.similarity.PairSource.from_batch`.
        signed: whether to return `dL / dS_ij` itself, which is negative where more similarity lowers the loss.

    Returns:
        float [n, c], at least float32; 0 for an anchor with itself and for entries that are not a pair.

    Raises:
        InputError: the loss depends on more than the pairs of this batch, for example on a memory.

    Example:
        >>> from vicinal.losses import NCALoss
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> pair_weights(NCALoss(), PairSource.from_batch(embeddings, torch.tensor([7, 7, 9])))
        tensor([[0.0000, 0.3543, 0.3543],
                [0.5498, 0.0000, 0.5498],
                [0.0000, 0.0000, 0.0000]])
    """
    device = source.anchors.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False), ieee_products(device):
        similarity = source.similarity(slice(0, len(source)))
    gradient = _gradient(loss, source, similarity)
    return gradient if signed else gradient.abs()


def similarity_weights(
    loss: Loss,
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor | None = None,
    *,
    dim: int = 512,
    signed: bool = False,
) -> Tensor:
    """Compute the weight that a loss gives each pair from similarities, which need not be those of embeddings.

    Args:
        loss: see :func:`pair_weights`.
        similarity: float [n, c], finite, of anchors to references, no anchor being a reference.
        positive: bool [n, c].
        negative: bool [n, c]; default: all pairs that are not positive.
        dim: dimension of the embeddings, which distance-weighted mining depends on.
        signed: whether to return `dL / dS_ij` itself.

    Returns:
        float [n, c], at least float32.

    Raises:
        InputError: see :func:`pair_weights`; or shapes or types do not match.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> similarity, positive = torch.tensor([[0.9, 0.7, 0.3]]), torch.tensor([[True, False, False]])
        >>> similarity_weights(ContrastiveLoss(positive_margin=None, reduction="sum"), similarity, positive)
        tensor([[1., 1., 0.]])
    """
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise InputError(f"similarity must be float [n, c], not {similarity.dtype} {list(similarity.shape)}")
    anchors, references = (similarity.new_zeros(length, dim) for length in similarity.shape)
    source = PairSource.from_batch(anchors, references=references, positive=positive, negative=negative)
    gradient = _gradient(loss, source, at_least_float32(similarity))
    return gradient if signed else gradient.abs()


@dataclass(frozen=True)
class _SimilarityPairSource(PairSource):
    """A source of given similarities, which are its anchors."""

    allows_sparse_gradient: ClassVar[bool] = False
    embedding_dim: int = 0

    @classmethod
    def like(cls, source: PairSource, similarity: Tensor) -> _SimilarityPairSource:
        """A source with the pairs of another and these similarities, [n, c]."""
        kept = {field.name: getattr(source, field.name) for field in fields(PairSource)}
        empty = similarity.new_zeros(similarity.shape[1], 0)
        return cls(**{**kept, "anchors": similarity, "references": empty, "embedding_dim": source.dim})

    @property
    def dim(self) -> int:
        return self.embedding_dim

    def similarity(self, span: slice) -> Tensor:
        return self.anchors[span].clone()  # rows may overwrite it

    def references_as_batch(self) -> PairSource:
        if self.offset != 0 or len(self) != self.num_references:
            raise InputError("this loss compares all references with one another; give a batch without references")
        return self

    def mean_similarity(self) -> Tensor:
        return self.anchors.mean()

    def add_gradient(self, totals: Sequence[Tensor], span: slice, grad_similarity: Tensor) -> None:
        totals[0][span] += grad_similarity


def _gradient(loss: Loss, source: PairSource, similarity: Tensor) -> Tensor:
    """`dL / dS`, [n, c]."""
    for term in loss_terms(loss):
        if not getattr(term, "uses_only_similarities", False):
            raise InputError(
                f"{type(term).__name__} has no pair weights of its own, because it does not depend only on "
                "similarities; give another loss, with references if it has a memory"
            )
    with torch.inference_mode(False), torch.enable_grad():
        similarity = similarity.detach().clone().requires_grad_()
        # A copy, because the call may be counted.
        parts = deepcopy(loss).to(similarity.device).parts(_SimilarityPairSource.like(source, similarity))
        (gradient,) = torch.autograd.grad(torch.stack(list(parts.values())).sum(), similarity)
    if source.offset is not None:  # a mean over all similarities includes those of an anchor with itself
        gradient.diagonal(source.offset).zero_()
    return gradient


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
    "anchors", but another value. torch.compile cannot compile it for a triplet loss, recall@k, Smooth-AP or SupAP.

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
