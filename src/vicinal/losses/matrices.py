"""Square matrices with few entries, or with all, under one set of operations: what is written once works with both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor
from typing_extensions import Self

MOST_TERMS = 2**20
"""Terms of a product of sparse matrices that are made at a time: about 10 MB."""


class Matrix(Protocol):
    """A matrix [n, n] of one float type. Vectors are tensors [n] of it."""

    def __add__(self, other: Self) -> Self: ...
    def __sub__(self, other: Self) -> Self: ...
    def __mul__(self, other: Self) -> Self:
        """Entry by entry."""

    def __matmul__(self, other: Self) -> Self: ...

    @property
    def T(self) -> Self:  # noqa: N802 - as everywhere
        """Transposed."""

    def half(self) -> Self:
        """Half of it."""

    def at_product(self, a: Self, b: Self) -> Self:
        """`self * (a @ b)`, of which no other entries are kept than those that this matrix has."""

    def at_symmetric_product(self, a: Self, b: Self) -> Self:
        """`self * (a @ b + (a @ b).T)`, of which no other entries are kept than those that this matrix has."""

    def scaled(self, rows: Tensor) -> Self:
        """Each entry times the number of its row."""

    def divided(self, rows: Tensor) -> Self:
        """Each entry divided by the number of its row."""

    def plus_sum(self, rows: Tensor, columns: Tensor) -> Self:
        """Each entry that this matrix has plus the sum of the numbers of its row and its column."""

    def times_sum(self, rows: Tensor, columns: Tensor) -> Self:
        """Each entry times the sum of the numbers of its row and its column."""

    def row_sums(self) -> Tensor: ...

    def sum_of_squares(self) -> Tensor: ...


@dataclass(frozen=True)
class DenseMatrix:
    """All entries, as a tensor.

    Example:
        >>> matrix = DenseMatrix(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        >>> matrix.scaled(torch.tensor([1.0, 10.0])).row_sums()
        tensor([ 3., 30.])
    """

    values: Tensor

    def __add__(self, other: DenseMatrix) -> DenseMatrix:
        return DenseMatrix(self.values + other.values)

    def __sub__(self, other: DenseMatrix) -> DenseMatrix:
        return DenseMatrix(self.values - other.values)

    def __mul__(self, other: DenseMatrix) -> DenseMatrix:
        return DenseMatrix(self.values * other.values)

    def __matmul__(self, other: DenseMatrix) -> DenseMatrix:
        return DenseMatrix(self.values @ other.values)

    @property
    def T(self) -> DenseMatrix:  # noqa: N802
        return DenseMatrix(self.values.T)

    def half(self) -> DenseMatrix:
        return DenseMatrix(self.values / 2)

    def at_product(self, a: DenseMatrix, b: DenseMatrix) -> DenseMatrix:
        return DenseMatrix((a.values @ b.values).mul_(self.values))

    def at_symmetric_product(self, a: DenseMatrix, b: DenseMatrix) -> DenseMatrix:
        product = a.values @ b.values
        return DenseMatrix((product + product.T).mul_(self.values))

    def scaled(self, rows: Tensor) -> DenseMatrix:
        return DenseMatrix(self.values * rows[:, None])

    def divided(self, rows: Tensor) -> DenseMatrix:
        return DenseMatrix(self.values / rows[:, None])

    def plus_sum(self, rows: Tensor, columns: Tensor) -> DenseMatrix:
        return DenseMatrix((rows[:, None] + columns).add_(self.values))

    def times_sum(self, rows: Tensor, columns: Tensor) -> DenseMatrix:
        return DenseMatrix((rows[:, None] + columns).mul_(self.values))

    def row_sums(self) -> Tensor:
        return self.values.sum(dim=1)

    def sum_of_squares(self) -> Tensor:
        return torch.linalg.vector_norm(self.values).square()


@dataclass(frozen=True)
class SparseMatrix:
    """Few entries, by scipy; on the CPU.

    Attributes:
        csr: a scipy.sparse.csr_array, whose stubs do not know most of its methods.

    Example:
        >>> matrix = SparseMatrix.of_ones(torch.tensor([[0, 1], [1, 0], [1, 1]]), n=2, dtype=torch.float32)
        >>> (matrix @ matrix).row_sums()
        tensor([2., 3.])
    """

    csr: Any

    @classmethod
    def of_ones(cls, entries: Tensor, n: int, dtype: torch.dtype) -> SparseMatrix:
        """A matrix [n, n] with a one at each of the entries int [m, 2], which are sorted."""
        first = np.searchsorted(entries[:, 0].contiguous().numpy(), np.arange(n + 1))
        ones = torch.ones(len(entries), dtype=dtype).numpy()
        return cls(sparse.csr_array((ones, entries[:, 1].int().numpy(), first), shape=(n, n)))

    @classmethod
    def of_classes(cls, labels: Tensor, dtype: torch.dtype) -> SparseMatrix:
        """A one for each pair of equal labels, each with itself too."""
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
        blocks = [self.csr[part].multiply(a.csr[part] @ b.csr).tocsr() for part in _parts(a.csr, b.csr)]
        return SparseMatrix(blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr"))

    def at_symmetric_product(self, a: SparseMatrix, b: SparseMatrix) -> SparseMatrix:
        return self.at_product(a, b) + self.T.at_product(a, b).T

    def scaled(self, rows: Tensor) -> SparseMatrix:
        return self._with(self.csr.data * self._of_rows(rows))

    def divided(self, rows: Tensor) -> SparseMatrix:
        return self._with(self.csr.data / self._of_rows(rows))

    def plus_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with(self.csr.data + (self._of_rows(rows) + self._of_columns(columns)))

    def times_sum(self, rows: Tensor, columns: Tensor) -> SparseMatrix:
        return self._with(self.csr.data * (self._of_rows(rows) + self._of_columns(columns)))

    def row_sums(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.csr.sum(axis=1, dtype=self.csr.dtype)).ravel())

    def sum_of_squares(self) -> Tensor:
        return torch.linalg.vector_norm(torch.from_numpy(self.csr.data)).square()

    def without_diagonal(self) -> SparseMatrix:
        """With zeros for the entries of each with itself."""
        rows = self._of_rows(torch.arange(self.csr.shape[0]))
        return self._with(np.where(rows == self.csr.indices, 0, self.csr.data))

    def times(self, vectors: Tensor) -> Tensor:
        """The matrix times vectors [n, d]."""
        return torch.from_numpy(self.csr @ vectors.numpy())

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """The transposed matrix times vectors [n, d]."""
        return torch.from_numpy(self.csr.T @ vectors.numpy())

    def _of_rows(self, numbers: Tensor) -> Any:
        return np.repeat(numbers.numpy(), np.diff(self.csr.indptr))

    def _of_columns(self, numbers: Tensor) -> Any:
        return numbers.numpy()[self.csr.indices]

    def _with(self, data: npt.NDArray[np.generic]) -> SparseMatrix:
        return SparseMatrix(sparse.csr_array((data, self.csr.indices, self.csr.indptr), shape=self.csr.shape))


def _parts(a: Any, b: Any) -> Iterator[slice]:
    """Stretches of rows of `a` whose products with `b` have few enough terms."""
    terms = np.concatenate([[0], np.cumsum(np.diff(b.indptr)[a.indices])])[a.indptr]
    start = 0
    while start < a.shape[0]:
        stop = max(start + 1, int(np.searchsorted(terms, terms[start] + MOST_TERMS, "right")) - 1)
        yield slice(start, stop)
        start = stop
