"""Products of float32 matrices on the tensor cores of a GPU, which multiply in bfloat16 and add in float32.

A float32 number has 24 significant bits and is the sum of three bfloat16 numbers of 8 each, its parts. A matrix of ones
and zeros has one part. Products of parts are exact in float32, so that only their sums round:

- ones and zeros with ones and zeros are one product, which counts exactly up to 2^24;
- ones and zeros with numbers are three products, of no less precision than one in float32;
- numbers with numbers are nine, of which the three smallest are left out: at most about 2^-24 of each term, which is
  what rounding the term to float32 may lose.

On an H100 six of these products take half the time of one in float32, which has no tensor cores. They are used for
large matrices on GPUs where they are that fast, without being asked for; elsewhere, under `torch.compile` (which lacks
them) and in float64 a matrix has one part, itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.utils import tensor_cores

MIN_SIZE = 1536
"""Number of columns from which on splitting costs less than it saves; computed for an H100, not measured."""
FAST_CAPABILITIES = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""GPUs that multiply in bfloat16 at least 12 times as fast as in float32 (A100, H100, B200, B300), not 2 to 4 times."""

Parts = list[Tensor]


def split(matrix: Tensor, is_binary: bool = False) -> Parts:
    """The parts of a matrix, the largest first: bfloat16 and exact, or the matrix itself; see the module.

    Args:
        matrix: float [rows, columns], of absolute values below 3e38; below 1e-33 bits are lost.
        is_binary: whether all entries are 0 or 1.

    Example:
        >>> split(torch.tensor([[0.1, 0.2]]))
        [tensor([[0.1000, 0.2000]])]
    """
    if not uses_bfloat16(matrix):
        return [matrix]
    first = matrix.bfloat16()
    if is_binary:
        return [first]
    rest = matrix - first
    second = rest.bfloat16()
    return [first, second, torch.sub(rest, second, out=torch.empty_like(second))]


def transpose(parts: Parts) -> Parts:
    """The parts of the transpose, which share memory with those of the matrix."""
    return [part.T for part in parts]


def product(a: Parts, b: Parts, total: Tensor | None = None) -> Tensor:
    """The product of two matrices.

    Args:
        a: of a matrix [rows, m].
        b: of a matrix [m, columns].
        total: float [rows, columns], to which the product is added in place.

    Example:
        >>> product(split(torch.ones(2, 3)), split(torch.ones(3, 2)))
        tensor([[3., 3.],
                [3., 3.]])
    """
    for order in (2, 1, 0):  # the smallest are added first
        for i in range(order + 1):
            if i < len(a) and order - i < len(b):
                total = _add_product(total, a[i], b[order - i])
    assert total is not None
    return total


def uses_bfloat16(matrix: Tensor) -> bool:
    """Whether products with a matrix are computed by its parts."""
    is_large = matrix.dtype == torch.float32 and matrix.shape[1] >= MIN_SIZE
    return is_large and not torch.compiler.is_compiling() and has_fast_bfloat16(matrix.device)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether six products in bfloat16 take less time on a device than one in float32."""
    return tensor_cores.capability(device) in FAST_CAPABILITIES


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == torch.bfloat16:
        return tensor_cores.product(a, b, total)
    return a @ b if total is None else total.addmm_(a, b)
