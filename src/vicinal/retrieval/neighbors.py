"""Exact nearest neighbors, and all within a distance, by cosine similarity, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
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
from vicinal.utils.errors import InputError

RANGE_ROWS = 1024  # queries per block
MAX_PAIRS = 2**24  # re-ranking takes up to 60 bytes per pair, and promises to take less than 2 GB
MIN_ROWS, MAX_ROWS = 256, 4096  # queries per block: fewer make the matrix product slow, more do not speed it up


@dataclass(frozen=True)
class Pairs:
    """Pairs of vectors with their similarities."""

    first: Integers  # the query of each pair
    second: Integers  # its gallery row
    scores: Floats


def range_search(queries: UnitVectors, gallery: UnitVectors, thresholds: Floats) -> tuple[Integers, Integers]:
    """Find every gallery vector whose similarity to a query is at least the query's threshold.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        thresholds: float32 [q].

    Returns:
        The query and the gallery row of each pair, both int64 [pairs], in no particular order.

    Raises:
        InputError: more than 17 million pairs were found.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "vector")
        >>> range_search(vectors, vectors, np.array([0.5, 0.9, 0.7], dtype=np.float32))
        (array([0, 0, 1, 2]), array([0, 1, 1, 2]))
    """
    parts, count = [np.empty((2, 0), dtype=np.int64)], 0
    for pairs in _blocks(queries, gallery, thresholds):
        count += len(pairs.first)
        if count > MAX_PAIRS:
            raise InputError(
                f"the neighborhoods of {len(queries)} images hold more than {MAX_PAIRS} others: use a smaller k or "
                "epsilon, or check whether most embeddings are equal"
            )
        parts.append(np.stack([pairs.first, pairs.second]))
    first, second = np.concatenate(parts, axis=1)
    return first, second


def similar_pairs(vectors: UnitVectors, threshold: float) -> Iterator[Pairs]:
    """Find every pair of vectors whose similarity is at least the threshold, each pair once, the lower row first.

    The pairs come block by block, so that memory is bounded however many there are: the scores of a block take 64 MB,
    its pairs at most 1.2 GB, if all vectors are alike.
    """
    thresholds = np.full(len(vectors), threshold, dtype=np.float32)
    for pairs in _blocks(vectors, vectors, thresholds, is_symmetric=True):
        is_new = pairs.second > pairs.first
        yield Pairs(pairs.first[is_new], pairs.second[is_new], pairs.scores[is_new])


def _blocks(
    queries: UnitVectors, gallery: UnitVectors, thresholds: Floats, is_symmetric: bool = False
) -> Iterator[Pairs]:
    """The pairs of each block of queries and block of the gallery; if symmetric, only on and above the diagonal."""
    rows = min(RANGE_ROWS, len(queries))
    columns = min(len(gallery), rows_within_budget(rows, BLOCK_ROWS, 2**30, queries.device) // BLOCK_ROWS * BLOCK_ROWS)
    buffer = ScoreBuffer(rows, columns, queries.device)
    bounds = torch.from_numpy(thresholds).to(queries.device)[:, None]
    for first in range(0, len(queries), max(rows, 1)):
        vectors = queries.block(first, first + rows)
        for start in range(first if is_symmetric else 0, len(gallery), columns):
            scores = buffer.fill(vectors, gallery, start, min(start + columns, len(gallery)))
            found = (scores >= bounds[first : first + rows]).nonzero(as_tuple=True)
            row, column = (each.cpu().numpy() for each in found)
            yield Pairs(row + first, column + start, scores[found].cpu().numpy())


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
        InputError: a vector contains NaN or infinity, the dimensions differ, `k` is larger than the rest of the
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
    """Find the `k` nearest neighbors as :func:`top_k` does, for unit vectors."""
    check_same_dim(queries, gallery)
    exclusions.check_enough(k)
    rows = chunk_size or rows_within_budget(len(gallery), MIN_ROWS, MAX_ROWS, queries.device)
    columns = min(len(gallery), _columns_within_budget(rows, k, queries.device))
    buffer = ScoreBuffer(min(rows, len(queries)), columns, queries.device)
    neighbors = Neighbors.empty(len(queries), k)
    for first in range(0, len(queries), rows):
        chunk = slice(first, min(first + rows, len(queries)))
        vectors = queries.block(chunk.start, chunk.stop)
        best: tuple[Tensor, ...] = ()
        for start in range(0, len(gallery), columns):
            scores = buffer.fill(vectors, gallery, start, min(start + columns, len(gallery)))
            exclusions.mask(scores, chunk, start)
            found, ids = _largest(scores, min(k, scores.shape[1]))
            best = _merged(best, (found, ids + start), k) if best else (found, ids)
        neighbors.scores[chunk], neighbors.ids[chunk] = (each.cpu().numpy() for each in best)
    return neighbors


def _columns_within_budget(rows: int, k: int, device: torch.device) -> int:
    """Return the number of gallery vectors per block: whole matrix products, and so many that merging is cheap."""
    columns = max(rows_within_budget(rows, BLOCK_ROWS, 2**30, device), 16 * k)
    return columns // BLOCK_ROWS * BLOCK_ROWS if columns > BLOCK_ROWS else columns


def _merged(best: tuple[Tensor, ...], later: tuple[Tensor, ...], k: int) -> tuple[Tensor, ...]:
    """Merge the k best scores of two blocks of the gallery, and their rows, [queries, k].

    The rows of `later` come after the others, so that a stable sort keeps equal scores in gallery order.
    """
    scores, ids = (torch.cat(each, dim=1) for each in zip(best, later, strict=True))
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return scores.gather(1, order), ids.gather(1, order)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row, descending, and their columns; equal scores by ascending column."""
    # torch.topk does not define an order of equal values
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
