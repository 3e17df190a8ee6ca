"""The contextual loss of small neighborhoods with sparse matrices; a matrix of all pairs is never held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, similarity_of_kth, slack, with_gradient
from vicinal.utils import distributed
from vicinal.utils.arrays import chunk_ranges
from vicinal.utils.devices import default_tile_rows

MAX_TERMS = 2**20  # number of terms of a product of sparse matrices that are computed at a time: about 10 MB

TileNeighbors = tuple[Tensor, Tensor]
NOTHING: TileNeighbors = (torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.bool))


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix with few entries, on the CPU."""

    csr: Any  # a scipy.sparse.csr_array, whose stubs lack most methods

    is_sparse: ClassVar[bool] = True

    @classmethod
    def from_indices(cls, indices: Tensor, n: int, dtype: torch.dtype) -> SparseMatrix:
        """A matrix [n, n] with ones at the given rows and columns, int [m, 2], which are sorted."""
        first = np.searchsorted(indices[:, 0].contiguous().numpy(), np.arange(n + 1))
        ones = torch.ones(len(indices), dtype=dtype).numpy()
        return cls(sparse.csr_array((ones, indices[:, 1].int().numpy(), first), shape=(n, n)))

    @classmethod
    def from_labels(cls, labels: Tensor, dtype: torch.dtype) -> SparseMatrix:
        """A matrix with a one for each pair of equal labels, including the diagonal."""
        classes = labels.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
        n = len(classes)
        ones = torch.ones(n, dtype=dtype).numpy()
        member = sparse.csr_array((ones, classes.numpy(), np.arange(n + 1)), shape=(n, n))
        return cls(member @ member.T.tocsr())

    def __add__(self, other: SparseMatrix) -> SparseMatrix:
        return SparseMatrix(self.csr + other.csr)

    def __sub__(self, other: SparseMatrix) -> SparseMatrix:
        return SparseMatrix(self.csr - other.csr)

    def __mul__(self, other: SparseMatrix) -> SparseMatrix:
        return SparseMatrix(self.csr.multiply(other.csr).tocsr())

    def __matmul__(self, other: SparseMatrix) -> SparseMatrix:
        return SparseMatrix(self.csr @ other.csr)

    @property
    def T(self) -> SparseMatrix:  # noqa: N802
        return SparseMatrix(self.csr.T.tocsr())

    def half(self) -> SparseMatrix:
        return self._with_data(self.csr.data * self.csr.dtype.type(0.5))

    def at_product(self, a: SparseMatrix, b: SparseMatrix) -> SparseMatrix:
        blocks = [self.csr[rows].multiply(a.csr[rows] @ b.csr).tocsr() for rows in _row_blocks(a.csr, b.csr)]
        return SparseMatrix(blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr"))

    def at_symmetric_product(self, a: SparseMatrix, b: SparseMatrix) -> SparseMatrix:
        return self.at_product(a, b) + self.T.at_product(a, b).T

    def scaled(self, rows: Tensor) -> SparseMatrix:
        return self._with_data(self.csr.data * self._broadcast_rows(rows))

    def divided(self, rows: Tensor) -> SparseMatrix:
        return self._with_data(self.csr.data / self._broadcast_rows(rows))

    def plus_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with_data(self.csr.data + (self._broadcast_rows(rows) + self._broadcast_columns(columns)))

    def times_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with_data(self.csr.data * (self._broadcast_rows(rows) + self._broadcast_columns(columns)))

    def row_sums(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.csr.sum(axis=1, dtype=self.csr.dtype)).ravel())

    def sum_of_squares(self) -> Tensor:
        return torch.linalg.vector_norm(torch.from_numpy(self.csr.data)).square()

    def without_diagonal(self) -> SparseMatrix:
        rows = self._broadcast_rows(torch.arange(self.csr.shape[0]))
        return self._with_data(np.where(rows == self.csr.indices, 0, self.csr.data))

    def times(self, vectors: Tensor) -> Tensor:
        """The product with vectors [n, d]."""
        return torch.from_numpy(self.csr @ vectors.numpy())

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """The product of the transpose with vectors [n, d]."""
        return torch.from_numpy(self.csr.T @ vectors.numpy())

    def _broadcast_rows(self, numbers: Tensor) -> Any:
        return np.repeat(numbers.numpy(), np.diff(self.csr.indptr))

    def _broadcast_columns(self, numbers: Tensor) -> Any:
        return numbers.numpy()[self.csr.indices]

    def _with_data(self, data: Any) -> SparseMatrix:
        return SparseMatrix(sparse.csr_array((data, self.csr.indices, self.csr.indptr), shape=self.csr.shape))


def _row_blocks(a: Any, b: Any) -> Iterator[slice]:
    """Blocks of rows of `a` whose products with `b` have at most `MAX_TERMS` terms, unless a block is a single row."""
    terms = np.concatenate([[0], np.cumsum(np.diff(b.indptr)[a.indices])])[a.indptr]
    return (slice(*rows) for rows in chunk_ranges(np.diff(terms), MAX_TERMS))


def find_neighborhoods(
    vectors: Tensor, k: int, epsilon: float, max_neighbors: float, is_divided: bool = False
) -> Neighborhoods[SparseMatrix] | None:
    """Find the neighborhoods of unit vectors [n, d], tile by tile; None if a tile has too many neighbors on average.

    `is_divided`: all processes hold the same vectors, and each searches for a part of them.
    """
    n = len(vectors)
    span = distributed.own_rows(n) if is_divided else slice(0, n)
    search, step = NeighborSearch(k, epsilon, max_neighbors), default_tile_rows(n, vectors.device)
    for start in range(span.start, span.stop, step):
        tile = slice(start, min(start + step, span.stop))
        search.observe(vectors[tile] @ vectors.T, tile)
        if search.found is None:
            break
    found = _gather_neighbors(search.found) if is_divided else search.found
    return build_neighborhoods(found, n, vectors.dtype)


def build_neighborhoods(
    tiles: list[TileNeighbors] | None, n: int, dtype: torch.dtype
) -> Neighborhoods[SparseMatrix] | None:
    """The neighborhoods of n samples from the neighbors that were found, in order."""
    if tiles is None:
        return None
    near, close = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return Neighborhoods(*(SparseMatrix.from_indices(entries, n, dtype) for entries in (near, near[close])))


class NeighborSearch:
    """A search for neighbors in the similarities of all samples, tile by tile.

    `found` holds, for each tile, row and column of the neighbors, int64 [m, 2], and whether they are close, bool [m].
    None: there were too many.
    """

    def __init__(self, k: int, epsilon: float, max_neighbors: float) -> None:
        self.k, self.epsilon, self.max_neighbors = k, epsilon, max_neighbors
        self.found: list[TileNeighbors] | None = [NOTHING]

    def observe(self, similarity: Tensor, span: slice) -> None:
        """Search the similarities [rows, n] of a span of samples; self-similarities become 1."""
        if self.found is None:
            return
        similarity.diagonal(span.start).fill_(1.0)
        kths = similarity_of_kth(similarity, self.k)
        min_near, min_close = (kth - slack(self.epsilon, kth.dtype) for kth in kths)
        near = (similarity >= min_near).nonzero()
        if len(near) > self.max_neighbors * len(similarity):
            self.found = None
            return
        close = similarity[near[:, 0], near[:, 1]] >= min_close[near[:, 0], 0]
        self.found.append((near + torch.tensor([span.start, 0]), close))


def _gather_neighbors(tiles: list[TileNeighbors] | None) -> list[TileNeighbors] | None:
    """The neighbors that all processes have found, in order; None if one of them has found too many."""
    near, close = (torch.cat(parts) for parts in zip(*(tiles or [NOTHING]), strict=True))
    num_local = -1 if tiles is None else len(near)
    is_own = [rank == distributed.rank() for rank in range(distributed.world_size())]
    lengths = [int(length) for length in distributed.all_reduce_values([num_local * each for each in is_own])]
    if min(lengths) < 0:
        return None
    entries = distributed.all_gather_parts(torch.cat([near, close[:, None]], dim=1).int(), lengths)
    return [(entries[:, :2].long(), entries[:, 2].bool())]


def sparse_loss(
    vectors: Tensor, labels: Tensor, neighborhoods: Neighborhoods[SparseMatrix], variant: Variant
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`; differentiable once with respect to unit vectors [n, d]."""

    def loss(vectors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        contextual = ContextualSimilarity(neighborhoods, variant)
        error = (contextual.w() - SparseMatrix.from_labels(labels, vectors.dtype)).without_diagonal()
        value = error.sum_of_squares() / len(labels) ** 2
        if not needs_gradient:
            return value, None
        return value, _gradient(contextual, error, vectors).mul_(4 * variant.alpha / len(labels) ** 2)

    return with_gradient(loss, vectors)


def _gradient(contextual: ContextualSimilarity[SparseMatrix], grad_w: SparseMatrix, vectors: Tensor) -> Tensor:
    """The gradient with respect to the vectors: that of the similarities and its transpose, each times the vectors."""
    gradient, near = contextual.gradient(grad_w), contextual.near
    total = gradient.entries.times(vectors).add_(gradient.entries.transposed_times(vectors))
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total += gradient.grad_common.times(near.times(vectors))
        total += near.transposed_times(gradient.grad_common.times(vectors))
        total.addr_(gradient.grad_rows, vectors.sum(dim=0)).add_(gradient.grad_rows @ vectors)
    return total
