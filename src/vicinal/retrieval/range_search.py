"""All gallery vectors that are at least so similar to a query, however many these are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from vicinal.errors import InputError
from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBlock, UnitVectors, rows_within_budget

MOST_ROWS = 1024  # queries a block
MOST_FOUND = 2**24  # pairs; re-ranking takes up to 60 bytes for each, and promises to take less than 2 GB

Integers = npt.NDArray[np.int64]


def within(queries: UnitVectors, gallery: UnitVectors, least: npt.NDArray[np.float32]) -> tuple[Integers, Integers]:
    """Find every gallery vector whose similarity to a query is at least the query's own bound.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        least: float32 [q], the bounds.

    Returns:
        Queries and gallery rows of what was found, both int64 [found], in no particular order.

    Raises:
        InputError: more than 17 million pairs were found.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), "vector")
        >>> within(vectors, vectors, np.array([0.5, 0.9, 0.7], dtype=np.float32))
        (array([0, 0, 1, 2]), array([0, 1, 1, 2]))
    """
    rows = min(MOST_ROWS, len(queries))
    columns = min(len(gallery), rows_within_budget(rows, BLOCK_ROWS, 2**30) // BLOCK_ROWS * BLOCK_ROWS)
    block = ScoreBlock(rows, columns, queries.device)
    bounds = torch.from_numpy(least).to(queries.device)[:, None]
    parts, count = [np.empty((0, 2), dtype=np.int64)], 0
    for first in range(0, len(queries), max(rows, 1)):
        vectors = queries.block(first, first + rows)
        for start in range(0, len(gallery), columns):
            scores = block.fill(vectors, gallery, start, min(start + columns, len(gallery)))
            found = (scores >= bounds[first : first + rows]).nonzero()
            count += len(found)
            _check_count(count, len(queries))
            parts.append(found.cpu().numpy() + np.array([first, start]))
    pairs = np.concatenate(parts)
    return pairs[:, 0], pairs[:, 1]


def _check_count(count: int, images: int) -> None:
    if count > MOST_FOUND:
        raise InputError(
            f"the neighbourhoods of {images} images hold more than {MOST_FOUND} others: use a smaller k or epsilon, "
            "or look at the embeddings, most of which may be equal"
        )
