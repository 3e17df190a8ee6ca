"""The base of all re-ranking methods.

A method is a :class:`Reranking`. It turns a :class:`QueryGallery` into :class:`RerankedScores`: other vectors, or the
same vectors and score increments for a few gallery images of each query. All other images keep their similarity, so
that the whole ranking is known without a pass over the gallery.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.arrays import Doubles, Floats, Integers, chunk_ranges

MAX_INCREMENTS = 2**21  # increments in memory at a time, unless a single query has more


@dataclass(frozen=True)
class ScoreIncrements:
    """Increments of the scores of some pairs of queries and gallery images, as a sparse matrix in coordinate format."""

    rows: Integers  # the queries; ascending
    columns: Integers  # the gallery rows; ascending and unique within a query
    amounts: Doubles  # at least 0; see :meth:`RerankedScores.incremented`

    @cached_property
    def _keys(self) -> Integers:
        return _pair_keys(self.rows, self.columns)

    def positions(self, rows: Integers, columns: Integers) -> Integers:
        """The position of each pair's increment, int64 [pairs]; -1 where a pair has none."""
        wanted = _pair_keys(rows, columns)
        positions = np.searchsorted(self._keys, wanted)
        return np.where(np.append(self._keys, -1)[positions] == wanted, positions, -1)


def _pair_keys(rows: Integers, columns: Integers) -> Integers:
    return (rows << 32) | columns


class RerankedScores:
    """The scores of all pairs of queries and gallery images after re-ranking.

    A pair's score is that of its similarity, incremented (:meth:`incremented`) where it is in :meth:`increments`. Equal
    scores rank in gallery order. This class has no increments: it serves methods that change vectors only.

    Args:
        queries: [q, dim], the query vectors after re-ranking.
        gallery: [g, dim], the gallery vectors after re-ranking.
    """

    def __init__(self, queries: UnitVectors, gallery: UnitVectors) -> None:
        self.queries, self.gallery = queries, gallery

    def max_increments(self) -> Integers:
        """Return how many increments each query has at most, int64 [queries]."""
        return np.zeros(len(self.queries), dtype=np.int64)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split queries `start` to `stop` into blocks whose increments fit into memory."""
        for first, last in chunk_ranges(self.max_increments()[start:stop], MAX_INCREMENTS):
            yield start + first, start + last

    def increments(self, start: int, stop: int) -> ScoreIncrements:
        """Return the increments of queries `start` to `stop`, whose rows count from `start`."""
        return ScoreIncrements(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))

    def incremented(self, similarities: Floats, amounts: Doubles) -> Floats:
        """Return the incremented similarities, float32 [pairs]; none is lower than before."""
        return similarities

    def score(self, similarities: Floats) -> Floats:
        """Return the method's score of incremented similarities, an increasing function of them."""
        return similarities

    def increment_block(self, scores: Floats, increments: ScoreIncrements, start: int) -> None:
        """Increment similarities [queries, columns] in place, whose columns are gallery rows from `start` on."""
        inside = (increments.columns >= start) & (increments.columns < start + scores.shape[1])
        pairs = increments.rows[inside], increments.columns[inside] - start
        scores[pairs] = self.incremented(scores[pairs], increments.amounts[inside])


class Reranking(ABC):
    """A re-ranking method."""

    @property
    @abstractmethod
    def num_neighbors(self) -> int:
        """Number of neighbors of each query that the method uses."""

    @property
    def stage(self) -> str:
        """The name of results after this step, "re-ranked" or "refined"; results without it are "plain"."""
        return "re-ranked"

    @abstractmethod
    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        """Re-rank.

        Raises:
            InputError: the method asks for more neighbors than the gallery has.
        """

    def among(self, rows: Integers) -> Reranking:
        """The method for a gallery that consists of some rows of the one that it was made for."""
        return self

    def explain(self, query: int, rows: Integers) -> list[dict[str, Any]]:
        """Further values about the matches of a query, by the rows of both; one dictionary per match."""
        return [{} for _ in rows]

    def _check_counts(self, *names: str) -> None:
        """Store the arguments of these names as integers of Python, and refuse other types and values below 1."""
        for name in names:
            value = getattr(self, name)
            if hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_)):
                object.__setattr__(self, name, operator.index(value))  # the dataclasses are frozen
            check_positive_integer(self, **{name: getattr(self, name)})
