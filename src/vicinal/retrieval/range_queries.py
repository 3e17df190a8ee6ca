"""Range search: all gallery vectors whose similarity to a query reaches a threshold, however many they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBuffer, UnitVectors, rows_within_budget
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

MAX_ROWS = 1024  # queries per block
MAX_PAIRS = 2**24  # re-ranking takes up to 60 bytes per pair, and promises to take less than 2 GB


@dataclass(frozen=True)
class Pairs:
    """Pairs of vectors with their similarities.

    Attributes:
        first: int64 [pairs], the query of each pair.
        second: int64 [pairs], its gallery row.
        scores: float32 [pairs], cosine similarities.
    """

    first: Integers
    second: Integers
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
        _check_count(count, len(queries))
        parts.append(np.stack([pairs.first, pairs.second]))
    first, second = np.concatenate(parts, axis=1)
    return first, second


def similar_pairs(vectors: UnitVectors, threshold: float) -> Iterator[Pairs]:
    """Find every pair of vectors whose similarity is at least the threshold, each pair once, the lower row first.

    The pairs come block by block, so that memory is bounded however many there are: the scores of a block take 64 MB,
    its pairs at most 1.2 GB, if all vectors are alike.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "vector")
        >>> [(pairs.first, pairs.second) for pairs in similar_pairs(vectors, 0.7)]
        [(array([0]), array([1]))]
    """
    thresholds = np.full(len(vectors), threshold, dtype=np.float32)
    for pairs in _blocks(vectors, vectors, thresholds, is_symmetric=True):
        is_new = pairs.second > pairs.first
        yield Pairs(pairs.first[is_new], pairs.second[is_new], pairs.scores[is_new])


def _blocks(
    queries: UnitVectors, gallery: UnitVectors, thresholds: Floats, is_symmetric: bool = False
) -> Iterator[Pairs]:
    """The pairs of each block of queries with each block of the gallery; if symmetric, of those on the diagonal up."""
    rows = min(MAX_ROWS, len(queries))
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


def _check_count(num_pairs: int, num_queries: int) -> None:
    if num_pairs > MAX_PAIRS:
        raise InputError(
            f"the neighborhoods of {num_queries} images hold more than {MAX_PAIRS} others: use a smaller k or "
            "epsilon, or look at the embeddings, most of which may be equal"
        )
