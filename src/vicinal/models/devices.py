"""Devices that a model can be moved to."""

from __future__ import annotations

from typing import Any

import torch

from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError, one_line


def check_device(device: object) -> None:
    """Check that a device exists and can compute.

    Raises:
        InputError: it is unknown, this machine has none or PyTorch does not support it, or it is the device meta.

    Example:
        >>> check_device("cpu")
        >>> check_device("meta")
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: device meta holds no values; use a device that computes, such as cpu or cuda
    """
    given: Any = device
    try:
        torch.empty(1, device=given)
    except Exception as error:  # backends raise several types of errors
        problem = one_line(error, 150)
        raise InputError(f"device {shown(device)} cannot be used: {problem}; use another, such as cpu") from error
    if torch.device(given).type == "meta":
        raise InputError("device meta holds no values; use a device that computes, such as cpu or cuda")
