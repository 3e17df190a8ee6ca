"""Splitting work into consecutive parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vicinal.utils.arrays import Integers


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
