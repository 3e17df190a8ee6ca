"""The ranks of the positives of some queries, from which every metric is computed."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.utils.arrays import Integers


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
