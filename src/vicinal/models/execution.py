"""The execution of networks: device, precision, and training or evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.similarity.embeddings import normalize
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError, one_line

Precision = Literal["auto", "32", "bf16", "16"]
UsedPrecision = Literal["32", "bf16", "16"]

DTYPES: dict[str, torch.dtype] = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


def used_precision(precision: Precision, device: torch.device | str) -> UsedPrecision:
    """The precision on a device: auto is bf16 on a GPU that computes in bfloat16, else 32."""
    if precision != "auto":
        return precision
    return "bf16" if torch.device(device).type == "cuda" and gpu_has_bfloat16() else "32"


def gpu_has_bfloat16() -> bool:
    """Whether this machine has a GPU that computes in bfloat16, and does not emulate it."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def autocast_to(precision: UsedPrecision, device: torch.device) -> torch.autocast:
    """The context in which a network on a device computes in a precision.

    Example:
        >>> with autocast_to("bf16", torch.device("cpu")):
        ...     torch.mm(torch.eye(2), torch.eye(2)).dtype
        torch.bfloat16
    """
    return torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "32")


def check_device(device: object) -> None:
    """Check that a device exists and can compute.

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


def unit_vectors(vectors: Tensor, training: bool) -> Tensor:
    """L2-normalize vectors [n, d]; in training the gradient of a zero vector is bounded, which exports cannot hold."""
    return normalize(vectors) if training else F.normalize(vectors, dim=-1)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
