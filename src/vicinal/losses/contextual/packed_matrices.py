"""Matrices of bits, and symmetric matrices of which one half is held, tile by tile."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TILE = 512
"""Number of rows and of columns of a tile; a multiple of 8. Larger ones are a little faster, and take more memory."""


class BitMatrix:
    """A matrix [n, n] of zeros and ones, of one bit each.

    Example:
        >>> matrix = BitMatrix(9)
        >>> matrix.set(slice(0, 9), slice(0, 9), torch.eye(9) > 0)
        >>> matrix.tile(slice(7, 9), slice(8, 9), torch.float32)
        tensor([[0.],
                [1.]])
    """

    def __init__(self, n: int) -> None:
        self.packed = np.zeros((n, -(-n // 8)), dtype=np.uint8)

    def set(self, rows: slice, columns: slice, values: Tensor) -> None:
        """Set some rows and columns, bool [rows, columns]; the first column is a multiple of 8."""
        self.packed[rows, _bytes(columns)] = np.packbits(values.numpy(), axis=1)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype) -> Tensor:
        """Some rows and columns; the first column is a multiple of 8."""
        values = np.unpackbits(self.packed[rows, _bytes(columns)], axis=1, count=columns.stop - columns.start)
        return torch.from_numpy(values).to(dtype)

    def read_rows(self, rows: slice, out: Tensor) -> Tensor:
        """Some rows, written into `out`, [rows, n]."""
        return out.copy_(torch.from_numpy(np.unpackbits(self.packed[rows], axis=1, count=len(self.packed))))

    def row_sums(self, dtype: torch.dtype) -> Tensor:
        """The number of ones of each row, [n]."""
        sums = [np.unpackbits(self.packed[rows], axis=1).sum(axis=1) for rows in spans_of(len(self.packed))]
        return torch.from_numpy(np.concatenate(sums).astype(np.int64)).to(dtype)


def _bytes(columns: slice) -> slice:
    return slice(columns.start // 8, -(-columns.stop // 8))


class SymmetricMatrix:
    """A symmetric matrix [n, n], of which the tiles on and above the diagonal are held.

    Args:
        n: number of rows and of columns.
        dtype: of its entries, which are 0 at first.
    """

    def __init__(self, n: int, dtype: torch.dtype) -> None:
        self.spans = spans_of(n)
        self.places = [(i, j) for i in range(len(self.spans)) for j in range(i, len(self.spans))]
        # In one piece, because small ones that come and go with others leave holes in the memory of a process.
        storage = torch.zeros(len(self.places), TILE, TILE, dtype=dtype)
        self._tiles = dict(zip(self.places, storage, strict=True))

    def __getitem__(self, place: tuple[int, int]) -> Tensor:
        """A tile, by its number in both directions; what is written into it is written into its mirror image."""
        i, j = place
        if i > j:
            return self[j, i].T
        rows, columns = self.spans[i], self.spans[j]
        return self._tiles[place][: rows.stop - rows.start, : columns.stop - columns.start]

    def sum_of_squares(self) -> Tensor:
        """The sum of the squares of all n^2 entries."""
        # Row by row: the sum of many squares in one go loses digits of float32.
        sums = torch.stack([torch.linalg.vector_norm(self[place], dim=1).square().sum() for place in self.places])
        return sums @ torch.tensor([1.0 if i == j else 2.0 for i, j in self.places], dtype=sums.dtype)


def spans_of(n: int) -> list[slice]:
    """The rows, and so the columns, of each tile."""
    return [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]


def length(span: slice) -> int:
    """The number of rows of a tile."""
    return int(span.stop - span.start)


def count_type(most: int) -> torch.dtype:
    """The smallest type that holds counts up to a number."""
    return torch.int16 if most <= torch.iinfo(torch.int16).max else torch.int32
