"""The contextual loss of a batch on several processes, each of which holds some rows of every dense matrix.

The references of all processes, n in all, are known everywhere. Of each matrix [n, n] a process holds its n / p rows,
so that p processes together hold what one would. A product needs all rows of its second factor, which come in parts of
limited size; neighborhoods, which are ones and zeros, come as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import Self

from vicinal.losses.contextual.dense import DenseMatrix, error_of, gradient_of
from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, are_neighbors, with_gradient
from vicinal.utils import distributed

MAX_GATHERED = 2**26
"""Number of entries of a matrix that a process gets from all others at a time: 256 MB in float32."""


class RowBlocks(DenseMatrix):
    """A matrix [n, n] of which each process holds some rows.

    All processes must call the same operations. The transpose is exchanged only where its own rows are needed.

    Args:
        values: float [rows, n], the rows of this process; None: those of `transposed`, transposed.
        is_binary: whether all entries are 0 or 1.
        transposed: the transpose, in place of values.
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

    def own(self, rows: Tensor) -> Tensor:
        """Of one number per row of the matrix those of the rows of this process, [rows, 1]."""
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
    """All rows of a matrix, some consecutive ones at a time: where they are, and [rows, n]."""
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


def row_block_loss(vectors: Tensor, positive: Tensor, known: Tensor | None, k: int, variant: Variant) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, on all processes together; differentiable once.

    The gradient of a process is that of its rows, times the number of processes, so that the mean over processes is
    that of the whole.

    Args:
        vectors: float [n, d], L2-normalized, the same on all processes.
        positive: bool [rows, n], the y of the rows of this process.
        known: bool [rows, n], pairs whose y is known; others contribute 0. None: all, and y is symmetric.
        k: number of neighbors of a sample, including itself.
        variant: definition of contextual similarity, with steps and products.
    """

    def loss(vectors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        span = distributed.own_rows(len(vectors))
        contextual = ContextualSimilarity(_neighborhoods(vectors, span, k, variant.epsilon), variant)
        error = RowBlocks(error_of(contextual.w().values, positive, known, span.start))
        value = error.sum_of_squares() / len(vectors) ** 2
        if not needs_gradient:
            return value, None
        grad_w = (error + error.T).half() if variant.expansion and known is not None else error
        gradient = gradient_of(contextual, grad_w).values
        gradient.diagonal(span.start).zero_()  # of similarities to oneself, which are 1
        if variant.correct_gradient:
            negative = ~positive if known is None else known & ~positive
            gradient.masked_fill_((positive & (gradient > 0)) | (negative & (gradient < 0)), 0.0)
        gradient *= 4 * variant.alpha / len(vectors) ** 2 * distributed.world_size()
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
