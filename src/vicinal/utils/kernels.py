"""Triton kernels: whether there are some for a tensor, and how much a program of them takes at a time."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

MAX_POSITIVES = 32
"""In registers at a time; of more, each part reads the row again."""
MAX_PAIRS = 2048
"""Pairs of a positive and another number of its row that a program computes at a time."""


def has_kernels(values: Tensor) -> bool:
    """Whether there are Triton kernels for the device and the type of some values: float32 on a GPU.

    Example:
        >>> has_kernels(torch.zeros(1))
        False
    """
    return values.is_cuda and values.dtype == torch.float32 and find_spec("triton") is not None


def block_sizes(num_positives: int, num_columns: int) -> dict[str, int]:
    """The blocks of positives and of columns of a row that a program goes over, `block_p` and `block_q`; powers of two.

    Example:
        >>> block_sizes(3, 60_000)
        {'block_p': 4, 'block_q': 512}
    """
    positives = min(power_of_two(num_positives), MAX_POSITIVES)
    return {"block_p": positives, "block_q": min(power_of_two(num_columns), MAX_PAIRS // positives)}


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
