"""Float32 matrix products that do not round their factors, whatever the settings of torch allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

ROUNDING = ("tf32", "bf16")  # settings of torch; it has others, "ieee" and "none", which are exact


def ieee_products(device: torch.device) -> AbstractContextManager[None]:
    """A context in which float32 matrix products on a device have IEEE precision.

    `torch.set_float32_matmul_precision("high")` and `torch.backends.cuda.matmul.allow_tf32 = True` let a GPU round the
    factors of float32 products to 11 bits (TF32); "medium" lets some CPUs round them to 8 bits (bfloat16). That suits
    the layers of networks, and not similarities: of two rows of a gallery, rounding may change which one is nearer, and
    differently in blocks of other sizes. Outside of the context these settings stay as they are.

    A backward pass by autograd comes after the block, with the settings of then. Code that torch.compile compiles keeps
    the settings that it is compiled with.

    Example:
        >>> torch.set_float32_matmul_precision("medium")
        >>> with ieee_products(torch.device("cpu")):
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'medium'
        >>> torch.set_float32_matmul_precision("highest")
    """
    if torch.compiler.is_compiling() or not _rounds(device):
        return nullcontext()
    return _ieee()


def _rounds(device: torch.device) -> bool:
    settings = _settings(device.type)
    if hasattr(settings, "fp32_precision"):
        return settings.fp32_precision in ROUNDING
    return torch.get_float32_matmul_precision() != "highest"  # torch before 2.9


def _settings(kind: str) -> Any:
    """What torch holds of matrix products on a kind of device."""
    return torch.backends.cuda.matmul if kind == "cuda" else getattr(torch.backends.mkldnn, "matmul", None)


@contextmanager
def _ieee() -> Iterator[None]:
    # Settings of the older kind overwrite those of the newer one, and torch refuses to read them where they disagree.
    older = _older_setting()
    newer = {kind: _settings(kind).fp32_precision for kind in ("cuda", "cpu") if _has_newer(kind)}
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        for kind, value in newer.items():
            if _settings(kind).fp32_precision != value:
                _settings(kind).fp32_precision = value


def _older_setting() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # only the newer kind was set
        return "highest"


def _has_newer(kind: str) -> bool:
    return hasattr(_settings(kind), "fp32_precision")
