"""Exact nearest neighbors by cosine similarity, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.scores import (
    BLOCK_ROWS,
    Array,
    ScoreBuffer,
    UnitVectors,
    check_chunk_size,
    check_same_dim,
    rows_within_budget,
)
from vicinal.utils.arrays import Floats, Integers

MIN_ROWS, MAX_ROWS = 256, 4096  # queries per block: fewer make the matrix product slow, more do not speed it up


@dataclass(frozen=True)
class Neighbors:
    """The k nearest neighbors of each query, best first.

    Attributes:
        scores: float32 [queries, k], cosine similarities (approximate ones from an index whose codes are not rescored),
            or the scores of a re-ranking method.
        ids: int64 [queries, k], gallery rows, or the ids of an :class:`~vicinal.retrieval.Index`; equal scores are in
            ascending order of ids.
    """

    scores: Floats
    ids: Integers

    @classmethod
    def empty(cls, num_queries: int, k: int) -> Neighbors:
        """Return uninitialized arrays to be filled, as `numpy.empty` does."""
        return cls(np.empty((num_queries, k), np.float32), np.empty((num_queries, k), np.int64))


def top_k(
    queries: Array,
    gallery: Array,
    k: int,
    *,
    exclude_self: Integers | None = None,
    query_groups: Integers | None = None,
    gallery_groups: Integers | None = None,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
) -> Neighbors:
    """Find the `k` gallery vectors that are most similar to each query, exactly.

    Scores are float32 cosine similarities (every vector is divided by its length). Blocks of queries are multiplied
    with blocks of the gallery, so that about 64 MB are needed in addition to the vectors, whatever their number. The
    result does not depend on the block sizes.

    Args:
        queries: float [q, dim], numpy or torch, of any precision.
        gallery: float [g, dim].
        k: number of neighbors per query.
        exclude_self: int64 [q], the gallery row that is the query itself, which is not found (leave-one-out), -1 for
            none.
        query_groups: int64 [q]; gallery vectors of the query's own group are not found, -1 means no group.
        gallery_groups: int64 [g].
        chunk_size: number of queries per block; None chooses as many as fit into the memory budget.
        device: where to compute; None computes where `queries` lies.

    Returns:
        Scores and gallery rows.

    Raises:
        InputError: a vector contains NaN or infinity, the dimensions differ, `k` is larger than what is left of the
            gallery, or `chunk_size` is below 1.

    Example:
        >>> gallery = np.eye(3, dtype=np.float32)
        >>> top_k(gallery[:1], gallery, k=2, exclude_self=np.array([0])).ids
        array([[1, 2]])
    """
    check_chunk_size(chunk_size)
    unit_queries = UnitVectors(queries, "query", device=device)
    unit_gallery = UnitVectors(gallery, "gallery vector", device=unit_queries.device)
    exclusions = Exclusions(len(unit_queries), len(unit_gallery), exclude_self, query_groups, gallery_groups)
    return nearest(unit_queries, unit_gallery, k, exclusions, chunk_size)


def nearest(
    queries: UnitVectors, gallery: UnitVectors, k: int, exclusions: Exclusions, chunk_size: int | None = None
) -> Neighbors:
    """Find the `k` nearest neighbors as :func:`top_k` does, of vectors that are unit vectors already.

    Raises:
        InputError: the dimensions differ, or `k` is larger than what is left of the gallery.

    Example:
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> nearest(vectors, vectors, 1, Exclusions(3, 3, exclude_self=np.arange(3))).ids.ravel()
        array([1, 0, 0])
    """
    check_same_dim(queries, gallery)
    exclusions.check_enough(k)
    rows = chunk_size or rows_within_budget(len(gallery), MIN_ROWS, MAX_ROWS, queries.device)
    columns = min(len(gallery), _columns_within_budget(rows, k, queries.device))
    buffer = ScoreBuffer(min(rows, len(queries)), columns, queries.device)
    neighbors = Neighbors.empty(len(queries), k)
    for first in range(0, len(queries), rows):
        chunk = slice(first, min(first + rows, len(queries)))
        vectors, best = queries.block(chunk.start, chunk.stop), _RunningTopK(k)
        for start in range(0, len(gallery), columns):
            scores = buffer.fill(vectors, gallery, start, min(start + columns, len(gallery)))
            exclusions.mask(scores, chunk, start)
            best.update(scores, start)
        neighbors.scores[chunk], neighbors.ids[chunk] = best.scores.cpu().numpy(), best.ids.cpu().numpy()
    return neighbors


def _columns_within_budget(rows: int, k: int, device: torch.device) -> int:
    """Return the number of gallery vectors per block: whole matrix products, and so many that merging is cheap."""
    columns = max(rows_within_budget(rows, BLOCK_ROWS, 2**30, device), 16 * k)
    return columns // BLOCK_ROWS * BLOCK_ROWS if columns > BLOCK_ROWS else columns


class _RunningTopK:
    """The k best gallery rows of each query among the blocks seen so far; equal scores are in gallery order."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.scores = self.ids = torch.empty(0)

    def update(self, scores: Tensor, start: int) -> None:
        """Take the scores [queries, columns] of the next block, whose columns are gallery rows from `start` on."""
        best, columns = _largest(scores, min(self._k, scores.shape[1]))
        if start == 0:
            self.scores, self.ids = best, columns
            return
        # Earlier rows come first, so that a stable sort keeps equal scores in gallery order.
        best, ids = torch.cat([self.scores, best], dim=1), torch.cat([self.ids, columns + start], dim=1)
        order = best.argsort(dim=1, descending=True, stable=True)[:, : self._k]
        self.scores, self.ids = best.gather(1, order), ids.gather(1, order)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row, descending, and their columns; equal scores by ascending column.

    `torch.topk` does not define an order of equal values.
    """
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    cut = (values[:, k - 1 : k] == values[:, k:]).any(dim=1).nonzero().flatten()
    if len(cut):  # equal scores on both sides of the cut: choose those of the lowest columns
        columns[cut, :k] = _lowest_columns(scores[cut], values[cut, k - 1 : k], k)
        values[cut, :k] = scores[cut].gather(1, columns[cut, :k])
    values, columns = values[:, :k], columns[:, :k]
    unordered = (values[:, :-1] <= values[:, 1:]).any(dim=1).nonzero().flatten()
    if len(unordered):
        ascending = columns[unordered].sort(dim=1).values
        order = scores[unordered[:, None], ascending].argsort(dim=1, descending=True, stable=True)
        columns[unordered] = ascending.gather(1, order)
        values[unordered] = scores[unordered[:, None], columns[unordered]]
    return values, columns


def _lowest_columns(scores: Tensor, threshold: Tensor, k: int) -> Tensor:
    """Return the columns [rows, k] of all scores above the threshold and of the first ones equal to it, ascending."""
    above, equal = scores > threshold, scores == threshold
    num_equal = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= num_equal))
    return chosen.nonzero()[:, 1].reshape(len(scores), k)
