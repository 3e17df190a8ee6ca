"""How many numbers a tile of a large matrix has, by device."""

from __future__ import annotations

import torch

CPU_ELEMENTS = 2**20
"""4 MB in float32, which fits into a processor's cache."""
MIN_GPU_ELEMENTS, MAX_GPU_ELEMENTS = 2**22, 2**26
BYTES_PER_ELEMENT = 2**10
"""Of the memory of a GPU: a tile in float32 takes 1/256 of it, and what is computed from it a few times as much."""


def tile_elements(device: torch.device) -> int:
    """The number of elements of a tile, a power of two.

    A tile of a CPU stays in its cache. A GPU has no cache of such a size and must be kept busy: the larger a tile, the
    fewer kernels are launched.

    Example:
        >>> tile_elements(torch.device("cpu"))
        1048576
    """
    return CPU_ELEMENTS if device.type == "cpu" else _of_gpu(device)


def _of_gpu(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return MIN_GPU_ELEMENTS
    elements = torch.cuda.get_device_properties(device).total_memory // BYTES_PER_ELEMENT
    return int(min(max(MIN_GPU_ELEMENTS, 2 ** (elements.bit_length() - 1)), MAX_GPU_ELEMENTS))
