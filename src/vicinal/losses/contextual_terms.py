"""The contextual loss and its gradient as products of matrices, which are sparse where neighbourhoods are small.

A sample's neighbours are few as a rule. Then contextual similarity is 0 for almost all pairs, and right where it is.
What the complements of neighbourhoods add is `n - |N_i| - |N_j|` plus the intersection, and to the gradient a constant
a row. So nothing has more than a few entries a row, and nothing but the search for neighbours looks at all pairs.

In the names of the paper (Liao et al., ICML 2023, Eq. (1) to (5)), with N and N' the neighbourhoods of k and k/2 as
matrices of ones, R = N' * N'^T, c and r the sizes of rows of N and R, m = n - c:

    P  = N N^T                  W1 = N * A,  A_ij = (P_ij / c_i + (n - c_i - c_j + P_ij) / m_i) / 2
    W2 = R W1 / r               E  = (W2 + W2^T) / 2 - Y,  0 on the diagonal       L = sum E^2 / n^2

    dL/dW2 = G = (E + E^T) / n^2     dL/dW1 = Q = R (G / r)     dL/dR_ip = ((G W1^T)_ip - (G * W2) 1_i) / r_i
    dL/dN  = Q * A + (C + C^T) N - (rows of (B + B^T)) 1^T      with C = N * Q / 2 (1/c + 1/m),  B = N * Q / (2 m)
    dL/dN' = N'^T * (dL/dR + dL/dR^T)
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from vicinal.losses.contextual_definition import Definition
from vicinal.losses.matrices import Matrix

M = TypeVar("M", bound=Matrix)


class Neighborhoods(NamedTuple, Generic[M]):
    """Who is near whom, as matrices [n, n] with a one for each neighbour.

    Attributes:
        near: of each row its k nearest, itself included, and those as near but for epsilon.
        close: the same with k // 2.
    """

    near: M
    close: M


class Gradient(NamedTuple, Generic[M]):
    """dL/dN + dL/dN', in parts that are sparse if the neighbourhoods are: `entries + by_common @ N + by_row 1^T`."""

    entries: M
    by_common: M | None
    by_row: Tensor | None


class Similarity(Generic[M]):
    """Contextual similarity, by the product of memberships, and how it depends on them."""

    def __init__(self, found: Neighborhoods[M], of: Definition) -> None:
        self.near, self.close = found
        self.of = of
        self.sizes = self.near.row_sums()
        self.n = len(self.sizes)
        self.no_others = (self.sizes == self.n).to(self.sizes.dtype)  # of no others at all, each shares all
        self.others = (self.n - self.sizes).clamp_min(1)
        # How many samples are in neither of two rows: these two numbers, of either row, and those in both.
        self.less_common = self.n - self.sizes + self.no_others, -self.sizes
        self.shared = self._shared() if of.intersection else self.near  # W1
        if of.expansion:
            self.reciprocal = self.close * self.close.T
            self.reciprocals = self.reciprocal.row_sums()
            self.averaged = (self.reciprocal @ self.shared).divided(self.reciprocals)  # W2

    def w(self) -> M:
        """Eq. (4), or what stands in its place: a new matrix."""
        return (self.averaged + self.averaged.T if self.of.expansion else self.shared + self.shared).half()

    def gradient(self, by_w: M) -> Gradient[M]:
        """What a gradient by w is by the neighbourhoods; of w with expansion it has to be symmetric. Only once."""
        if not self.of.expansion:
            return self._by_near(by_w)
        scaled = by_w.scaled(1 / self.reciprocals)
        by_close = self._by_close(by_w, scaled)
        by_shared = self.reciprocal @ scaled  # Q
        del self.close, self.shared, self.averaged, self.reciprocal, scaled, by_w  # whole matrices may be large
        by_near = self._by_near(by_shared)
        return by_near._replace(entries=by_near.entries + by_close)

    def _by_near(self, by_shared: M) -> Gradient[M]:
        """dL/dN."""
        if not self.of.intersection:
            return Gradient(by_shared, None, None)
        entries = self._agreement(by_shared)
        by_agreement = self.near * by_shared
        by_common = _symmetric(by_agreement.scaled(self._weight_of_common))
        return Gradient(entries, by_common, self._by_size(by_agreement))

    def _shared(self) -> M:
        """N * A, with quotients of whole numbers, so that it is 1 and not nearly 1 where all are shared."""
        common = self.near.at_product(self.near, self.near.T)
        share = common.divided(self.sizes)
        if not self.of.complement:
            return share
        of_others = common.plus_sum(*self.less_common).divided(self.others)
        return self.near * (share + of_others).half()

    @property
    def _weight_of_common(self) -> Tensor:
        """By how much each common neighbour raises the agreement A of a row."""
        if not self.of.complement:
            return 1 / self.sizes
        return (1 / self.sizes + 1 / self.others) / 2

    def _agreement(self, weights: M) -> M:
        """The product weights * A; of A only the entries that weights have are ever made."""
        total = weights.at_product(self.near, self.near.T).scaled(self._weight_of_common)
        if not self.of.complement:
            return total
        rest = weights.times_sum(*self.less_common)
        return total + rest.scaled(0.5 / self.others)

    def _by_size(self, by_agreement: M) -> Tensor:
        """What each row's own entries in N all get alike: from the complements, and from sizes."""
        by_row = torch.zeros_like(self.sizes)
        if self.of.complement:
            by_row -= _symmetric(by_agreement.scaled(0.5 / self.others)).row_sums()
        if not self.of.detach_sizes:
            by_row += self._by_own_size(by_agreement)
        return by_row

    def _by_own_size(self, by_agreement: M) -> Tensor:
        """From the sizes that shares are divided by."""
        common = by_agreement.at_product(self.near, self.near.T).row_sums()
        if not self.of.complement:
            return -common / self.sizes**2
        of_others = common + by_agreement.times_sum(*self.less_common).row_sums()
        return -common / (2 * self.sizes**2) + (1 - self.no_others) * of_others / (2 * self.others**2)

    def _by_close(self, by_w: M, scaled: M) -> M:
        """dL/dN': what R gets at an entry, from each of the two memberships that it is made of."""
        reverse = self.close.T
        by_close = reverse.at_symmetric_product(scaled, self.shared.T)
        if self.of.detach_expansion_size:
            return by_close
        by_size = (by_w * self.averaged).row_sums() / self.reciprocals
        return by_close - reverse.times_sum(by_size, by_size)


def _symmetric(matrix: M) -> M:
    return matrix + matrix.T
