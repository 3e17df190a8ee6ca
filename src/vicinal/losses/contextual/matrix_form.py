"""Contextual similarity and its gradient as products of matrices, which are sparse where neighborhoods are small.

Neighborhoods are usually small. Contextual similarity is then 0 for almost all pairs. The complements of
neighborhoods add `n - |N_i| - |N_j|` to the size of the intersection, and a constant per row to the gradient. So no
matrix has more than a few entries per row, and only the search for neighbors computes all pairs.

In the notation of the paper (Liao et al., ICML 2023, Eq. (1) to (5)), with N and N' the neighborhoods of k and k/2 as
matrices of ones, R = N' * N'^T, c and r the row sums of N and R, m = n - c:

    P  = N N^T                  W1 = N * A,  A_ij = (P_ij / c_i + (n - c_i - c_j + P_ij) / m_i) / 2
    W2 = R W1 / r               E  = (W2 + W2^T) / 2 - Y,  0 on the diagonal       L = sum E^2 / n^2

    dL/dW2 = G = (E + E^T) / n^2     dL/dW1 = Q = R (G / r)     dL/dR_ip = ((G W1^T)_ip - (G * W2) 1_i) / r_i
    dL/dN  = Q * A + (C + C^T) N - (rows of (B + B^T)) 1^T      with C = N * Q / 2 (1/c + 1/m),  B = N * Q / (2 m)
    dL/dN' = N'^T * (dL/dR + dL/dR^T)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from vicinal.losses.contextual.variants import Variant


class Matrix(Protocol):
    """A matrix [n, n] of a float type. Vectors are tensors [n] of the same type."""

    is_sparse: ClassVar[bool]  # whether it holds only its entries that are not 0

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


M = TypeVar("M", bound=Matrix)


@dataclass(frozen=True)
class Neighborhoods(Generic[M]):
    """Neighborhoods as matrices [n, n] with a one for each neighbor."""

    near: M  # N, for each row its k nearest, including itself, and those as near up to epsilon
    close: M  # N', the same with k // 2


@dataclass(frozen=True)
class Gradient(Generic[M]):
    """dL/dN + dL/dN' as `entries + grad_common @ N + grad_rows 1^T`, which are sparse if the neighborhoods are."""

    entries: M
    grad_common: M | None
    grad_rows: Tensor | None


class ContextualSimilarity(Generic[M]):
    """Contextual similarity with products of memberships, and its gradient with respect to them."""

    def __init__(self, neighborhoods: Neighborhoods[M], variant: Variant) -> None:
        self.near, self.close = neighborhoods.near, neighborhoods.close
        self.variant = variant
        self.sizes = self.near.row_sums()
        self.n = len(self.sizes)
        self.all_near = (self.sizes == self.n).to(self.sizes.dtype)  # rows without non-neighbors have all in common
        self.num_far = (self.n - self.sizes).clamp_min(1)
        # Two rows have in common as many non-neighbors as neighbors, plus one of these numbers for each row.
        self.far_minus_near = self.n - self.sizes + self.all_near, -self.sizes
        # A dense product is used as a whole at least twice. Of a sparse one, each use needs other entries.
        self.common = self.near @ self.near.T if variant.intersection and not self.near.is_sparse else None  # P
        self.w1 = self._intersection() if variant.intersection else self.near
        if variant.expansion:
            self.reciprocal = self.close * self.close.T
            self.num_reciprocal = self.reciprocal.row_sums()
            self.w2 = (self.reciprocal @ self.w1).divided(self.num_reciprocal)

    def w(self) -> M:
        """Eq. (4), or w1 without expansion: a new matrix."""
        return (self.w2 + self.w2.T if self.variant.expansion else self.w1 + self.w1).half()

    def gradient(self, grad_w: M) -> Gradient[M]:
        """The gradient with respect to the neighborhoods; can be called once. With expansion `grad_w` is symmetric."""
        if not self.variant.expansion:
            return self._grad_near(grad_w)
        scaled = grad_w.scaled(1 / self.num_reciprocal)
        grad_close = self._grad_close(grad_w, scaled)
        grad_w1 = self.reciprocal @ scaled  # Q
        del self.close, self.w1, self.w2, self.reciprocal, scaled, grad_w  # dense matrices may be large
        gradient = self._grad_near(grad_w1)
        return replace(gradient, entries=gradient.entries + grad_close)

    def _grad_near(self, grad_w1: M) -> Gradient[M]:
        """dL/dN."""
        if not self.variant.intersection:
            return Gradient(grad_w1, None, None)
        entries = self._times_agreement(grad_w1)
        grad_agreement = self.near * grad_w1
        grad_common = _symmetric(grad_agreement.scaled(self._weight_of_common))
        return Gradient(entries, grad_common, self._grad_rows(grad_agreement))

    def _intersection(self) -> M:
        """N * A, with quotients of integers, so that it is exactly 1 where all are in common."""
        common = self._times_common(self.near)
        fraction = common.divided(self.sizes)
        if not self.variant.complement:
            return fraction
        fraction_far = common.plus_sum(*self.far_minus_near).divided(self.num_far)
        return self.near * (fraction + fraction_far).half()

    def _times_common(self, weights: M) -> M:
        """The product weights * P, with the number of common neighbors."""
        return weights.at_product(self.near, self.near.T) if self.common is None else weights * self.common

    @property
    def _weight_of_common(self) -> Tensor:
        """The derivative of a row's agreement A with respect to the number of common neighbors."""
        if not self.variant.complement:
            return 1 / self.sizes
        return (1 / self.sizes + 1 / self.num_far) / 2

    def _times_agreement(self, weights: M) -> M:
        """The product weights * A; A is computed only at the entries of `weights`."""
        total = self._times_common(weights).scaled(self._weight_of_common)
        if not self.variant.complement:
            return total
        rest = weights.times_sum(*self.far_minus_near)
        return total + rest.scaled(0.5 / self.num_far)

    def _grad_rows(self, grad_agreement: M) -> Tensor:
        """The part of the gradient that is constant in each row of N: from the complements, and from the sizes."""
        grad_rows = torch.zeros_like(self.sizes)
        if self.variant.complement:
            grad_rows -= _symmetric(grad_agreement.scaled(0.5 / self.num_far)).row_sums()
        if not self.variant.detach_sizes:
            grad_rows += self._grad_sizes(grad_agreement)
        return grad_rows

    def _grad_sizes(self, grad_agreement: M) -> Tensor:
        """The gradient through the sizes in the denominators."""
        common = self._times_common(grad_agreement).row_sums()
        if not self.variant.complement:
            return -common / self.sizes**2
        far = common + grad_agreement.times_sum(*self.far_minus_near).row_sums()
        return -common / (2 * self.sizes**2) + (1 - self.all_near) * far / (2 * self.num_far**2)

    def _grad_close(self, grad_w: M, scaled: M) -> M:
        """dL/dN', through both factors of each entry of R."""
        reverse = self.close.T
        grad_close = reverse.at_symmetric_product(scaled, self.w1.T)
        if self.variant.detach_expansion_size:
            return grad_close
        grad_size = (grad_w * self.w2).row_sums() / self.num_reciprocal
        return grad_close - reverse.times_sum(grad_size, grad_size)


def _symmetric(matrix: M) -> M:
    return matrix + matrix.T
