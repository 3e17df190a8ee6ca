"""The ranks of the positives of some queries, from which every metric is computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vicinal.utils.arrays import Booleans, Doubles, Integers


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of the positives of some queries, one query after the other.

    Attributes:
        ranks: int64 [positives], counted from 1, ascending within each query.
        counts: int64 [queries], the number of positives of each query.
        num_ties: the number of positives that have exactly the score of a gallery row that is no positive. Equal scores
            rank in the order of the gallery, so the ranks of tied positives depend on that order.
    """

    ranks: Integers
    counts: Integers
    num_ties: int = 0

    @cached_property
    def precisions(self) -> Doubles:
        """The precision i / r_i at the i-th positive of each query, float64 [positives]."""
        starts = np.cumsum(self.counts) - self.counts
        return (np.arange(1, len(self.ranks) + 1) - np.repeat(starts, self.counts)) / self.ranks

    @cached_property
    def is_within_r(self) -> Booleans:
        """Whether each positive is among the first R, where R is the number of positives of its query."""
        return self.ranks <= np.repeat(self.counts, self.counts)
