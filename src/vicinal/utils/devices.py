"""Devices: how precise matrix products are, whether a Triton kernel is used, and how much is computed at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vicinal.utils.errors import one_line

CPU_ELEMENTS = 2**20
"""4 MB in float32, which fits into a processor's cache."""
MIN_TILE_ROWS = 128
"""Matrix products with fewer rows take longer per row."""
MAX_THREADS = 4
"""A tile grows with up to this number of CPU threads, since the others wait for the serial work of each tile."""
MIN_GPU_ELEMENTS, MAX_GPU_ELEMENTS = 2**22, 2**26
BYTES_PER_ELEMENT = 2**10
"""GPU memory per element: a float32 tile takes 1/256 of it, and its intermediate results a few times as much."""
MAX_POSITIVES = 32
"""Positives held in registers at a time; with more, each part reads the row again."""
MAX_PAIRS = 2048
"""Pairs of a positive and another number of its row that a program computes at a time."""

ROUNDING = ("tf32", "bf16")  # settings of torch; it has others, "ieee" and "none", which are exact

_Settings = tuple[str, dict[str, str]]  # of the older kind, and of the newer one for each kind of device
_lock = threading.Lock()
_num_open = 0  # blocks, of all threads, that need IEEE precision
_before: _Settings = ("highest", {})  # as it was before the first of these blocks
_AGREES: dict[tuple[str, torch.device], bool] = {}


def has_kernels(values: Tensor) -> bool:
    """Whether there are Triton kernels for the device and the type of some values: float32 on a GPU."""
    return values.is_cuda and values.dtype == torch.float32 and find_spec("triton") is not None


def uses_kernel(values: Tensor, name: str, agrees: Callable[[torch.device], bool]) -> bool:
    """Whether a kernel is used for some values: if there are kernels, and it agrees with PyTorch on their device.

    On the first use on a device, `agrees` compiles the kernel and compares its results with those of PyTorch on a small
    example. If it does not compile or differs, PyTorch's operations are used from then on, with one warning.
    """
    if not has_kernels(values):
        return False
    key = name, values.device
    if key not in _AGREES:
        _AGREES[key] = _check(name, values.device, agrees)
    return _AGREES[key]


def _check(name: str, device: torch.device, agrees: Callable[[torch.device], bool]) -> bool:
    try:
        reason = "" if agrees(device) else "its results differ from PyTorch's"
    except Exception as error:  # compilers raise many types
        reason = one_line(error, 200)
    if reason:
        warnings.warn(f"the kernel {name} is not used on {device}: {reason}; PyTorch is slower", stacklevel=4)
    return not reason


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


def tile_elements(device: torch.device) -> int:
    """The number of elements of a tile, a power of two.

    A tile of a CPU stays in its cache. A GPU has no cache of such a size and must be kept busy: the larger a tile, the
    fewer kernels are launched.
    """
    return CPU_ELEMENTS if device.type == "cpu" else _gpu_elements(device)


def default_tile_rows(columns: int, device: torch.device) -> int:
    """The number of rows with which a tile has the size for its device, or more where matrix products need more."""
    is_divided = device.type == "cpu" and not torch.compiler.is_compiling()  # which cannot ask for the number
    threads = min(torch.get_num_threads(), MAX_THREADS) if is_divided else 1
    return max(MIN_TILE_ROWS, threads * tile_elements(device) // max(columns, 1))


def _gpu_elements(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return MIN_GPU_ELEMENTS
    elements = torch.cuda.get_device_properties(device).total_memory // BYTES_PER_ELEMENT
    return int(min(max(MIN_GPU_ELEMENTS, 2 ** (elements.bit_length() - 1)), MAX_GPU_ELEMENTS))


def ieee_products(device: torch.device) -> AbstractContextManager[None]:
    """A context in which float32 matrix products on a device have IEEE precision.

    `torch.set_float32_matmul_precision("high")` and `torch.backends.cuda.matmul.allow_tf32 = True` let a GPU round the
    factors of float32 products to 11 bits (TF32); "medium" lets some CPUs round them to 8 bits (bfloat16). That suits
    the layers of networks, but not similarities: rounding may change which of two gallery rows is nearer, and
    differently in blocks of other sizes. Outside of the context these settings stay as they are.

    The settings are those of all threads: the first block that needs it sets them, and they come back at the end of the
    last one, in whatever order threads enter and leave. A backward pass by autograd runs after the block, with the
    settings at that time. Code that torch.compile compiles keeps the settings that it is compiled with.
    """
    return nullcontext() if torch.compiler.is_compiling() else _ieee(device)


def _rounds(device: torch.device) -> bool:
    settings = _settings(device.type)
    if hasattr(settings, "fp32_precision"):
        return settings.fp32_precision in ROUNDING
    return torch.get_float32_matmul_precision() != "highest"  # torch before 2.9


def _settings(kind: str) -> Any:
    """The settings of torch for matrix products on a kind of device."""
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
