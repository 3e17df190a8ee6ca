"""The precision in which networks compute embeddings."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "32", "bf16", "16"]
UsedPrecision = Literal["32", "bf16", "16"]

DTYPES: dict[str, torch.dtype] = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


def used_precision(precision: Precision, device: torch.device | str) -> UsedPrecision:
    """What a precision stands for on a device: auto is bf16 on a GPU that computes in bfloat16, else 32.

    Example:
        >>> used_precision("auto", "cpu"), used_precision("16", "cpu")
        ('32', '16')
    """
    if precision != "auto":
        return precision
    return "bf16" if torch.device(device).type == "cuda" and gpu_has_bfloat16() else "32"


def gpu_has_bfloat16() -> bool:
    """Whether this machine has a GPU that computes in bfloat16, and does not emulate it.

    Example:
        >>> gpu_has_bfloat16() and not torch.cuda.is_available()
        False
    """
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def autocast_to(precision: UsedPrecision, device: torch.device) -> torch.autocast:
    """The context in which a network on a device computes in a precision.

    Example:
        >>> with autocast_to("bf16", torch.device("cpu")):
        ...     torch.mm(torch.eye(2), torch.eye(2)).dtype
        torch.bfloat16
    """
    return torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "32")
