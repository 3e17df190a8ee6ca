"""Type aliases of NumPy arrays, named by the type of their elements, and a check of masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from vicinal.utils.errors import InputError

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


def check_not_masked(values: object, name: str) -> None:
    """Check that no value of an array is masked: other functions of NumPy ignore the mask and use masked values.

    Raises:
        InputError: some are; the message starts with `name`.

    Example:
        >>> check_not_masked(np.ma.masked_array([1.0, 2.0], mask=[True, False]), "labels")
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: labels: 1 of 2 values is masked; give an array in which every value counts
    """
    if not isinstance(values, np.ma.MaskedArray):
        return
    number = int(np.sum(np.ma.getmaskarray(values)))
    if number:
        counted = f"{number:,} of {values.size:,} values {'is' if number == 1 else 'are'} masked"
        raise InputError(f"{name}: {counted}; give an array in which every value counts")


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
