"""The contextual loss of large neighborhoods on a CPU, tile by tile, without a whole matrix of floats.

In the notation of `matrix_form`: of all n^2 entries are held N, R and the pairs that are close in either direction, a
bit each, and of the symmetric P and E one half, P as integers of two bytes. Everything else is computed for some
columns at a time, and used at once. With the vectors V, T = (E / r) W1^T, X = N' + N'^T, M = Q * A + X * T, b the row
sums of B + B^T and g those of R * T / r, and but for a factor,

    dL/dV = (M + M^T) V + C (N V) + N^T (C V) - g * (X V) - X (g * V) - b (1^T V) - 1 (b^T V)
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.losses.contextual.variants import Variant, are_neighbors
from vicinal.similarity.tiles import default_tile_rows

TILE = 512
"""Number of rows and of columns of a tile; a multiple of 8. Larger ones are a little faster, and take more memory."""
MAX_INT16 = 2**15 - 1


def tiled_loss(vectors: Tensor, labels: Tensor, k: int, variant: Variant) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`; differentiable once.

    Args:
        vectors: float [n, d], L2-normalized, on the CPU.
        labels: int [n].
        k: number of neighbors of a sample, including itself.
        variant: the paper's definition; epsilon and alpha may be any.
    """
    return _TiledLoss.apply(vectors, labels, k, variant)


class _TiledLoss(torch.autograd.Function):
    """Computes the gradient with the value, from the same matrices."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, labels: Tensor, k: int, variant: Variant) -> Tensor:
        tiles = _ContextualTiles(vectors.detach(), k, variant.epsilon)
        error = tiles.error(labels)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(tiles.gradient(error).mul_(4 * variant.alpha / len(labels) ** 2))
        return error.sum_of_squares() / len(labels) ** 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None


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
        # Tile by tile: the sum of millions of squares in one go loses digits of float32.
        norms = torch.stack([torch.linalg.vector_norm(self[place]) for place in self.places])
        times = torch.tensor([1.0 if i == j else 2.0 for i, j in self.places], dtype=norms.dtype)
        return norms.square() @ times


def spans_of(n: int) -> list[slice]:
    """The rows, and so the columns, of each tile."""
    return [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]


class _ContextualTiles:
    """Contextual similarity and its gradient; the names are those of the formulas above and of `matrix_form`."""

    def __init__(self, vectors: Tensor, k: int, epsilon: float) -> None:
        self.vectors, self.n, self.dtype = vectors, len(vectors), vectors.dtype
        self.spans = spans_of(self.n)
        self.near, close = self._search(k, epsilon)
        self.reciprocal, self.either = self._directions(close)
        self.sizes, self.num_reciprocal = self.near.row_sums(self.dtype), self.reciprocal.row_sums(self.dtype)
        self.num_far = (self.n - self.sizes).clamp_min(1)
        # Two rows have in common as many non-neighbors as neighbors, plus this, minus the size of the other's
        # neighborhood. Rows without non-neighbors have all of them in common.
        self.far = self.n - self.sizes + (self.sizes == self.n)
        self.common = self._count_common()

    def error(self, labels: Tensor) -> SymmetricMatrix:
        """The matrix E: w - y, and 0 on the diagonal."""
        total, panel = SymmetricMatrix(self.n, self.dtype), self._panel()
        for k, span in enumerate(self.spans):
            weights = self._weights(span, panel)
            for j in range(len(self.spans)):
                w1 = self._w1(k, j)
                for i, rows in enumerate(self.spans):  # W2 + W2^T
                    if i <= j:
                        total[i, j].addmm_(weights[:, rows].T, w1)
                    if i >= j:
                        total[j, i].addmm_(w1.T, weights[:, rows])
        for i, j in total.places:
            is_positive = labels[self.spans[i], None] == labels[self.spans[j]]
            total[i, j].mul_(0.5).sub_(is_positive.to(self.dtype))
            if i == j:
                total[i, j].fill_diagonal_(0.0)
        return total

    def gradient(self, error: SymmetricMatrix) -> Tensor:
        """dL/dV without its factor, float [n, d]."""
        vectors, panels = self.vectors, (self._panel(), self._panel())
        near_vectors, total = torch.empty_like(vectors), torch.zeros_like(vectors)
        common_vectors = torch.zeros_like(vectors)  # C V
        for rows in self.spans:
            near_vectors[rows] = self.near.read_rows(rows, panels[0][: _length(rows)]) @ vectors
        grad_size, grad_rows = torch.zeros_like(self.sizes), torch.zeros_like(self.sizes)
        weight_of_common, weight_of_far = (1 / self.sizes + 1 / self.num_far) / 2, 0.5 / self.num_far
        for k, columns in enumerate(self.spans):
            w1 = panels[0][: _length(columns)]
            for j, span in enumerate(self.spans):
                w1[:, span] = self._w1(k, j)
            for i, rows in enumerate(self.spans):
                weights = self._weights(rows, panels[1])
                grad_w1, grad_close = vectors.new_zeros(2, _length(rows), _length(columns))  # Q, T
                for j, span in enumerate(self.spans):
                    grad_w1.addmm_(weights[:, span], error[j, k])
                    grad_close.addmm_(error[i, j], w1[:, span].T)
                grad_close /= self.num_reciprocal[rows, None]
                reciprocal = self.reciprocal.tile(rows, columns, self.dtype)
                grad_size[rows] += (reciprocal * grad_close).sum(dim=1)
                directions = reciprocal.add_(self.either.tile(rows, columns, self.dtype))  # X
                agreement = self.common[i, k] * weight_of_common[rows, None]
                agreement += weight_of_far[rows, None] * (self.far[rows, None] - self.sizes[columns])
                entries = agreement.mul_(grad_w1).addcmul_(directions, grad_close)  # M
                grad_agreement = grad_w1.mul_(self.near.tile(rows, columns, self.dtype))
                grad_rows[rows] -= grad_agreement.sum(dim=1) * weight_of_far[rows]
                grad_rows[columns] -= weight_of_far[rows] @ grad_agreement
                grad_common = grad_agreement.mul_(weight_of_common[rows, None])  # half of C
                _add_symmetric(total, entries, vectors, rows, columns)
                _add_symmetric(total, grad_common, near_vectors, rows, columns)
                _add_symmetric(common_vectors, grad_common, vectors, rows, columns)
        grad_size /= self.num_reciprocal
        for rows in self.spans:
            near, directions = (panel[: _length(rows)] for panel in panels)
            total.addmm_(self.near.read_rows(rows, near).T, common_vectors[rows])
            self.reciprocal.read_rows(rows, directions).add_(self.either.read_rows(rows, near))
            total[rows] -= grad_size[rows, None] * (directions @ vectors)
            total[rows] -= directions.mul_(grad_size) @ vectors
        return total.addr_(grad_rows, vectors.sum(dim=0)).add_(grad_rows @ vectors)

    def _search(self, k: int, epsilon: float) -> tuple[BitMatrix, BitMatrix]:
        """N and N'."""
        found, step = (BitMatrix(self.n), BitMatrix(self.n)), default_tile_rows(self.n, self.vectors.device)
        for start in range(0, self.n, step):
            rows = slice(start, min(start + step, self.n))
            similarity = self.vectors[rows] @ self.vectors.T
            similarity.diagonal(start).fill_(1.0)
            for matrix, values in zip(found, are_neighbors(similarity, k, epsilon), strict=True):
                matrix.set(rows, slice(0, self.n), values)
        return found

    def _directions(self, close: BitMatrix) -> tuple[BitMatrix, BitMatrix]:
        """Which pairs are close in both directions, R, and which in either."""
        both, either = BitMatrix(self.n), BitMatrix(self.n)
        for rows, columns in itertools.product(self.spans, self.spans):
            forth, back = close.tile(rows, columns, torch.bool), close.tile(columns, rows, torch.bool).T
            both.set(rows, columns, forth & back)
            either.set(rows, columns, forth | back)
        return both, either

    def _count_common(self) -> SymmetricMatrix:
        """P."""
        common = SymmetricMatrix(self.n, torch.int16 if self.n <= MAX_INT16 else torch.int32)
        panels = self._panel(), self._panel()
        for i, rows in enumerate(self.spans):
            near = self.near.read_rows(rows, panels[0][: _length(rows)])
            for j, columns in enumerate(self.spans[i:], i):
                common[i, j].copy_(near @ self.near.read_rows(columns, panels[1][: _length(columns)]).T)
        return common

    def _w1(self, i: int, j: int) -> Tensor:
        """A tile of N * A, with quotients of integers, so that it is exactly 1 where all are in common."""
        rows, columns = self.spans[i], self.spans[j]
        common = self.common[i, j].to(self.dtype)
        fraction = common / self.sizes[rows, None]
        fraction_far = common.add_(self.far[rows, None] - self.sizes[columns]).div_(self.num_far[rows, None])
        return fraction.add_(fraction_far).mul_(0.5).mul_(self.near.tile(rows, columns, self.dtype))

    def _weights(self, rows: slice, panel: Tensor) -> Tensor:
        """Some rows of `R / r`, where r divides columns: of its transpose, as R is symmetric; held in a panel."""
        return self.reciprocal.read_rows(rows, panel[: _length(rows)]).div_(self.num_reciprocal)

    def _panel(self) -> Tensor:
        """Some rows of a matrix, in memory that is used again: the allocator leaves holes of that size."""
        return self.vectors.new_empty(TILE, self.n)


def _length(span: slice) -> int:
    return int(span.stop - span.start)


def _add_symmetric(total: Tensor, tile: Tensor, vectors: Tensor, rows: slice, columns: slice) -> None:
    """Add the product of a tile, and of its transpose at its mirror image, with vectors [n, d]."""
    total[rows].addmm_(tile, vectors[columns])
    total[columns].addmm_(tile.T, vectors[rows])
