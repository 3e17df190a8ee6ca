"""The contextual loss of large neighborhoods on a CPU, tile by tile, without a whole matrix of floats.

In the notation of `matrix_form`: of all n^2 entries are held N, R and the pairs that are close in either direction, a
bit each, and of the symmetric P and E one half, P as integers of two bytes. Everything else is computed for some
columns at a time, and used at once. With the vectors V, T = (E / r) W1^T, X = N' + N'^T, M = Q * A + X * T, b the row
sums of B + B^T and g those of R * T / r, and but for a factor,

    dL/dV = (M + M^T) V + C (N V) + N^T (C V) - g * (X V) - X (g * V) - b (1^T V) - 1 (b^T V)
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.losses.contextual.packed_matrices import BitMatrix, SymmetricMatrix, count_type, length, spans_of
from vicinal.losses.contextual.variants import Variant, are_neighbors
from vicinal.losses.contextual.with_gradient import with_gradient
from vicinal.similarity.tiles import default_tile_rows


def tiled_loss(vectors: Tensor, labels: Tensor, k: int, variant: Variant) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`; differentiable once.

    Args:
        vectors: float [n, d], L2-normalized, on the CPU.
        labels: int [n].
        k: number of neighbors of a sample, including itself.
        variant: the paper's definition; epsilon and alpha may be any.
    """

    def loss(vectors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        tiles = ContextualTiles(vectors, k, variant.epsilon)
        error = tiles.error(labels)
        value = error.sum_of_squares() / len(labels) ** 2
        if not needs_gradient:
            return value, None
        return value, TiledGradient(tiles, error).of_vectors().mul_(4 * variant.alpha / len(labels) ** 2)

    return with_gradient(loss, vectors)


class ContextualTiles:
    """Neighborhoods, and contextual similarity less y; the names are those above and of `matrix_form`."""

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
        total, panel = SymmetricMatrix(self.n, self.dtype), self.panel()
        for k, span in enumerate(self.spans):
            weights = self.weights(span, panel)
            for j in range(len(self.spans)):
                w1 = self.w1(k, j)
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
        common = SymmetricMatrix(self.n, count_type(self.n))
        panels = self.panel(), self.panel()
        for i, rows in enumerate(self.spans):
            near = self.near.read_rows(rows, panels[0][: length(rows)])
            for j, columns in enumerate(self.spans[i:], i):
                common[i, j].copy_(near @ self.near.read_rows(columns, panels[1][: length(columns)]).T)
        return common

    def w1(self, i: int, j: int) -> Tensor:
        """A tile of N * A, with quotients of integers, so that it is exactly 1 where all are in common."""
        rows, columns = self.spans[i], self.spans[j]
        common = self.common[i, j].to(self.dtype)
        fraction = common / self.sizes[rows, None]
        fraction_far = common.add_(self.far[rows, None] - self.sizes[columns]).div_(self.num_far[rows, None])
        return fraction.add_(fraction_far).mul_(0.5).mul_(self.near.tile(rows, columns, self.dtype))

    def weights(self, rows: slice, panel: Tensor) -> Tensor:
        """Some rows of `R / r`, where r divides columns: of its transpose, as R is symmetric; held in a panel."""
        return self.reciprocal.read_rows(rows, panel[: length(rows)]).div_(self.num_reciprocal)

    def panel(self) -> Tensor:
        """Some rows of a matrix, in memory that is used again: the allocator leaves holes of that size."""
        return self.vectors.new_empty(length(self.spans[0]), self.n)


class TiledGradient:
    """The gradient with respect to the vectors, of `error`, the matrix E; see the formula above."""

    def __init__(self, tiles: ContextualTiles, error: SymmetricMatrix) -> None:
        self.tiles, self.error, self.mean = tiles, error, tiles.vectors.mean(dim=0)
        # Vectors of an untrained model are almost the same. Products with their differences from the mean, and with
        # ones for the mean, keep the digits that are left when the gradient along each vector is taken out.
        self.vectors = F.pad(tiles.vectors - self.mean, (0, 1), value=1.0)
        self.panels = tiles.panel(), tiles.panel()
        self.total, self.common_vectors = torch.zeros_like(self.vectors), torch.zeros_like(self.vectors)  # dL/dV, C V
        self.grad_size, self.grad_rows = torch.zeros_like(tiles.sizes), torch.zeros_like(tiles.sizes)  # g, -b
        self.weight_of_common, self.weight_of_far = (1 / tiles.sizes + 1 / tiles.num_far) / 2, 0.5 / tiles.num_far

    def of_vectors(self) -> Tensor:
        """dL/dV without its factor, float [n, d]; can be called once."""
        tiles, total = self.tiles, self.total
        self._add_tiles()
        self.grad_size /= tiles.num_reciprocal
        for rows in tiles.spans:
            near, directions = (panel[: length(rows)] for panel in self.panels)
            total.addmm_(tiles.near.read_rows(rows, near).T, self.common_vectors[rows])
            tiles.reciprocal.read_rows(rows, directions).add_(tiles.either.read_rows(rows, near))
            total[rows] -= self.grad_size[rows, None] * (directions @ self.vectors)
            total[rows] -= directions.mul_(self.grad_size) @ self.vectors
        total.addr_(self.grad_rows, self.vectors.sum(dim=0)).add_(self.grad_rows @ self.vectors)
        return total[:, :-1].addr(total[:, -1], self.mean)

    def _add_tiles(self) -> None:
        """Add what is known of a tile without the others."""
        tiles, near_vectors = self.tiles, self._near_vectors()
        for k, columns in enumerate(tiles.spans):
            w1 = self.panels[0][: length(columns)]
            for j, span in enumerate(tiles.spans):
                w1[:, span] = tiles.w1(k, j)
            for i, rows in enumerate(tiles.spans):
                grad_w1, grad_close = self._products(i, k, w1)
                entries = self._entries(i, k, grad_w1, grad_close)
                grad_common = self._grad_common(i, k, grad_w1)
                _add_symmetric(self.total, entries, self.vectors, rows, columns)
                _add_symmetric(self.total, grad_common, near_vectors, rows, columns)
                _add_symmetric(self.common_vectors, grad_common, self.vectors, rows, columns)

    def _near_vectors(self) -> Tensor:
        """N V."""
        result = torch.empty_like(self.vectors)
        for rows in self.tiles.spans:
            result[rows] = self.tiles.near.read_rows(rows, self.panels[0][: length(rows)]) @ self.vectors
        return result

    def _products(self, i: int, k: int, w1: Tensor) -> tuple[Tensor, Tensor]:
        """A tile of Q and of T; `w1` are the rows of W1 with the numbers of its columns."""
        rows = self.tiles.spans[i]
        weights = self.tiles.weights(rows, self.panels[1])
        grad_w1, grad_close = w1.new_zeros(2, length(rows), len(w1))
        for j, span in enumerate(self.tiles.spans):
            grad_w1.addmm_(weights[:, span], self.error[j, k])
            grad_close.addmm_(self.error[i, j], w1[:, span].T)
        return grad_w1, grad_close.div_(self.tiles.num_reciprocal[rows, None])

    def _entries(self, i: int, k: int, grad_w1: Tensor, grad_close: Tensor) -> Tensor:
        """A tile of M; what it adds to g is added."""
        tiles, rows, columns = self.tiles, self.tiles.spans[i], self.tiles.spans[k]
        reciprocal = tiles.reciprocal.tile(rows, columns, tiles.dtype)
        self.grad_size[rows] += (reciprocal * grad_close).sum(dim=1)
        directions = reciprocal.add_(tiles.either.tile(rows, columns, tiles.dtype))  # X
        agreement = tiles.common[i, k] * self.weight_of_common[rows, None]  # A
        agreement += self.weight_of_far[rows, None] * (tiles.far[rows, None] - tiles.sizes[columns])
        return agreement.mul_(grad_w1).addcmul_(directions, grad_close)

    def _grad_common(self, i: int, k: int, grad_w1: Tensor) -> Tensor:
        """A tile of the matrix that with its transpose is C, in place of that of Q; what it takes from -b is taken."""
        rows, columns = self.tiles.spans[i], self.tiles.spans[k]
        grad_agreement = grad_w1.mul_(self.tiles.near.tile(rows, columns, grad_w1.dtype))
        self.grad_rows[rows] -= grad_agreement.sum(dim=1) * self.weight_of_far[rows]
        self.grad_rows[columns] -= self.weight_of_far[rows] @ grad_agreement
        return grad_agreement.mul_(self.weight_of_common[rows, None])


def _add_symmetric(total: Tensor, tile: Tensor, vectors: Tensor, rows: slice, columns: slice) -> None:
    """Add the product of a tile, and of its transpose at its mirror image, with vectors [n, d]."""
    total[rows].addmm_(tile, vectors[columns])
    total[columns].addmm_(tile.T, vectors[rows])
