"""Whether what is computed on a GPU can be computed by a Triton kernel."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor


def has_kernels(values: Tensor) -> bool:
    """Whether there are Triton kernels for the device and the type of some values: float32 on a GPU.

    Example:
        >>> has_kernels(torch.zeros(1))
        False
    """
    return values.is_cuda and values.dtype == torch.float32 and find_spec("triton") is not None
