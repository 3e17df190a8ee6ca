"""Miners narrow rows: they choose which positive and negative pairs of an anchor a loss sees.

They compose: `Chain([EasyPositiveMiner(), SemiHardMiner()])` lets one choose among what another left, `a & b` keeps
the pairs that both keep, `a | b` those that one of them keeps. Pairs of equal similarity are kept or dropped together,
so the order of a batch does not matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.arguments import check_at_least_one, check_finite, check_positive, check_seed
from vicinal.errors import InputError
from vicinal.seeds import uniform
from vicinal.similarity import Rows

__all__ = [
    "Both",
    "Chain",
    "DistanceWeightedMiner",
    "EasyPositiveMiner",
    "Either",
    "HardestMiner",
    "Miner",
    "MultiSimilarityMiner",
    "SemiHardMiner",
]


class Miner(ABC):
    """Chooses pairs row by row; a new miner is one method."""

    @abstractmethod
    def __call__(self, rows: Rows) -> Rows:
        """The rows with fewer pairs."""

    @property
    def is_random(self) -> bool:
        """Whether the choice depends on `rows.keys`; a loss then counts its calls, so that each draws anew."""
        return False

    def __and__(self, other: Miner) -> Both:
        return Both(self, other)

    def __or__(self, other: Miner) -> Either:
        return Either(self, other)


@dataclass(frozen=True)
class MultiSimilarityMiner(Miner):
    """Keeps the pairs that compete with the anchor's hardest pair of the other kind.

    A negative j of anchor i is kept when `S_ij > min_k S_ik - epsilon` over the positives k, a positive when
    `S_ij < max_k S_ik + epsilon` over the negatives k. An anchor without positives keeps no negative, and the
    other way round.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (11) and (12).

    Args:
        epsilon: the slack, in units of similarity; the paper's 0.1 by default.

    Raises:
        InputError: epsilon is not a finite number.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, math.inf]]), torch.tensor([[0.7, 0.3]]), None, torch.arange(1), 2)
        >>> MultiSimilarityMiner(epsilon=0.3)(rows).negatives
        tensor([[0.7000,   -inf]])
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_finite(self, epsilon=self.epsilon)

    def __call__(self, rows: Rows) -> Rows:
        return rows.keep(
            rows.positives < rows.hardest_negative + self.epsilon,
            rows.negatives > rows.hardest_positive - self.epsilon,
        )


@dataclass(frozen=True)
class HardestMiner(Miner):
    """Keeps each anchor's hardest pairs: the least similar positives and the most similar negatives.

    With a triplet loss and the defaults this is "batch hard" (Hermans et al., "In Defense of the Triplet Loss for
    Person Re-Identification", 2017, Eq. 5).

    Args:
        positives: how many positives an anchor keeps; None keeps all.
        negatives: how many negatives an anchor keeps; None keeps all.

    Raises:
        InputError: a number is below 1.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.4]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> HardestMiner(positives=None, negatives=2)(rows).negatives
        tensor([[0.7000,   -inf, 0.5000]])
    """

    positives: int | None = 1
    negatives: int | None = 1

    def __post_init__(self) -> None:
        check_at_least_one(self, positives=self.positives, negatives=self.negatives)

    def __call__(self, rows: Rows) -> Rows:
        positives = rows.positives <= _smallest(rows.positives, self.positives) if self.positives else None
        negatives = -rows.negatives <= _smallest(-rows.negatives, self.negatives) if self.negatives else None
        return rows.keep(positives, negatives)


@dataclass(frozen=True)
class EasyPositiveMiner(Miner):
    """Keeps each anchor's easiest positives, the most similar ones, and all negatives.

    Reference: Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020.

    Args:
        positives: how many positives an anchor keeps.

    Raises:
        InputError: the number is below 1.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.4]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> EasyPositiveMiner()(rows).positives
        tensor([[0.9000,    inf]])
    """

    positives: int = 1

    def __post_init__(self) -> None:
        check_at_least_one(self, positives=self.positives)

    def __call__(self, rows: Rows) -> Rows:
        easiness = torch.where(rows.positives < math.inf, -rows.positives, math.inf)
        return rows.keep(positives=easiness <= _smallest(easiness, self.positives))


@dataclass(frozen=True)
class SemiHardMiner(Miner):
    """Keeps the negatives that are less similar to the anchor than its least similar positive, if only by a margin.

    With one positive an anchor, or after a miner that leaves one, these are the semi-hard negatives of Schroff et al.,
    "FaceNet", CVPR 2015. For those of every single positive see `TripletLoss(triplets="semi-hard")`.

    Args:
        margin: how much less similar a negative may be, in units of similarity; None: any amount.

    Raises:
        InputError: margin is not positive.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> SemiHardMiner(margin=0.2)(rows).negatives
        tensor([[  -inf,   -inf, 0.5000]])
    """

    margin: float | None = 0.1

    def __post_init__(self) -> None:
        check_positive(self, margin=self.margin)

    def __call__(self, rows: Rows) -> Rows:
        positive = rows.hardest_positive
        semi_hard = (rows.negatives < positive) & (positive < math.inf)
        if self.margin is not None:
            semi_hard &= rows.negatives > positive - self.margin
        return rows.keep(negatives=semi_hard)


@dataclass(frozen=True)
class DistanceWeightedMiner(Miner):
    """Draws negatives so that all distances are equally likely, and keeps all positives.

    A negative at distance D is drawn with a probability proportional to 1 / q(max(D, cutoff)), where q is the density
    of distances between random points on the sphere, `D^(d-2) (1 - D^2 / 4)^((d-3)/2)`; beyond `nonzero_loss_cutoff`
    never. Draws are with replacement, so an anchor may keep fewer than were drawn.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Section 4. Draws depend on `seed`,
    the number of the call and the anchor's place in the batch, and on nothing else; not on global random state.

    Args:
        draws: negatives drawn for an anchor; None: as many as it has positives, as in the paper.
        cutoff: distances below count as this one, which bounds the variance; the authors' 0.5 by default.
        nonzero_loss_cutoff: distance from which on negatives are never drawn; the authors' 1.4 by default.
        seed: not negative.

    Raises:
        InputError: draws is below 1, seed is negative, or not `0 < cutoff < nonzero_loss_cutoff < 2`.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[-0.9, 0.3, -0.8]]), None, torch.arange(1), 8)
        >>> DistanceWeightedMiner()(rows).negatives
        tensor([[  -inf, 0.3000,   -inf]])
    """

    draws: int | None = None
    cutoff: float = 0.5
    nonzero_loss_cutoff: float = 1.4
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least_one(self, draws=self.draws)
        check_seed(self, self.seed)
        if not 0 < self.cutoff < self.nonzero_loss_cutoff < 2:
            raise InputError(
                f"DistanceWeightedMiner: cutoff = {self.cutoff} and nonzero_loss_cutoff = {self.nonzero_loss_cutoff} "
                "must be in this order between 0 and 2"
            )

    @property
    def is_random(self) -> bool:
        return True

    def __call__(self, rows: Rows) -> Rows:
        cumulative = self._weights(rows.negatives.detach(), rows.dim).cumsum_(dim=1)
        total = cumulative[:, -1:]
        draws = self.draws or rows.positives.shape[1]
        wanted = uniform(self.seed, rows.keys, draws).to(total.dtype) * total
        drawn = torch.searchsorted(cumulative, wanted, right=True).clamp_max_(cumulative.shape[1] - 1)
        counts = (rows.positives < math.inf).sum(dim=1, keepdim=True) if self.draws is None else draws
        # Draws beyond those wanted repeat the first one.
        drawn = torch.where(torch.arange(draws, device=drawn.device) < counts, drawn, drawn[:, :1])
        any_drawn = (total > 0) & (counts > 0) if isinstance(counts, Tensor) else total > 0
        kept = torch.where(any_drawn, torch.zeros_like(total), -math.inf)
        dropped = torch.full_like(rows.negatives, -math.inf).scatter_(1, drawn, kept.expand(-1, draws))
        return rows._replace(negatives=rows.negatives + dropped)

    def _weights(self, negatives: Tensor, dim: int) -> Tensor:
        """What each negative's probability is proportional to; 0 for those that are never drawn."""
        # In similarities the density of distances is (1 - s^2)^((d-3)/2) (1 - s)^(1/2), up to a constant.
        lowest, highest = 1 - self.nonzero_loss_cutoff**2 / 2, 1 - self.cutoff**2 / 2
        # Those never drawn stand where the density is highest, so that they do not set the scale. A mask of numbers
        # is several times faster than one of bools.
        similarity = F.threshold(negatives, lowest, max(lowest, 0.0)).clamp_max_(highest)
        drawable = (negatives - lowest).sign_().relu_()
        log_weights = torch.rsub(similarity.square(), 1).log_().mul_((3 - dim) / 2)
        weights = log_weights.sub_(log_weights.amax(dim=1, keepdim=True)).exp_()
        return weights.mul_(similarity.neg_().add_(1).rsqrt_()).mul_(drawable)


@dataclass(frozen=True)
class Chain(Miner):
    """Miners one after the other: each chooses among the pairs that the one before left.

    Args:
        miners: at least one.

    Raises:
        InputError: there is no miner.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.6]]), torch.tensor([[0.7, 0.85, 0.5]]), None, torch.arange(1), 2)
        >>> Chain([EasyPositiveMiner(), SemiHardMiner(margin=0.1)])(rows).negatives
        tensor([[  -inf, 0.8500,   -inf]])
    """

    miners: Sequence[Miner]

    def __post_init__(self) -> None:
        if not self.miners:
            raise InputError("Chain: miners is empty; give at least one")

    @property
    def is_random(self) -> bool:
        return any(miner.is_random for miner in self.miners)

    def __call__(self, rows: Rows) -> Rows:
        for miner in self.miners:
            rows = miner(rows)
        return rows


@dataclass(frozen=True)
class Both(Miner):
    """Keeps the pairs that two miners both keep, each choosing among all; what `a & b` makes.

    Args:
        first: a miner.
        second: a miner.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> (SemiHardMiner(margin=None) & HardestMiner(negatives=2))(rows).negatives
        tensor([[  -inf,   -inf, 0.5000]])
    """

    first: Miner
    second: Miner

    @property
    def is_random(self) -> bool:
        return self.first.is_random or self.second.is_random

    def __call__(self, rows: Rows) -> Rows:
        first, second = self.first(rows), self.second(rows)
        return rows.keep(
            (first.positives < math.inf) & (second.positives < math.inf),
            (first.negatives > -math.inf) & (second.negatives > -math.inf),
        )


@dataclass(frozen=True)
class Either(Miner):
    """Keeps the pairs that at least one of two miners keeps, each choosing among all; what `a | b` makes.

    Args:
        first: a miner.
        second: a miner.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> (SemiHardMiner(margin=None) | HardestMiner())(rows).negatives
        tensor([[0.7000, 0.3000, 0.5000]])
    """

    first: Miner
    second: Miner

    @property
    def is_random(self) -> bool:
        return self.first.is_random or self.second.is_random

    def __call__(self, rows: Rows) -> Rows:
        first, second = self.first(rows), self.second(rows)
        return rows.keep(
            (first.positives < math.inf) | (second.positives < math.inf),
            (first.negatives > -math.inf) | (second.negatives > -math.inf),
        )


def _smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest value of each row, [rows, 1], of those below +inf as far as there are."""
    if k == 1:
        return values.detach().amin(dim=1, keepdim=True)
    k = min(k, values.shape[1])
    return values.detach().topk(k, dim=1, largest=False).values[:, -1:]
