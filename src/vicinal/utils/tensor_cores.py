"""Products of matrices of 16-bit numbers that are added up in float32, as the tensor cores of a GPU do."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_TORCH = (2, 10)
"""Adds products of 16-bit numbers to a float32 matrix."""


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of an NVIDIA GPU for which this version of torch has such products; (0, 0) without.

    Example:
        >>> capability(torch.device("cpu"))
        (0, 0)
    """
    if device.type != "cuda" or torch.version.hip or _torch_version() < MIN_TORCH:
        return 0, 0
    return torch.cuda.get_device_capability(device)


def product(a: Tensor, b: Tensor, total: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """The product of two matrices in float32.

    On a CPU the factors are multiplied as float32, which gives the same products of numbers.

    Args:
        a: float16 or bfloat16 [rows, m].
        b: of the same type [m, columns].
        total: float32 [rows, columns], to which the product is added in place.
        out: float32 [rows, columns], in which the product is written, if there is no total.

    Example:
        >>> product(torch.ones(2, 3).half(), torch.ones(3, 1).half())
        tensor([[3.],
                [3.]])
    """
    if a.device.type == "cpu":
        a, b = a.float(), b.float()
        return torch.mm(a, b, out=out) if total is None else total.addmm_(a, b)
    if total is not None:
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    return torch.mm(a, b, out_dtype=torch.float32, out=out)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(number) for number in torch.__version__.split(".")[:2])
