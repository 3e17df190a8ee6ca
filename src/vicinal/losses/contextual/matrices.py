"""Square matrices, dense and sparse, with the same operations, so that a formula is written once for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from typing_extensions import Self

MAX_TERMS = 2**20
"""Number of terms of a product of sparse matrices that are computed at a time: about 10 MB."""


class Matrix(Protocol):
    """A matrix [n, n] of a float type. Vectors are tensors [n] of the same type.

    Attributes:
        is_sparse: whether it holds only its entries that are not 0.
    """

    is_sparse: ClassVar[bool]

    def __add__(self, other: Self) -> Self: ...
    def __sub__(self, other: Self) -> Self: ...
    def __mul__(self, other: Self) -> Self:
        """The elementwise product."""

    def __matmul__(self, other: Self) -> Self: ...

    @property
    def T(self) -> Self:  # noqa: N802 - as in numpy and torch
        """The transpose."""

    def half(self) -> Self:
        """The matrix divided by 2."""

    def at_product(self, a: Self, b: Self) -> Self:
        """`self * (a @ b)`, computed only at the entries of this matrix."""

    def at_symmetric_product(self, a: Self, b: Self) -> Self:
        """`self * (a @ b + (a @ b).T)`, computed only at the entries of this matrix."""

    def scaled(self, rows: Tensor) -> Self:
        """`self * rows[:, None]`."""

    def divided(self, rows: Tensor) -> Self:
        """`self / rows[:, None]`."""

    def plus_sum(self, rows: Tensor, columns: Tensor) -> Self:
        """`self + (rows[:, None] + columns)`, computed only at the entries of this matrix."""

    def times_sum(self, rows: Tensor, columns: Tensor) -> Self:
        """`self * (rows[:, None] + columns)`."""

    def row_sums(self) -> Tensor: ...

    def sum_of_squares(self) -> Tensor: ...


class DenseMatrix:
    """A matrix as a tensor.

    Args:
        values: float [n, n].

    Example:
        >>> matrix = DenseMatrix(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        >>> matrix.scaled(torch.tensor([1.0, 10.0])).row_sums()
        tensor([ 3., 30.])
    """

    is_sparse: ClassVar[bool] = False

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __add__(self, other: Self) -> Self:
        return self._with(self.values + other.values)

    def __sub__(self, other: Self) -> Self:
        return self._with(self.values - other.values)

    def __mul__(self, other: Self) -> Self:
        return self._with(self.values * other.values)

    def __matmul__(self, other: Self) -> Self:
        return self._with(self._times(other))

    @property
    def T(self) -> Self:  # noqa: N802
        return self._with(self.values.T)

    def half(self) -> Self:
        return self._with(self.values / 2)

    def at_product(self, a: Self, b: Self) -> Self:
        return self._with(a._times(b).mul_(self.values))

    def at_symmetric_product(self, a: Self, b: Self) -> Self:
        total = a @ b
        return self._with((total + total.T).values.mul_(self.values))

    def add_product_(self, a: Self, b: Self) -> Self:
        """Add a product in place."""
        a._times(b, self.values)
        return self

    def scaled(self, rows: Tensor) -> Self:
        return self._with(self.values * self.own(rows))

    def divided(self, rows: Tensor) -> Self:
        return self._with(self.values / self.own(rows))

    def plus_sum(self, rows: Tensor, columns: Tensor) -> Self:
        return self._with((self.own(rows) + columns).add_(self.values))

    def times_sum(self, rows: Tensor, columns: Tensor) -> Self:
        return self._with((self.own(rows) + columns).mul_(self.values))

    def row_sums(self) -> Tensor:
        return self.values.sum(dim=1)

    def sum_of_squares(self) -> Tensor:
        # Row by row: the sum of millions of squares in one go loses four digits of float32.
        return torch.linalg.vector_norm(self.values, dim=1).square().sum()

    def own(self, rows: Tensor) -> Tensor:
        """One number per row, [n], as a column beside the values."""
        return rows[:, None]

    def _times(self, other: Self, total: Tensor | None = None) -> Tensor:
        """The values of a product, added in place to those of `total` if that is given."""
        return self.values @ other.values if total is None else total.addmm_(self.values, other.values)

    def _with(self, values: Tensor) -> Self:
        return type(self)(values)


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix with few entries, on the CPU.

    Attributes:
        csr: a scipy.sparse.csr_array, of type Any because its stubs lack most methods.

    Example:
        >>> matrix = SparseMatrix.from_indices(torch.tensor([[0, 1], [1, 0], [1, 1]]), n=2, dtype=torch.float32)
        >>> (matrix @ matrix).row_sums()
        tensor([2., 3.])
    """

    csr: Any

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
        return self._with(self.csr.data * self.csr.dtype.type(0.5))

    def at_product(self, a: SparseMatrix, b: SparseMatrix) -> SparseMatrix:
        blocks = [self.csr[rows].multiply(a.csr[rows] @ b.csr).tocsr() for rows in _row_blocks(a.csr, b.csr)]
        return SparseMatrix(blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr"))

    def at_symmetric_product(self, a: SparseMatrix, b: SparseMatrix) -> SparseMatrix:
        return self.at_product(a, b) + self.T.at_product(a, b).T

    def scaled(self, rows: Tensor) -> SparseMatrix:
        return self._with(self.csr.data * self._broadcast_rows(rows))

    def divided(self, rows: Tensor) -> SparseMatrix:
        return self._with(self.csr.data / self._broadcast_rows(rows))

    def plus_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with(self.csr.data + (self._broadcast_rows(rows) + self._broadcast_columns(columns)))

    def times_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with(self.csr.data * (self._broadcast_rows(rows) + self._broadcast_columns(columns)))

    def row_sums(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.csr.sum(axis=1, dtype=self.csr.dtype)).ravel())

    def sum_of_squares(self) -> Tensor:
        return torch.linalg.vector_norm(torch.from_numpy(self.csr.data)).square()

    def without_diagonal(self) -> SparseMatrix:
        """The matrix with zeros on the diagonal."""
        rows = self._broadcast_rows(torch.arange(self.csr.shape[0]))
        return self._with(np.where(rows == self.csr.indices, 0, self.csr.data))

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

    def _with(self, data: Any) -> SparseMatrix:
        return SparseMatrix(sparse.csr_array((data, self.csr.indices, self.csr.indptr), shape=self.csr.shape))


def _row_blocks(a: Any, b: Any) -> Iterator[slice]:
    """Blocks of rows of `a` whose products with `b` have at most `MAX_TERMS` terms, if they are not one row."""
    terms = np.concatenate([[0], np.cumsum(np.diff(b.indptr)[a.indices])])[a.indptr]
    start = 0
    while start < a.shape[0]:
        stop = max(start + 1, int(np.searchsorted(terms, terms[start] + MAX_TERMS, "right")) - 1)
        yield slice(start, stop)
        start = stop
