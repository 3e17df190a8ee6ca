"""Float32 matrix products that do not round their factors, whatever the settings of torch allow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

ROUNDING = ("tf32", "bf16")  # settings of torch; it has others, "ieee" and "none", which are exact

_Settings = tuple[str, dict[str, str]]  # of the older kind, and of the newer one for each kind of device
_lock = threading.Lock()
_num_open = 0  # blocks, of all threads, that need IEEE precision
_before: _Settings = ("highest", {})  # as they were before the first of these


def ieee_products(device: torch.device) -> AbstractContextManager[None]:
    """A context in which float32 matrix products on a device have IEEE precision.

    `torch.set_float32_matmul_precision("high")` and `torch.backends.cuda.matmul.allow_tf32 = True` let a GPU round the
    factors of float32 products to 11 bits (TF32); "medium" lets some CPUs round them to 8 bits (bfloat16). That suits
    the layers of networks, and not similarities: of two rows of a gallery, rounding may change which one is nearer, and
    differently in blocks of other sizes. Outside of the context these settings stay as they are.

    The settings are those of all threads: the first block that needs it sets them, and they come back at the end of the
    last one, in whatever order threads enter and leave. A backward pass by autograd comes after the block, with the
    settings of then. Code that torch.compile compiles keeps the settings that it is compiled with.

    Example:
        >>> torch.set_float32_matmul_precision("medium")
        >>> with ieee_products(torch.device("cpu")):
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'medium'
        >>> torch.set_float32_matmul_precision("highest")
    """
    return nullcontext() if torch.compiler.is_compiling() else _ieee(device)


def _rounds(device: torch.device) -> bool:
    settings = _settings(device.type)
    if hasattr(settings, "fp32_precision"):
        return settings.fp32_precision in ROUNDING
    return torch.get_float32_matmul_precision() != "highest"  # torch before 2.9


def _settings(kind: str) -> Any:
    """What torch holds of matrix products on a kind of device."""
    return torch.backends.cuda.matmul if kind == "cuda" else getattr(torch.backends.mkldnn, "matmul", None)


@contextmanager
def _ieee(device: torch.device) -> Iterator[None]:
    global _num_open, _before
    with _lock:
        is_counted = _num_open > 0 or _rounds(device)
        if is_counted and _num_open == 0:
            _before = _forbid_rounding()
        _num_open += is_counted
    try:
        yield
    finally:
        with _lock:
            _num_open -= is_counted
            if is_counted and _num_open == 0:
                _restore(*_before)


def _forbid_rounding() -> _Settings:
    """Set IEEE precision, and return the settings of before."""
    # Settings of the older kind overwrite those of the newer one, and torch refuses to read them where they disagree.
    older = _older_setting()
    newer = {kind: _settings(kind).fp32_precision for kind in ("cuda", "cpu") if _has_newer(kind)}
    torch.set_float32_matmul_precision("highest")
    return older, newer


def _restore(older: str, newer: dict[str, str]) -> None:
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
