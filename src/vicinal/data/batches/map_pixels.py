"""A function of the pixels of each batch, such as a network, computed while other batches are read and decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from vicinal.data.batches.pixel_batches import PixelBatches, Pixels, load_pixels
from vicinal.utils.arrays import Floats
from vicinal.utils.threads import map_in_order

CPU_BATCH = 8
"""Images that a CPU embeds at a time: the activations of more do not stay in its caches."""

Mapped: TypeAlias = tuple[Floats, dict[int, str]]
"""What a function gave for the readable images of a batch, and the errors of the others by their rows."""


def map_pixels(
    function: Callable[[Tensor], Floats],
    batches: PixelBatches,
    device: str | torch.device,
    num_workers: int = 0,
    in_threads: bool = True,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[Mapped]:
    """Apply a function to the pixels of each batch, in order.

    The cores of a CPU are divided as follows. Without worker processes, as many threads as PyTorch uses each take a
    batch, decode it, and compute the function with one thread. Decoding and computing overlap, and no core has two
    threads. With worker processes, these decode, and the function is computed here with all threads of PyTorch. With
    another device, and for a single batch, this process decodes if there are no workers.

    Args:
        function: Maps pixels [b, channels, height, width] to an array [b, ...].
        batches: The batches.
        device: Where the function computes.
        num_workers: Processes that read and decode.
        in_threads: Whether several threads may call the function.
        worker_init_fn: Called in each process.
    """

    def mapped(batch: Pixels) -> Mapped:
        pixels, errors = batch
        return (function(pixels) if len(pixels) else np.empty((0, 0), np.float32)), errors

    num_threads = torch.get_num_threads()
    is_divided = in_threads and torch.device(device).type == "cpu" and num_workers == 0
    if not is_divided or min(num_threads, len(batches)) < 2:
        yield from map(mapped, load_pixels(batches, device, num_workers, worker_init_fn))
        return
    try:
        yield from map_in_order(
            lambda index: mapped(batches[index]), range(len(batches)), num_threads, start=_use_one_thread
        )
    finally:
        torch.set_num_threads(num_threads)  # threads that start later take the last number that was set


def _use_one_thread() -> None:
    torch.set_num_threads(1)
