"""Miners: they select the positive and negative pairs of each anchor that a loss is computed from.

They can be combined: `SequentialMiner([EasyPositiveMiner(), SemiHardMiner()])` applies one after the other, `a & b`
selects the pairs that both select, `a | b` those that at least one of them selects. Pairs of equal similarity are kept
or dropped together, so the order of a batch does not matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import (
    check_finite,
    check_list,
    check_positive,
    check_positive_integer,
    check_seed,
    given,
    shown,
)
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import uniform

__all__ = [
    "DistanceWeightedMiner",
    "EasyPositiveMiner",
    "HardestMiner",
    "IntersectionMiner",
    "Miner",
    "MultiSimilarityMiner",
    "SemiHardMiner",
    "SequentialMiner",
    "UnionMiner",
]


def __dir__() -> list[str]:
    return __all__


class Miner(ABC):
    """Selects pairs row by row; a new miner is one method."""

    @abstractmethod
    def __call__(self, rows: Rows) -> Rows:
        """Return the rows with only the selected pairs."""

    @property
    def is_random(self) -> bool:
        """Whether the selection depends on `rows.keys`; a loss then counts its calls, which change the keys."""
        return False

    def __and__(self, other: Miner) -> IntersectionMiner:
        return IntersectionMiner(self, other) if isinstance(other, Miner) else NotImplemented

    def __or__(self, other: Miner) -> UnionMiner:
        return UnionMiner(self, other) if isinstance(other, Miner) else NotImplemented


@dataclass(frozen=True)
class MultiSimilarityMiner(Miner):
    """Selects the pairs that violate the order of positives and negatives, up to a margin.

    A negative j of anchor i is selected if `S_ij > min_k S_ik - epsilon` over the positives k, a positive j if
    `S_ij < max_k S_ik + epsilon` over the negatives k. For an anchor without positives no negative is selected, and
    vice versa.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
    Eq. (11) and (12).

    Args:
        epsilon: the margin, a difference of similarities; the paper's 0.1 by default.

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
            rows.positives < rows.hardest_negative + self.epsilon, rows.negatives > rows.hardest_positive - self.epsilon
        )


@dataclass(frozen=True)
class HardestMiner(Miner):
    """Selects each anchor's hardest pairs: the least similar positives and the most similar negatives.

    With a triplet loss and the defaults this is "batch hard" (Hermans et al., "In Defense of the Triplet Loss for
    Person Re-Identification", 2017, Eq. 5).

    Args:
        num_positives: number of positives to select for each anchor; None selects all.
        num_negatives: number of negatives to select for each anchor; None selects all.

    Raises:
        InputError: a number is below 1.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.4]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> HardestMiner(num_positives=None, num_negatives=2)(rows).negatives
        tensor([[0.7000,   -inf, 0.5000]])
    """

    num_positives: int | None = 1
    num_negatives: int | None = 1

    def __post_init__(self) -> None:
        check_positive_integer(self, **given(num_positives=self.num_positives, num_negatives=self.num_negatives))

    def __call__(self, rows: Rows) -> Rows:
        positives = negatives = None
        if self.num_positives:
            positives = rows.positives <= _smallest(rows.positives, self.num_positives)
        if self.num_negatives:
            negatives = -rows.negatives <= _smallest(-rows.negatives, self.num_negatives)
        return rows.keep(positives, negatives)


@dataclass(frozen=True)
class EasyPositiveMiner(Miner):
    """Selects each anchor's easiest positives, the most similar ones, and all negatives.

    Reference: Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020.

    Args:
        num_positives: number of positives to select for each anchor.

    Raises:
        InputError: the number is below 1.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.4]]), torch.tensor([[0.7]]), None, torch.arange(1), 2)
        >>> EasyPositiveMiner()(rows).positives
        tensor([[0.9000,    inf]])
    """

    num_positives: int = 1

    def __post_init__(self) -> None:
        check_positive_integer(self, num_positives=self.num_positives)

    def __call__(self, rows: Rows) -> Rows:
        easiness = torch.where(rows.positives < math.inf, -rows.positives, math.inf)
        return rows.keep(positives=easiness <= _smallest(easiness, self.num_positives))


@dataclass(frozen=True)
class SemiHardMiner(Miner):
    """Selects the negatives that are less similar to the anchor than its least similar positive, by less than a margin.

    With one positive per anchor, or after a miner that selects one, these are the semi-hard negatives of Schroff et
    al., "FaceNet", CVPR 2015. For the semi-hard negatives of each positive see `TripletLoss(triplets="semi-hard")`.

    Args:
        margin: largest difference of similarities; None: any.

    Raises:
        InputError: margin is not positive.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> SemiHardMiner(margin=0.2)(rows).negatives
        tensor([[  -inf,   -inf, 0.5000]])
    """

    margin: float | None = 0.1

    def __post_init__(self) -> None:
        check_positive(self, **given(margin=self.margin))

    def __call__(self, rows: Rows) -> Rows:
        positive = rows.hardest_positive
        semi_hard = (rows.negatives < positive) & (positive < math.inf)
        if self.margin is not None:
            semi_hard &= rows.negatives > positive - self.margin
        return rows.keep(negatives=semi_hard)


@dataclass(frozen=True)
class DistanceWeightedMiner(Miner):
    """Samples negatives so that all distances are equally likely, and keeps all positives.

    A negative at distance D is sampled with a probability proportional to 1 / q(max(D, cutoff)), where q is the density
    of distances between random points on the sphere, `D^(d-2) (1 - D^2 / 4)^((d-3)/2)`; beyond `nonzero_loss_cutoff`
    never. Sampling is with replacement, so fewer than `num_samples` negatives may be selected for an anchor.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Section 4. Samples depend only on
    `seed`, the number of the call and the anchor's row in the batch, not on global random state.

    Args:
        num_samples: number of samples for each anchor; None: the number of its positives, as in the paper.
        cutoff: smaller distances are raised to it, which bounds the variance; the authors' 0.5 by default.
        nonzero_loss_cutoff: distance from which on negatives are never sampled; the authors' 1.4 by default.
        seed: not negative.

    Raises:
        InputError: num_samples is below 1, seed is negative, or not `0 < cutoff < nonzero_loss_cutoff < 2`.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[-0.9, 0.3, -0.8]]), None, torch.arange(1), 8)
        >>> DistanceWeightedMiner()(rows).negatives
        tensor([[  -inf, 0.3000,   -inf]])
    """

    num_samples: int | None = None
    cutoff: float = 0.5
    nonzero_loss_cutoff: float = 1.4
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive_integer(self, **given(num_samples=self.num_samples))
        check_positive(self, cutoff=self.cutoff, nonzero_loss_cutoff=self.nonzero_loss_cutoff)
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
        max_samples = self.num_samples or rows.positives.shape[1]
        points = uniform(self.seed, rows.keys, max_samples).to(total.dtype) * total
        sampled = torch.searchsorted(cumulative, points, right=True).clamp_max_(cumulative.shape[1] - 1)
        if self.num_samples is None:
            counts = (rows.positives < math.inf).sum(dim=1, keepdim=True)
        else:
            counts = torch.full_like(sampled[:, :1], self.num_samples)
        # Samples beyond the number of an anchor repeat its first one.
        sampled = torch.where(torch.arange(max_samples, device=sampled.device) < counts, sampled, sampled[:, :1])
        kept = torch.where((total > 0) & (counts > 0), torch.zeros_like(total), -math.inf)
        mask = torch.full_like(rows.negatives, -math.inf).scatter_(1, sampled, kept.expand(-1, max_samples))
        return rows._replace(negatives=rows.negatives + mask)

    def _weights(self, negatives: Tensor, dim: int) -> Tensor:
        """The unnormalized probability of each negative; 0 for those that are never sampled."""
        # As a function of similarity the density of distances is (1 - s^2)^((d-3)/2) (1 - s)^(1/2), up to a constant.
        lowest, highest = 1 - self.nonzero_loss_cutoff**2 / 2, 1 - self.cutoff**2 / 2
        highest = min(highest, 1 - torch.finfo(negatives.dtype).eps)  # the density at a distance of 0 is 0 or infinite
        # Those never sampled are moved to where the density is highest, so that they do not set the scale. A float mask
        # is several times faster than a bool mask.
        similarity = F.threshold(negatives, lowest, max(lowest, 0.0)).clamp_max_(highest)
        can_be_sampled = (negatives - lowest).sign_().relu_()
        log_weights = torch.rsub(similarity.square(), 1).log_().mul_((3 - dim) / 2)
        weights = log_weights.sub_(log_weights.amax(dim=1, keepdim=True)).exp_()
        return weights.mul_(similarity.neg_().add_(1).rsqrt_()).mul_(can_be_sampled)


@dataclass(frozen=True)
class SequentialMiner(Miner):
    """Applies miners one after the other: each selects among the pairs that the previous one selected.

    Args:
        miners: at least one.

    Raises:
        InputError: `miners` is no list of miners, or is empty.

    Example:
        >>> rows = Rows(torch.tensor([[0.9, 0.6]]), torch.tensor([[0.7, 0.85, 0.5]]), None, torch.arange(1), 2)
        >>> SequentialMiner([EasyPositiveMiner(), SemiHardMiner(margin=0.1)])(rows).negatives
        tensor([[  -inf, 0.8500,   -inf]])
    """

    miners: Sequence[Miner]

    def __post_init__(self) -> None:
        check_list("SequentialMiner: miners", self.miners, "miners")
        if not self.miners or not all(isinstance(miner, Miner) for miner in self.miners):
            raise InputError(f"SequentialMiner: miners = {shown(self.miners)} must be miners, at least one")

    @property
    def is_random(self) -> bool:
        return any(miner.is_random for miner in self.miners)

    def __call__(self, rows: Rows) -> Rows:
        for miner in self.miners:
            rows = miner(rows)
        return rows


@dataclass(frozen=True)
class _CombinedMiner(Miner):
    first: Miner
    second: Miner

    @property
    def is_random(self) -> bool:
        return self.first.is_random or self.second.is_random

    def __call__(self, rows: Rows) -> Rows:
        first, second = self.first(rows), self.second(rows)
        return rows.keep(
            self.combine(first.positives < math.inf, second.positives < math.inf),
            self.combine(first.negatives > -math.inf, second.negatives > -math.inf),
        )

    @staticmethod
    @abstractmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """Combine the bool masks of the pairs that the two miners select."""


class IntersectionMiner(_CombinedMiner):
    """Selects the pairs that two miners both select, each from all pairs; the result of `a & b`.

    Args:
        first: a miner.
        second: a miner.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> (SemiHardMiner(margin=None) & HardestMiner(num_negatives=2))(rows).negatives
        tensor([[  -inf,   -inf, 0.5000]])
    """

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        return first & second


class UnionMiner(_CombinedMiner):
    """Selects the pairs that at least one of two miners selects, each from all pairs; the result of `a | b`.

    Args:
        first: a miner.
        second: a miner.

    Example:
        >>> rows = Rows(torch.tensor([[0.6]]), torch.tensor([[0.7, 0.3, 0.5]]), None, torch.arange(1), 2)
        >>> (SemiHardMiner(margin=None) | HardestMiner())(rows).negatives
        tensor([[0.7000, 0.3000, 0.5000]])
    """

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        return first | second


def _smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest value of each row, [rows, 1], or the largest one if there are fewer."""
    if k == 1:
        return values.detach().amin(dim=1, keepdim=True)
    k = min(k, values.shape[1])
    return values.detach().topk(k, dim=1, largest=False).values[:, -1:]
