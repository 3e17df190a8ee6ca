"""Type aliases of NumPy arrays, named by the type of their elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
"""Rows, labels, counts."""
ShortIntegers: TypeAlias = npt.NDArray[np.int32]
"""Rows and counts in arrays so large that their memory matters."""
Floats: TypeAlias = npt.NDArray[np.float32]
"""Embeddings and similarities."""
Doubles: TypeAlias = npt.NDArray[np.float64]
"""Metrics and other sums of many numbers."""
Booleans: TypeAlias = npt.NDArray[np.bool_]
"""Masks."""


def chunk_ranges(sizes: Integers, max_total: int) -> Iterator[tuple[int, int]]:
    """Split items into consecutive chunks `start` to `stop` whose sizes sum to at most `max_total`.

    A single item that is larger than `max_total` is a chunk of its own.

    Example:
        >>> list(chunk_ranges(np.array([2, 2, 9, 1]), max_total=4))
        [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    start = 0
    while start < len(sizes):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + max_total, "right")) - 1)
        yield start, stop
        start = stop
