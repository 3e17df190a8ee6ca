"""General pair weighting: every loss of pairs is a weight on each pair, and every weighting rule is a loss.

A loss moves the embeddings only through the similarities S, so its gradient is that of

    F = sum over negative pairs of w_ij S_ij - sum over positive pairs of w_ij S_ij,   w_ij = |dL / dS_ij| held constant

:func:`pair_weights` reads the weights off a loss, :class:`WeightedPairLoss` is the loss F of a rule.

Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
Section 3.1, Eq. (1) to (3). It takes for granted that a loss pulls positive pairs together and pushes negative ones
apart. SupCon also pushes apart a positive pair that is much closer than the anchor's others, and a loss that ranks
positives among themselves one that is in the way of another: its weight would have to be negative, and
`pair_weights(..., signed=True)` shows it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.errors import InputError
from vicinal.losses.base import Loss, Reduction, RowLoss, terms_of
from vicinal.losses.row_functions import count_negatives, count_positives
from vicinal.mining import Miner
from vicinal.pair_layout import Pairs
from vicinal.similarity import Relation, Rows, Source, at_least_float32

__all__ = [
    "EqualWeights",
    "WeightedPairLoss",
    "WeightingRule",
    "WeightsOf",
    "dependence",
    "pair_weights",
    "similarity_weights",
]


def pair_weights(
    loss: Loss,
    embeddings: Tensor,
    labels: Tensor | None = None,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    offset: int | None = None,
    *,
    relation: Relation | None = None,
    positive: Tensor | None = None,
    negative: Tensor | None = None,
    signed: bool = False,
) -> Tensor:
    """The weight that a loss gives each pair of a batch, `|dL / dS_ij|`.

    Of a loss with a random miner it is what the next call of the loss would give. The loss stays as it is: no call is
    counted, no parameter gets a gradient. Time grows with n c^2 and memory with c^2, whatever the loss's tiles are.

    Args:
        loss: any loss of the library that is a function of similarities, as almost all are, or a sum of such.
        embeddings: float [n, d]; this and what follows is as in `Loss.forward`.
        labels: int [n].
        references: float [c, d]; default: the batch itself.
        reference_labels: int [c].
        offset: anchor i is reference `offset + i`.
        relation: which pairs are positive.
        positive: bool [n, c], the positive pairs, instead of labels.
        negative: bool [n, c], the negative pairs.
        signed: give `dL / dS_ij` itself: negative where more similarity would lower the loss.

    Returns:
        float [n, c], at least float32; 0 for an anchor with itself and for what is no pair.

    Raises:
        InputError: the loss depends on more than the pairs of this batch, such as a memory; shapes, types or the offset
            do not fit together.

    Example:
        >>> from vicinal.losses import NCALoss
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> pair_weights(NCALoss(), embeddings, torch.tensor([7, 7, 9]))
        tensor([[0.0000, 0.3543, 0.3543],
                [0.5498, 0.0000, 0.5498],
                [0.0000, 0.0000, 0.0000]])
    """
    source = Source.of(
        embeddings,
        labels,
        references,
        reference_labels,
        offset,
        relation=relation,
        positive=positive,
        negative=negative,
    )
    with torch.no_grad(), torch.autocast(source.anchors.device.type, enabled=False):
        similarity = source.anchors @ source.references.T
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
    """The weight that a loss gives each pair, from similarities alone, also such as no embeddings have.

    Args:
        loss: as in :func:`pair_weights`, which see.
        similarity: float [n, c], finite, of anchors to references none of which is an anchor.
        positive: bool [n, c].
        negative: bool [n, c]; default: all pairs that are not positive.
        dim: dimension of the embeddings that the similarities are thought to be of; distance-weighted mining asks.
        signed: give `dL / dS_ij` itself.

    Returns:
        float [n, c], at least float32.

    Raises:
        InputError: as for :func:`pair_weights`.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> similarity, positive = torch.tensor([[0.9, 0.7, 0.3]]), torch.tensor([[True, False, False]])
        >>> similarity_weights(ContrastiveLoss(positive_margin=None, reduction="sum"), similarity, positive)
        tensor([[1., 1., 0.]])
    """
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise InputError(f"similarity must be float [n, c], not {similarity.dtype} {list(similarity.shape)}")
    anchors, references = (similarity.new_zeros(length, dim) for length in similarity.shape)
    source = Source.of(anchors, references=references, positive=positive, negative=negative)
    gradient = _gradient(loss, source, at_least_float32(similarity))
    return gradient if signed else gradient.abs()


def dependence(loss: Loss, positives: int = 4, negatives: int = 12) -> str:
    """On which similarities the weight of a negative pair depends, found by moving them.

    S: its own, as all of the anchor's similarities move together; P: those of the anchor's positives, as they alone
    move; N: those of its other negatives. They take five levels each. Together they move by 0.4, which must be a whole
    number of bins of a histogram loss, or it would seem to depend on S.

    Reference: Wang et al., CVPR 2019, Section 4.1, Fig. 2 and Table 1.

    Args:
        loss: as in :func:`pair_weights`.
        positives: how many the anchor has.
        negatives: how many the anchor has.

    Returns:
        Those of the letters "SPN" that hold.

    Raises:
        InputError: a number is below 1, or as for :func:`pair_weights`.

    Example:
        >>> from vicinal.losses import BinomialDevianceLoss, NCALoss
        >>> dependence(BinomialDevianceLoss()), dependence(NCALoss())
        ('S', 'PN')
    """
    if positives < 1 or negatives < 1:
        raise InputError(f"positives = {positives} and negatives = {negatives} must be at least 1")
    positive = torch.arange(positives + negatives)[None] < positives

    def weight(shift: float, of_positives: float, of_others: float, own: float) -> float:
        """That of the last negative, where each kind is near one similarity."""
        kinds = (of_positives, positives), (of_others, negatives - 1)
        parts = [level + torch.linspace(0.002, 0.01, count, dtype=torch.float64) for level, count in kinds]
        similarity = torch.cat([*parts, torch.tensor([own], dtype=torch.float64)]) + shift
        return similarity_weights(loss, similarity[None], positive)[0, -1].item()

    levels = torch.linspace(-0.58, 0.58, 5).tolist()
    grid = (0.0, 0.4), levels, levels, levels
    weights = torch.tensor([weight(*place) for place in product(*grid)], dtype=torch.float64)
    weights = weights.view([len(axis) for axis in grid])
    # Relative, for the weights of negatives that are far from the hardest are tiny.
    same = [torch.isclose(weights, weights.narrow(axis, 0, 1), rtol=1e-6, atol=1e-100).all() for axis in range(3)]
    return "".join(letter for letter, constant in zip("SPN", same, strict=True) if not constant)


@dataclass(frozen=True)
class _SimilaritySource(Source):
    """A source of given similarities, which stand in the place of the anchors."""

    embedding_dim: int = 0

    @classmethod
    def like(cls, source: Source, similarity: Tensor) -> _SimilaritySource:
        """The source of embeddings with other similarities, [n, c]."""
        kept = {field.name: getattr(source, field.name) for field in fields(Source)}
        nothing = similarity.new_zeros(similarity.shape[1], 0)
        return cls(**{**kept, "anchors": similarity, "references": nothing, "embedding_dim": source.dim})

    @property
    def dim(self) -> int:
        return self.embedding_dim

    def similarity(self, start: int, stop: int) -> Tensor:
        return self.anchors[start:stop].clone()  # rows are made in place

    def among_references(self) -> Source:
        if self.offset != 0 or len(self) != self.columns:
            raise InputError("of a loss of samples and their neighbours, give the batch alone, without references")
        return self

    def mean_similarity(self) -> Tensor:
        return self.anchors.mean()

    def add_gradient(
        self,
        totals: Sequence[Tensor],
        by_positives: Tensor | None,
        by_negatives: Tensor | None,
        pairs: Pairs,
        start: int,
        stop: int,
    ) -> None:
        totals[0][start:stop] += pairs.join(by_positives, by_negatives)


def _gradient(loss: Loss, source: Source, similarity: Tensor) -> Tensor:
    """`dL / dS`, [n, c]."""
    _check_pairs_only(loss)
    with torch.inference_mode(False), torch.enable_grad():
        similarity = similarity.detach().clone().requires_grad_()
        # Of a copy, for a call may count itself.
        parts = deepcopy(loss).to(similarity.device).parts_of(_SimilaritySource.like(source, similarity))
        (gradient,) = torch.autograd.grad(torch.stack(list(parts.values())).sum(), similarity)
    if source.offset is not None:  # what the mean over all similarities says of those of an anchor with itself
        gradient.diagonal(source.offset).zero_()
    return gradient


def _check_pairs_only(loss: Loss) -> None:
    for term in terms_of(loss):
        if not getattr(term, "of_similarities", False):
            raise InputError(
                f"{type(term).__name__} has no pair weights of its own, having more to it than similarities; "
                "give another loss, with references if it has a memory"
            )


class WeightingRule(ABC):
    """Weighs pairs row by row; a new rule is one method.

    What it returns is held constant by :class:`WeightedPairLoss`, and where there is no pair it is not looked at. In
    :func:`torch.compile` the method is compiled too.
    """

    @abstractmethod
    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The weights of positives and of negatives, of the same shapes as `rows.positives` and `rows.negatives`.

        Not negative as a rule: a negative weight pushes a positive pair apart.
        """


@dataclass(frozen=True)
class EqualWeights(WeightingRule):
    """Every pair has the weight 1. After a multi-similarity miner this is "MS mining" alone.

    Reference: Wang et al., CVPR 2019, Section 5.1, Table 2.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> EqualWeights()(rows)
        (tensor([[1., 1.]]), tensor([[1.]]))
    """

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.ones_like(rows.positives), torch.ones_like(rows.negatives)


class WeightsOf(nn.Module, WeightingRule):
    """The weights that a loss of the library gives the pairs of each anchor.

    `WeightedPairLoss(WeightsOf(loss))` has another value than the loss and the same gradient, when both have the same
    reduction, "sum" or "anchors". Of a triplet loss, recall@k, Smooth-AP or SupAP it cannot be compiled by
    torch.compile.

    Args:
        loss: its formula of a row and its miner count; its reduction, as far as it goes beyond one row, does not, and
            its parameters are not learned.

    Raises:
        InputError: the loss is no :class:`~vicinal.losses.base.RowLoss`, or has a random miner, whose place is in the
            `WeightedPairLoss`.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
        >>> rows = Rows(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> WeightsOf(MultiSimilarityLoss(beta=10))(rows)
        (tensor([[0.0000, 0.8320]]), tensor([[0.0474]]))
    """

    def __init__(self, loss: RowLoss) -> None:
        super().__init__()
        if not isinstance(loss, RowLoss):
            raise InputError(f"WeightsOf: {type(loss).__name__} is no RowLoss, so no row has weights of its own")
        if loss.miner is not None and loss.miner.is_random:
            raise InputError(
                f"WeightsOf: {type(loss).__name__} has a random miner; give it miner=None, and the miner to the "
                "WeightedPairLoss"
            )
        self.loss = deepcopy(loss).requires_grad_(False)

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.loss.miner is not None:
            rows = self.loss.miner(rows)

        def total(positives: Tensor, negatives: Tensor) -> Tensor:
            return self.loss.row_values(rows._replace(positives=positives, negatives=negatives)).sum()

        if torch.compiler.is_compiling():
            by_positives, by_negatives = torch.func.grad(total, argnums=(0, 1))(rows.positives, rows.negatives)
        else:
            with torch.inference_mode(False), torch.enable_grad():
                leaves = tuple(part.detach().clone().requires_grad_() for part in (rows.positives, rows.negatives))
                by_positives, by_negatives = torch.autograd.grad(total(*leaves), leaves, materialize_grads=True)
        return -by_positives, by_negatives


class WeightedPairLoss(RowLoss):
    """The loss that a weighting rule makes: the sum over all anchors of

        sum_N w_ij S_ij - sum_P w_ij S_ij

    with the weights w held constant. Its gradient is what trains; its value says little, since it may grow while the
    weights change.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (3).

    Args:
        rule: gives the weights of the pairs that the miner leaves.
        miner: chooses pairs before the rule sees them; None keeps all.
        reduction: "sum", the paper's; "anchors", the mean over all anchors; "contributing", over those with a pair;
            "pairs", the sum by the number of pairs that the miner leaves.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: when called: the rule gives other shapes than those of the rows.

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
            raise InputError(f"WeightedPairLoss: rule must be a WeightingRule such as EqualWeights(), not {rule!r}")
        self.rule = rule

    def row_values(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            weights = self.rule(rows)
        for name, of_pairs, pairs in zip(("positives", "negatives"), weights, rows[:2], strict=True):
            if of_pairs.shape != pairs.shape:
                raise InputError(
                    f"{type(self.rule).__name__}: weights of {name} are {list(of_pairs.shape)} and must be "
                    f"{list(pairs.shape)}"
                )
        positives = _weighted(rows.positives, weights[0], rows.positives < math.inf)
        return _weighted(rows.negatives, weights[1], rows.negatives > -math.inf) - positives

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.reduction == "pairs":
            return self.row_values(rows), count_positives(rows.positives) + count_negatives(rows.negatives)
        return super().row_terms(rows)


def _weighted(similarity: Tensor, weights: Tensor, present: Tensor) -> Tensor:
    """The sum of weight times similarity over each row's pairs, [rows]."""
    # Both are filled: infinity times 0 is NaN, and so is 0 times whatever a rule makes of infinity.
    return (torch.where(present, weights, 0.0) * torch.where(present, similarity, 0.0)).sum(dim=1)
