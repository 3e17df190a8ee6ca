"""The first k of re-ranked rankings, exactly, also after a refinement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import Neighbors, nearest
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.reranking.base import RerankedScores, Reranking, ScoreIncrements
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk_size, check_same_dim, pair_scores
from vicinal.utils.arrays import Booleans, Floats, Integers

BLOCK_QUERIES = 256  # queries whose increments are merged at a time


@dataclass(frozen=True)
class SequentialReranking(Reranking):
    """Refines embeddings, then re-ranks by the neighbors of the refined embeddings.

    Args:
        refinement: the first step.
        reranking: the second step, such as `ContextualReranking()`.

    Raises:
        InputError: when applied: as either of the steps.

    Example:
        >>> import numpy as np
        >>> from vicinal import ContextRefiner
        >>> from vicinal.retrieval import QueryExpansion, rerank
        >>> angles = np.array([0.0, 0.5, -0.55, 0.7])
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> method = SequentialReranking(Refinement(ContextRefiner(dim=2, num_heads=1)), QueryExpansion(n=1))
        >>> rerank(vectors, vectors, 3, method, exclude_self=np.arange(4)).ids[0]
        array([1, 3, 2])
    """

    refinement: Refinement
    reranking: Reranking

    @property
    def num_neighbors(self) -> int:
        return self.refinement.num_neighbors

    @property
    def stage(self) -> str:
        return self.reranking.stage

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        refined = self.refinement.apply(query_gallery)
        exclude_self, chunk_size = query_gallery.exclude_self, query_gallery.chunk_size
        return self.reranking.apply(QueryGallery(refined.queries, refined.gallery, exclude_self, chunk_size))

    def __repr__(self) -> str:
        return f"{self.refinement!r}, then {self.reranking!r}"


def rerank(
    queries: Array,
    gallery: Array,
    k: int,
    method: Reranking,
    *,
    exclude_self: Integers | None = None,
    query_groups: Integers | None = None,
    gallery_groups: Integers | None = None,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
) -> Neighbors:
    """Find the first `k` of each query's re-ranked gallery, exactly.

    Where a set searches itself, pass the same array as queries and gallery and ``exclude_self=np.arange(n)``: a single
    search then gives both the ranking and the neighbors of all images. Otherwise the gallery is also searched for its
    own neighbors. What a query must not find (itself, its group) is not in its ranking, but the method may still use
    it as a neighbor.

    Args:
        queries: float [q, dim]; this and all arguments that are not described here are those of
            :func:`~vicinal.retrieval.top_k`.
        gallery: float [g, dim].
        k: number of results per query.
        method: such as `ContextualReranking()`.
        exclude_self: int64 [q].
        query_groups: int64 [q].
        gallery_groups: int64 [g].
        chunk_size: number of queries per block.
        device: where to compute.

    Returns:
        Gallery rows and the method's scores; equal scores are in gallery order.

    Raises:
        InputError: as `top_k`; or the method asks for more neighbors than the gallery has.

    Example:
        >>> from vicinal.retrieval import ContextualReranking
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])  # the fourth is nearest to the first
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> rerank(vectors, vectors, 3, ContextualReranking(k=4), exclude_self=np.arange(6)).ids[0]
        array([4, 3, 2])
    """
    check_chunk_size(chunk_size)
    unit_queries = unit_gallery = UnitVectors(queries, "query", device=device)
    if gallery is not queries:
        unit_gallery = UnitVectors(gallery, "gallery vector", device=unit_queries.device)
    check_same_dim(unit_queries, unit_gallery)
    exclusions = Exclusions(len(unit_queries), len(unit_gallery), exclude_self, query_groups, gallery_groups)
    return nearest_reranked(unit_queries, unit_gallery, k, method, exclusions, chunk_size)


def nearest_reranked(
    queries: UnitVectors,
    gallery: UnitVectors,
    k: int,
    method: Reranking,
    exclusions: Exclusions,
    chunk_size: int | None = None,
) -> Neighbors:
    """Find the first `k` of each query's re-ranked gallery as :func:`rerank` does, for unit vectors."""
    exclusions.check_enough(k)
    # Without groups a single search is long enough for both the method and the result.
    longest = 0 if exclusions.has_groups else max(k, method.num_neighbors)
    query_gallery = QueryGallery(queries, gallery, exclusions.exclude_self, chunk_size, longest)
    reranked = method.apply(query_gallery)
    if reranked.queries is not queries or reranked.gallery is not gallery:
        ranking = nearest(reranked.queries, reranked.gallery, k, exclusions, chunk_size)
    elif not exclusions.has_groups:
        ranking = query_gallery.query_neighbors(min(longest, query_gallery.max_neighbors))
    else:
        ranking = nearest(queries, gallery, k, exclusions, chunk_size)
    return _Merger(reranked, exclusions, k).merge(ranking)


@dataclass(frozen=True)
class _Merger:
    """Merges rankings by plain similarity with score increments, to the first k of each re-ranked ranking."""

    reranked: RerankedScores
    exclusions: Exclusions
    k: int

    def merge(self, ranking: Neighbors) -> Neighbors:
        """Return the first k after re-ranking, from a ranking of at least k."""
        num_queries = len(ranking.ids)
        merged = Neighbors.empty(num_queries, self.k)
        for first in range(0, num_queries, BLOCK_QUERIES):
            for start, stop in self.reranked.blocks(first, min(first + BLOCK_QUERIES, num_queries)):
                plain = Neighbors(ranking.scores[start:stop], ranking.ids[start:stop])
                similarities, merged.ids[start:stop] = self._merge_block(plain, start)
                merged.scores[start:stop] = self.reranked.score(similarities)
        return merged

    def _merge_block(self, plain: Neighbors, start: int) -> tuple[Floats, Integers]:
        """Return incremented similarities and gallery rows, both [queries, k], of the queries from `start` on."""
        count, length = plain.ids.shape
        increments = self.reranked.increments(start, start + count)
        rows, columns, amounts = increments.rows, increments.columns, increments.amounts
        listed_scores, is_listed = self._increment_ranking(plain, increments)
        others = np.flatnonzero(~is_listed)
        others = others[self.exclusions.allows(rows[others] + start, columns[others])]
        # Images outside the ranking are at most as similar as its last image, so few of them can be among the first
        # k. Those with the largest increments are scored first; they bound which of the rest still can.
        padded = _pad_rows(rows[others], amounts[others], count)
        is_likely = amounts[others] >= _kth_largest(padded, self.k)[rows[others]]
        likely, rest = others[is_likely], others[~is_likely]
        likely_scores = self._score_pairs(increments, likely, start)
        known = np.hstack([listed_scores, _pad_rows(rows[likely], likely_scores, count)])
        bounds = self.reranked.incremented(plain.scores[rows[rest], -1], amounts[rest])
        rest = rest[bounds >= _kth_largest(known, self.k)[rows[rest]]]
        all_rows = np.concatenate([np.repeat(np.arange(count), length), rows[likely], rows[rest]])
        all_columns = np.concatenate([plain.ids.ravel(), columns[likely], columns[rest]])
        values = np.concatenate([listed_scores.ravel(), likely_scores, self._score_pairs(increments, rest, start)])
        order = np.lexsort((all_columns, -values, all_rows))
        best = order[np.searchsorted(all_rows[order], np.arange(count))[:, None] + np.arange(self.k)]
        return values[best], all_columns[best]

    def _increment_ranking(self, plain: Neighbors, increments: ScoreIncrements) -> tuple[Floats, Booleans]:
        """The incremented similarities of a ranking, [queries, length], and which increments are of images in it."""
        count, length = plain.ids.shape
        positions = increments.positions(np.repeat(np.arange(count), length), plain.ids.ravel())
        found = positions >= 0
        scores = plain.scores.ravel().copy()
        scores[found] = self.reranked.incremented(scores[found], increments.amounts[positions[found]])
        is_listed = np.zeros(len(increments.rows), dtype=np.bool_)
        is_listed[positions[found]] = True
        return scores.reshape(count, length), is_listed

    def _score_pairs(self, increments: ScoreIncrements, which: Integers, start: int) -> Floats:
        """Return the incremented similarities of selected increments' pairs."""
        rows, columns = increments.rows[which] + start, increments.columns[which]
        similarities = pair_scores(self.reranked.queries, self.reranked.gallery, rows, columns)
        return self.reranked.incremented(similarities, increments.amounts[which])


def _pad_rows(rows: Integers, values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.floating]:
    """Arrange values of ascending rows as a matrix [count, largest number of a row], padded with minus infinity."""
    starts = np.searchsorted(rows, np.arange(count + 1))
    padded = np.full((count, np.diff(starts).max(initial=0)), -np.inf, dtype=values.dtype)
    padded[rows, np.arange(len(rows)) - starts[rows]] = values
    return padded


def _kth_largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.floating]:
    """Return the k-th largest value of each row; minus infinity where a row has fewer."""
    if k > values.shape[1]:
        return np.full(len(values), -np.inf, dtype=values.dtype)
    return np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]
