"""Dense matrices, and the contextual loss by them: for neighborhoods of any size, for all variants, and for GPUs."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import Self

from vicinal.losses.contextual.matrix_form import ContextualSimilarity, Neighborhoods
from vicinal.losses.contextual.variants import Variant, are_neighbors, contextual_similarity


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


D = TypeVar("D", bound=DenseMatrix)


def dense_loss(
    similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, variant: Variant, first: int = 0
) -> Tensor:
    """Eq. (5), the mean over all n^2 pairs of `(y - w)^2`, where i = j contributes 0; differentiable once.

    Args:
        similarity: float [rows, n]; that of a sample to itself is overwritten. All n rows; without the matrix form also
            those of this process, of equally many on each: then the mean over processes is the loss.
        positive: bool [rows, n], the y.
        known: bool [rows, n], pairs whose y is known; others contribute 0. None: all, and y is symmetric.
        k: number of neighbors of a sample, including itself.
        variant: definition of contextual similarity.
        first: number of the first row.
    """
    similarity.diagonal(first).fill_(1.0)
    if variant.correct_gradient:
        negative = ~positive if known is None else known & ~positive
        similarity = _CorrectGradient.apply(similarity, positive, negative)
    if variant.has_matrix_form:
        return _DenseLoss.apply(similarity, positive, known, k, variant)
    rows, n = similarity.shape
    w = contextual_similarity(similarity, k, variant, slice(first, first + rows))
    return error_of(w, positive, known, first).square().sum() / (rows * n)


def error_of(w: Tensor, positive: Tensor, known: Tensor | None, first: int = 0) -> Tensor:
    """The difference w - y of some rows from `first` on, [rows, n]; 0 where it does not count."""
    error = w - positive.to(w.dtype)
    error.diagonal(first).fill_(0.0)
    return error if known is None else error.masked_fill_(~known, 0.0)


class _DenseLoss(torch.autograd.Function):
    """Computes the gradient with the value, from the same matrices."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, positive: Tensor, known: Tensor | None, k: int, variant: Variant
    ) -> Tensor:
        near, close = (
            DenseMatrix(neighbors.to(similarity.dtype)) for neighbors in are_neighbors(similarity, k, variant.epsilon)
        )
        contextual = ContextualSimilarity(Neighborhoods(near, close), variant)
        error = DenseMatrix(error_of(contextual.w().values, positive, known))
        value = error.sum_of_squares() / len(positive) ** 2
        if ctx.needs_input_grad[0]:
            grad_w = (error + error.T).half() if variant.expansion and known is not None else error
            gradient = gradient_of(contextual, grad_w).values
            ctx.save_for_backward(gradient.mul_(4 * variant.alpha / len(positive) ** 2))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None, None


def gradient_of(contextual: ContextualSimilarity[D], grad_w: D) -> D:
    """The gradient with respect to the similarities, without its factor."""
    gradient = contextual.gradient(grad_w)
    total = gradient.entries
    if gradient.grad_common is not None and gradient.grad_rows is not None:
        total.add_product_(gradient.grad_common, contextual.near)
        total.values.add_(total.own(gradient.grad_rows))
    return total


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
        wrong = (positive & (upstream > 0)) | (negative & (upstream < 0))
        return upstream.masked_fill(wrong, 0.0), None, None
