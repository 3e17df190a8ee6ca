"""Miners narrow the masks: they choose which positive and negative pairs of an anchor's row a loss sees."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from vicinal.errors import InputError
from vicinal.similarity import Rows


class Miner(ABC):
    """Chooses pairs row by row; a new miner is one method."""

    @abstractmethod
    def __call__(self, rows: Rows) -> Rows:
        """The same similarities with fewer pairs in the masks."""


def hardest_positive(rows: Rows) -> Tensor:
    """Lowest similarity of a positive, [rows, 1]; +inf where an anchor has none. Carries no gradient."""
    return rows.similarity.detach().masked_fill(~rows.positive, math.inf).amin(dim=1, keepdim=True)


def hardest_negative(rows: Rows) -> Tensor:
    """Highest similarity of a negative, [rows, 1]; -inf where an anchor has none. Carries no gradient."""
    return rows.similarity.detach().masked_fill(~rows.negative, -math.inf).amax(dim=1, keepdim=True)


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
        >>> import torch
        >>> rows = Rows(
        ...     similarity=torch.tensor([[1.0, 0.9, 0.7, 0.3]]),
        ...     positive=torch.tensor([[False, True, False, False]]),
        ...     negative=torch.tensor([[False, False, True, True]]),
        ... )
        >>> MultiSimilarityMiner(epsilon=0.3)(rows).negative
        tensor([[False, False,  True, False]])
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if not math.isfinite(self.epsilon):
            raise InputError(f"MultiSimilarityMiner: epsilon = {self.epsilon} must be a finite number")

    def __call__(self, rows: Rows) -> Rows:
        similarity = rows.similarity.detach()
        return Rows(
            rows.similarity,
            rows.positive & (similarity < hardest_negative(rows) + self.epsilon),
            rows.negative & (similarity > hardest_positive(rows) - self.epsilon),
        )
