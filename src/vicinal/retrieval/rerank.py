"""Re-ranking: a second look at a ranking, by what the neighbours of query and gallery images have in common.

Every method is a :class:`Reranking`. It turns the two :class:`Sides` of a search into something :class:`Reranked`:
other vectors, or the same ones and, for a few gallery images of each query, by how much they are lifted above their
similarity. All else keeps its similarity, so that nobody has to look at the whole gallery to know the whole ranking.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vicinal.arguments import check_at_least_one
from vicinal.errors import InputError
from vicinal.retrieval.neighbor_sets import pieces
from vicinal.retrieval.neighbors import LeftOut, Neighbors, nearest
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk, check_same_dim, pair_scores
from vicinal.retrieval.sides import Sides

BLOCK_QUERIES = 256  # queries whose lifts are looked at at a time
MOST_LIFTS = 2**21  # lifts that are held at a time, if one query does not have more

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Lifts:
    """Which gallery images stand higher for some queries than their similarity says.

    Attributes:
        rows: int64 [lifts], which of the queries; ascending.
        columns: int64 [lifts], gallery rows; ascending for each query, each once.
        amounts: float64 [lifts], at least 0; what they mean is up to :meth:`Reranked.raised`.
    """

    rows: Integers
    columns: Integers
    amounts: npt.NDArray[np.float64]


class Reranked:
    """Queries and gallery as a re-ranking leaves them; this one changes vectors only, and lifts nothing.

    The new ranking of a query is that of the raised similarities: :meth:`raised` for what is in :meth:`lifts`, the
    plain similarity for all else. Equal ones stand in the order of the gallery.

    Args:
        queries: [q, dim], the queries' vectors after re-ranking.
        gallery: [g, dim], the gallery's.
    """

    def __init__(self, queries: UnitVectors, gallery: UnitVectors) -> None:
        self.queries, self.gallery = queries, gallery

    def most_lifts(self) -> Integers:
        """How many lifts each query has, int64 [queries]; it may have fewer."""
        return np.zeros(len(self.queries), dtype=np.int64)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Queries `start` to `stop` in blocks, so few that their lifts can be held."""
        for first, last in pieces(self.most_lifts()[start:stop], MOST_LIFTS):
            yield start + first, start + last

    def lifts(self, start: int, stop: int) -> Lifts:
        """The lifts of queries `start` to `stop`, whose rows count from `start`."""
        return Lifts(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))

    def raised(self, similarities: Floats, amounts: npt.NDArray[np.float64]) -> Floats:
        """The similarities, float32 [pairs], at which images of these amounts of lift stand; never lower."""
        return similarities

    def score(self, similarities: Floats) -> Floats:
        """The method's own score of a raised similarity; it rises with it."""
        return similarities

    def raise_in(self, lifts: Lifts, scores: Floats, start: int) -> None:
        """Raise similarities [queries, columns] in place, whose columns are gallery rows from `start` on."""
        here = (lifts.columns >= start) & (lifts.columns < start + scores.shape[1])
        place = lifts.rows[here], lifts.columns[here] - start
        scores[place] = self.raised(scores[place], lifts.amounts[here])


class Reranking(ABC):
    """A method of re-ranking: what all of them share."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """How many neighbours of each query it looks at."""

    @property
    def outcome(self) -> str:
        """What rankings are after it, in a word."""
        return "re-ranked"

    @abstractmethod
    def apply(self, sides: Sides) -> Reranked:
        """Re-rank.

        Raises:
            InputError: a number of neighbours that the gallery does not have.
        """

    def _check_counts(self, *names: str) -> None:
        """Keep the arguments of these names as plain whole numbers, and refuse what is none or below 1."""
        for name in names:
            value = getattr(self, name)
            if hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_)):
                object.__setattr__(self, name, operator.index(value))  # of numpy too; frozen is for everyone else
            check_at_least_one(self, **{name: getattr(self, name)})


def rerank(
    queries: Array,
    gallery: Array,
    k: int,
    method: Reranking,
    *,
    exclude: npt.NDArray[np.int64] | None = None,
    query_groups: npt.NDArray[np.int64] | None = None,
    gallery_groups: npt.NDArray[np.int64] | None = None,
    ranking: Neighbors | None = None,
    chunk: int | None = None,
    device: torch.device | str | None = None,
) -> Neighbors:
    """Find the first `k` of each query's re-ranked gallery, exactly: the arguments are those of `top_k`, and a method.

    Where a set searches itself, give the same array as queries and gallery and ``exclude=np.arange(n)``: one search
    then serves as the ranking and for the neighbours of all images. Otherwise the gallery is searched for its own
    neighbours too. What a query must not find (itself, its group) is not in its ranking, but may be a neighbour that
    its neighbours are judged by.

    Args:
        queries: float [q, dim], numpy or torch, any precision.
        gallery: float [g, dim].
        k: how many a query.
        method: such as `ContextualReranking()`.
        exclude: int64 [q], the gallery row that is the query itself and is left out, -1 for none.
        query_groups: int64 [q]; gallery vectors of the query's own group are left out, -1 for no group.
        gallery_groups: int64 [g].
        ranking: what `top_k` gave for the same arguments, `exclude` and groups among them, at least k a query, to save
            a search.
        chunk: queries a block of a search; by default chosen to fill the memory budget.
        device: where to compute similarities; by default where `queries` lies.

    Returns:
        Gallery rows, best first, and the method's scores; what has equal scores stands in the order of the gallery.

    Raises:
        InputError: as `top_k`; or a method asks for more neighbours than the gallery has; or a ranking that is not one
            of these queries, lists what they must not find, or is shorter than `k`.

    Example:
        >>> from vicinal.retrieval import ContextualReranking
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ContextualReranking(k=4), exclude=np.arange(6)).indices[0]
        array([4, 3, 2])
    """
    check_chunk(chunk)
    unit_queries = UnitVectors(queries, "query", device=device)
    unit_gallery = unit_queries
    if gallery is not queries:
        unit_gallery = UnitVectors(gallery, "gallery vector", device=unit_queries.device)
    check_same_dim(unit_queries, unit_gallery)
    left_out = LeftOut(len(unit_queries), len(unit_gallery), exclude, query_groups, gallery_groups)
    left_out.check_enough(k)
    if ranking is not None:
        _check_ranking(ranking, len(unit_gallery), k, left_out)
    grouped = query_groups is not None
    # Without groups one search is long enough for the method and for the result.
    found, wanted = (None, 0) if grouped else (ranking, max(k, method.reach))
    sides = Sides(unit_queries, unit_gallery, left_out.itself, chunk, found, wanted)
    reranked = method.apply(sides)
    if reranked.queries is not unit_queries or reranked.gallery is not unit_gallery:
        ranking = nearest(reranked.queries, reranked.gallery, k, left_out, chunk)
    elif not grouped:
        ranking = sides.nearest_of_queries(min(wanted, sides.most))
    elif ranking is None:
        ranking = nearest(unit_queries, unit_gallery, k, left_out, chunk)
    return _first(reranked, ranking, k, left_out)


def _check_ranking(ranking: Neighbors, gallery: int, k: int, left_out: LeftOut) -> None:
    rows, queries = ranking.indices, len(left_out.itself)
    if len(rows) != queries or rows.max(initial=0) >= gallery or rows.min(initial=0) < 0:
        raise InputError("the ranking is not one of these queries in this gallery; give what top_k found for them")
    if rows.shape[1] < k:
        raise InputError(f"the ranking holds {rows.shape[1]} images a query; use k <= that, not k = {k}")
    allowed = left_out.allows(np.arange(queries)[:, None], rows)
    if not allowed.all():
        query, place = (int(found[0]) for found in (~allowed).nonzero())
        raise InputError(
            f"the ranking lists gallery row {rows[query, place]} for query {query}, which is left out as itself or of "
            "its group; give what top_k found with the same exclude and groups"
        )


def _first(reranked: Reranked, ranking: Neighbors, k: int, left_out: LeftOut) -> Neighbors:
    """The first k after re-ranking, from a ranking of at least k by plain similarity."""
    queries = len(ranking.indices)
    scores, indices = np.empty((queries, k), dtype=np.float32), np.empty((queries, k), dtype=np.int64)
    for first in range(0, queries, BLOCK_QUERIES):
        for start, stop in reranked.blocks(first, min(first + BLOCK_QUERIES, queries)):
            place = slice(start, stop)
            plain = Neighbors(ranking.scores[place], ranking.indices[place])
            similarities, indices[place] = _merge(reranked, plain, k, left_out, start)
            scores[place] = reranked.score(similarities)
    return Neighbors(scores, indices)


def _merge(reranked: Reranked, plain: Neighbors, k: int, left_out: LeftOut, start: int) -> tuple[Floats, Integers]:
    """Raised similarities and gallery rows, both [queries, k], for the queries from `start` on."""
    count, length = plain.indices.shape
    lifts = reranked.lifts(start, start + count)
    raised, listed = _raised_list(reranked, plain, lifts)
    more = np.flatnonzero(~listed)
    more = more[left_out.allows(lifts.rows[more] + start, lifts.columns[more])]
    # What the ranking does not hold is no more similar than its last one: few of it can come among the first k. To see
    # which, look at those of the largest lifts first.
    amounts = _padded(lifts.rows[more], lifts.amounts[more], count)
    likely = lifts.amounts[more] >= _kth_largest(amounts, k)[lifts.rows[more]]
    first, rest = more[likely], more[~likely]
    added = _raised_pairs(reranked, lifts, first, start)
    last = _kth_largest(np.hstack([raised, _padded(lifts.rows[first], added, count)]), k)
    rest = rest[reranked.raised(plain.scores[lifts.rows[rest], -1], lifts.amounts[rest]) >= last[lifts.rows[rest]]]
    rows = np.concatenate([np.repeat(np.arange(count), length), lifts.rows[first], lifts.rows[rest]])
    columns = np.concatenate([plain.indices.ravel(), lifts.columns[first], lifts.columns[rest]])
    values = np.concatenate([raised.ravel(), added, _raised_pairs(reranked, lifts, rest, start)])
    order = np.lexsort((columns, -values, rows))
    best = order[np.searchsorted(rows[order], np.arange(count))[:, None] + np.arange(k)]
    return values[best], columns[best]


def _raised_list(reranked: Reranked, plain: Neighbors, lifts: Lifts) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Raised similarities of a ranking, [queries, length], and which of the lifts are of images in it, [lifts]."""
    width = len(reranked.gallery)
    keys = lifts.rows * width + lifts.columns
    wanted = (np.arange(len(plain.indices))[:, None] * width + plain.indices).ravel()
    places = np.searchsorted(keys, wanted)
    found = np.flatnonzero(np.append(keys, -1)[places] == wanted)
    raised = plain.scores.ravel().copy()
    raised[found] = reranked.raised(raised[found], lifts.amounts[places[found]])
    listed = np.zeros(len(keys), dtype=np.bool_)
    listed[places[found]] = True
    return raised.reshape(plain.scores.shape), listed


def _raised_pairs(reranked: Reranked, lifts: Lifts, which: Integers, start: int) -> Floats:
    rows, columns = lifts.rows[which], lifts.columns[which]
    similarities = pair_scores(reranked.queries, reranked.gallery, rows + start, columns)
    return reranked.raised(similarities, lifts.amounts[which])


def _padded(rows: Integers, values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.floating]:
    """Values of some rows, ascending, as [count, most values of a row], minus infinity where there are no more."""
    starts = np.searchsorted(rows, np.arange(count + 1))
    padded = np.full((count, np.diff(starts).max(initial=0)), -np.inf, dtype=values.dtype)
    padded[rows, np.arange(len(rows)) - starts[rows]] = values
    return padded


def _kth_largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.floating]:
    """The k-th largest of each row; minus infinity where a row has fewer."""
    if k > values.shape[1]:
        return np.full(len(values), -np.inf, dtype=values.dtype)
    return np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]
