"""The contextual loss with dense matrices: for neighborhoods of any size, for all variants, and for GPUs.

In large batches a GPU multiplies only the nonzero entries of a first factor with few of them, such as a neighbor mask.
The host waits for their number.

On several processes, which all hold the n references, each process holds n / p rows of every matrix [n, n]. A product
needs all rows of its second factor: they are gathered in parts of limited size, binary matrices as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import Self

from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, are_neighbors, contextual_similarity, with_gradient
from vicinal.similarity.rows import MAX_FRACTION, weighted_sums
from vicinal.utils import distributed

MIN_ROWS, WITH_FEW_ENTRIES = 5000, ("cuda",)
"""Number of rows and devices with which summing the rows at few nonzero entries is faster than the product of the whole
matrix. On a CPU such matrices are sparse ones."""
MAX_GATHERED = 2**26  # number of entries of a matrix that a process gets from all others at a time: 256 MB in float32


class DenseMatrix:
    """A matrix as a tensor, float [n, n]."""

    is_sparse: ClassVar[bool] = False

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __add__(self, other: Self) -> Self:
        return self._with_values(self.values + other.values)

    def __sub__(self, other: Self) -> Self:
        return self._with_values(self.values - other.values)

    def __mul__(self, other: Self) -> Self:
        return self._with_values(self.values * other.values)

    def __matmul__(self, other: Self) -> Self:
        return self._with_values(self._times(other))

    @property
    def T(self) -> Self:  # noqa: N802
        return self._with_values(self.values.T)

    def half(self) -> Self:
        return self._with_values(self.values / 2)

    def at_product(self, a: Self, b: Self) -> Self:
        return self._with_values(a._times(b).mul_(self.values))

    def at_symmetric_product(self, a: Self, b: Self) -> Self:
        total = a @ b
        return self._with_values((total + total.T).values.mul_(self.values))

    def add_product_(self, a: Self, b: Self) -> Self:
        a._times(b, self.values)
        return self

    def scaled(self, rows: Tensor) -> Self:
        return self._with_values(self.values * self.as_column(rows))

    def divided(self, rows: Tensor) -> Self:
        return self._with_values(self.values / self.as_column(rows))

    def plus_sum(self, rows: Tensor, columns: Tensor) -> Self:
        return self._with_values((self.as_column(rows) + columns).add_(self.values))

    def times_sum(self, rows: Tensor, columns: Tensor) -> Self:
        return self._with_values((self.as_column(rows) + columns).mul_(self.values))

    def row_sums(self) -> Tensor:
        return self.values.sum(dim=1)

    def sum_of_squares(self) -> Tensor:
        # Row by row: the sum of millions of squares in one go loses four digits of float32.
        return torch.linalg.vector_norm(self.values, dim=1).square().sum()

    def as_column(self, rows: Tensor) -> Tensor:
        """One number per row, [n], as a column beside the values."""
        return rows[:, None]

    def _times(self, other: Self, total: Tensor | None = None) -> Tensor:
        """The values of a product, added in place to those of `total` if that is given."""
        if not _has_few_entries(self.values):
            return self.values @ other.values if total is None else total.addmm_(self.values, other.values)
        rows, columns = self.values.nonzero(as_tuple=True)
        weights = self.values[rows, columns]
        product = weighted_sums(rows, other.values.contiguous(), columns, weights, len(self.values))
        return product if total is None else total.add_(product)

    def _with_values(self, values: Tensor) -> Self:
        return type(self)(values)


def _has_few_entries(values: Tensor) -> bool:
    return (
        values.device.type in WITH_FEW_ENTRIES
        and len(values) >= MIN_ROWS
        and not torch.compiler.is_compiling()
        and int(values.count_nonzero()) <= MAX_FRACTION * values.numel()
    )


D = TypeVar("D", bound=DenseMatrix)


def dense_loss(
    similarity: Tensor, positive: Tensor, valid_mask: Tensor | None, k: int, variant: Variant, first: int = 0
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, where i = j contributes 0; differentiable once.

    The diagonal of `similarity`, [rows, n], is overwritten. It has all n rows or, without the matrix form, those of
    this process from `first` on; all processes have equally many, and the mean over them is the loss. `positive` is y,
    and pairs outside `valid_mask` contribute 0; None: all are valid, and y is symmetric.
    """
    similarity.diagonal(first).fill_(1.0)
    if variant.correct_gradient:
        negative = ~positive if valid_mask is None else valid_mask & ~positive
        similarity = _CorrectGradient.apply(similarity, positive, negative)
    if variant.has_matrix_form:

        def loss(similarity: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
            matrices = (
                DenseMatrix(each.to(similarity.dtype)) for each in are_neighbors(similarity, k, variant.epsilon)
            )
            return _value_and_gradient(Neighborhoods(*matrices), positive, valid_mask, variant, needs_gradient)

        return with_gradient(loss, similarity)
    rows, n = similarity.shape
    w = contextual_similarity(similarity, k, variant, slice(first, first + rows))
    return masked_error(w, positive, valid_mask, first).square().sum() / (rows * n)


def masked_error(w: Tensor, positive: Tensor, valid_mask: Tensor | None, first: int = 0) -> Tensor:
    """The difference w - y of some rows from `first` on, [rows, n]; 0 where it does not count."""
    error = w - positive.to(w.dtype)
    error.diagonal(first).fill_(0.0)
    return error if valid_mask is None else error.masked_fill_(~valid_mask, 0.0)


def _value_and_gradient(
    neighborhoods: Neighborhoods[D],
    positive: Tensor,
    valid_mask: Tensor | None,
    variant: Variant,
    needs_gradient: bool,
    first: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Eq. (5), and its gradient with respect to the similarities of the rows from `first` on."""
    contextual = ContextualSimilarity(neighborhoods, variant)
    del neighborhoods  # they may be large, and are not needed below
    error = type(contextual.near)(masked_error(contextual.w().values, positive, valid_mask, first))
    value = error.sum_of_squares() / contextual.n**2
    if not needs_gradient:
        return value, None
    gradient = contextual.gradient((error + error.T).half() if variant.expansion and valid_mask is not None else error)
    total = gradient.entries
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total.add_product_(gradient.grad_common, contextual.near)
        total.values.add_(total.as_column(gradient.grad_rows))
    return value, total.values.mul_(4 * variant.alpha / contextual.n**2)


class _CorrectGradient(torch.autograd.Function):
    """Eq. (10): removes the gradient that would push a positive pair apart or pull a negative pair together."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(positive, negative)
        return similarity.view_as(similarity)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        positive, negative = ctx.saved_tensors
        is_wrong = (positive & (upstream > 0)) | (negative & (upstream < 0))
        return upstream.masked_fill(is_wrong, 0.0), None, None


# Rows of several processes --------------------------------------------------------------------------------------------


class RowBlocks(DenseMatrix):
    """A matrix [n, n] of which each process holds some rows, as values or as those of its transpose.

    All processes must call the same operations. The transpose is exchanged only where its own rows are needed.
    """

    def __init__(self, values: Tensor | None, is_binary: bool = False, transposed: Self | None = None) -> None:
        self._values, self.is_binary, self.transposed = values, is_binary, transposed

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """The rows of this process, [rows, n]."""
        if self._values is None:
            assert self.transposed is not None
            self._values = _exchange_transposed(self.transposed)
        return self._values

    @property
    def T(self) -> RowBlocks:  # noqa: N802
        return RowBlocks(None, self.is_binary, self)

    def row_sums(self) -> Tensor:
        """The sums of all rows, also those of other processes, [n]."""
        spans = distributed.row_spans(self.values.shape[1])
        return distributed.all_gather_parts(super().row_sums(), [span.stop - span.start for span in spans])

    def sum_of_squares(self) -> Tensor:
        return distributed.all_reduce_sum(super().sum_of_squares())

    def as_column(self, rows: Tensor) -> Tensor:
        """The entries of a vector [n], one per matrix row, for the rows of this process, [rows, 1]."""
        return rows[distributed.own_rows(len(rows)), None]

    def _times(self, other: RowBlocks, total: Tensor | None = None) -> Tensor:
        """The rows of this process of a product, [rows, n]."""
        source, total = other.transposed or other, torch.zeros_like(self.values) if total is None else total
        for span, rows in _all_rows(source):
            if other.transposed is None:
                total.addmm_(self.values[:, span], rows)
            else:
                total[:, span].addmm_(self.values, rows.T)
        return total


def _all_rows(matrix: RowBlocks) -> Iterator[tuple[slice, Tensor]]:
    """Yield all rows of a matrix in blocks: the span of each block, and its values [rows, n]."""
    values, n = matrix.values, matrix.values.shape[1]
    spans = distributed.row_spans(n)
    step = max(1, MAX_GATHERED // (n * len(spans)))
    for start in range(0, spans[0].stop, step):
        lengths = [max(0, min(step, span.stop - span.start - start)) for span in spans]
        part = values[start : start + step].to(_message_type(matrix))
        gathered = torch.split(distributed.all_gather_parts(part, lengths), lengths)
        for span, rows in zip(spans, gathered, strict=True):
            if len(rows):
                yield slice(span.start + start, span.start + start + len(rows)), rows.to(values.dtype)


def _exchange_transposed(matrix: RowBlocks) -> Tensor:
    """The rows of this process of the transpose, [rows, n]."""
    values, spans = matrix.values, distributed.row_spans(matrix.values.shape[1])
    sent = [values[:, span].T.to(_message_type(matrix)).reshape(-1) for span in spans]
    received = [
        part.view(len(values), span.stop - span.start)
        for part, span in zip(distributed.all_to_all(sent), spans, strict=True)
    ]
    return torch.cat(received, dim=1).to(values.dtype)


def _message_type(matrix: RowBlocks) -> torch.dtype:
    return torch.uint8 if matrix.is_binary else matrix.values.dtype


def row_block_loss(vectors: Tensor, positive: Tensor, valid_mask: Tensor | None, k: int, variant: Variant) -> Tensor:
    """Eq. (5) as in :func:`dense_loss`, with steps and products, on all processes together; differentiable once.

    All processes have the same unit vectors [n, d], and each has the pairs [rows, n] of its own rows. Its gradient is
    that of its rows, times the number of processes, so that the mean over processes is the whole gradient.
    """

    def loss(vectors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        span = distributed.own_rows(len(vectors))
        value, gradient = _value_and_gradient(
            _neighborhoods(vectors, span, k, variant.epsilon), positive, valid_mask, variant, needs_gradient, span.start
        )
        if gradient is None:
            return value, None
        gradient.diagonal(span.start).zero_()  # self-similarities are constant
        if variant.correct_gradient:
            negative = ~positive if valid_mask is None else valid_mask & ~positive
            gradient.masked_fill_((positive & (gradient > 0)) | (negative & (gradient < 0)), 0.0)
        gradient *= distributed.world_size()
        total = gradient.T @ vectors[span]
        total[span] += gradient @ vectors
        return value, total

    return with_gradient(loss, vectors)


def _neighborhoods(vectors: Tensor, span: slice, k: int, epsilon: float) -> Neighborhoods[RowBlocks]:
    similarity = vectors[span] @ vectors.T
    similarity.diagonal(span.start).fill_(1.0)
    near, close = (
        RowBlocks(neighbors.to(similarity.dtype), is_binary=True) for neighbors in are_neighbors(similarity, k, epsilon)
    )
    return Neighborhoods(near, close)
