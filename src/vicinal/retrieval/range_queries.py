"""Range search: all gallery vectors whose similarity to a query reaches a threshold, however many they are."""

from __future__ import annotations

import numpy as np
import torch

from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBuffer, UnitVectors, rows_within_budget
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

MAX_ROWS = 1024  # queries per block
MAX_PAIRS = 2**24  # re-ranking takes up to 60 bytes per pair, and promises to take less than 2 GB


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
    rows = min(MAX_ROWS, len(queries))
    columns = min(len(gallery), rows_within_budget(rows, BLOCK_ROWS, 2**30) // BLOCK_ROWS * BLOCK_ROWS)
    buffer = ScoreBuffer(rows, columns, queries.device)
    bounds = torch.from_numpy(thresholds).to(queries.device)[:, None]
    parts, count = [np.empty((0, 2), dtype=np.int64)], 0
    for first in range(0, len(queries), max(rows, 1)):
        vectors = queries.block(first, first + rows)
        for start in range(0, len(gallery), columns):
            scores = buffer.fill(vectors, gallery, start, min(start + columns, len(gallery)))
            found = (scores >= bounds[first : first + rows]).nonzero()
            count += len(found)
            _check_count(count, len(queries))
            parts.append(found.cpu().numpy() + np.array([first, start]))
    pairs = np.concatenate(parts)
    return pairs[:, 0], pairs[:, 1]


def _check_count(num_pairs: int, num_queries: int) -> None:
    if num_pairs > MAX_PAIRS:
        raise InputError(
            f"the neighborhoods of {num_queries} images hold more than {MAX_PAIRS} others: use a smaller k or "
            "epsilon, or look at the embeddings, most of which may be equal"
        )
