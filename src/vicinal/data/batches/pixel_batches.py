"""Batches of the pixels of images, and of their embeddings, in which an unreadable image does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vicinal.data.batches.image_dataset import ImageDataset, UnreadableImageError
from vicinal.data.images.image_ops import without_normalization
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError
from vicinal.utils.threads import map_in_order

Pixels: TypeAlias = tuple[Tensor, dict[int, str]]
"""The pixels of readable images, uint8 `[b, channels, height, width]`, and the errors of the others by their rows."""

Values = TypeVar("Values", Tensor, Floats)


@dataclass(frozen=True)
class EmbeddedBatch:
    """The embeddings of consecutive rows of a table.

    Args:
        first_row: The first of these rows.
        vectors: float32 `[b, dim]`, of the readable images.
        errors: The errors of the others by their rows.
        engine: The engine that computed them, see :mod:`vicinal.export.exported_embedder`.
    """

    first_row: int
    vectors: Floats
    errors: dict[int, str] = field(default_factory=dict)
    engine: str = "torch"


class PixelBatches(Dataset[Any]):
    """The pixels of images with the transform for testing, before they are normalized.

    Args:
        dataset: The images.
        batches: The rows of each batch; whole images differ in size, so that their batches must have one image.

    Item `i` is the batch `i`: the pixels of its readable images, and the errors of the others by their rows.
    """

    def __init__(self, dataset: ImageDataset, batches: Sequence[Iterable[int]]) -> None:
        self.dataset, self.batches = dataset, batches
        self._transform = without_normalization(dataset.transform.test())

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Pixels:
        images, errors = {}, {}
        for row in self.batches[index]:
            try:
                images[row] = self.dataset.load(row, self._transform)
            except InputError as error:
                errors[row] = str(error).removeprefix(f"row {row}: ")
        return torch.stack([*images.values()]) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8), errors


def row_batches(dataset: ImageDataset, rows: range, batch_size: int) -> list[range]:
    """Consecutive rows in batches; whole images, which differ in size, are batches of one."""
    size = batch_size if dataset.transform.longest is None else 1
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def load_pixels(
    batches: PixelBatches,
    device: str | torch.device,
    num_workers: int = 0,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[Pixels]:
    """Load batches, by other processes if there are any.

    Args:
        batches: The batches.
        device: Where they are needed: for a GPU they are in page-locked memory.
        num_workers: Processes that read files; 0: this one does.
        worker_init_fn: Called in each process.
    """
    pin_memory = torch.device(device).type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        batches, batch_size=None, num_workers=num_workers, pin_memory=pin_memory, worker_init_fn=worker_init_fn
    )
    yield from loader


def all_readable(batch: tuple[Values, dict[int, str]]) -> Values:
    """The pixels of a batch, or the results for them."""
    pixels, errors = batch
    for row, error in errors.items():
        raise UnreadableImageError(f"row {row}: {error}")
    return pixels


def skip_unreadable(
    batches: Iterable[tuple[Values, dict[int, str]]], errors: dict[int, InputError]
) -> Iterator[Values]:
    """The pixels of the readable images of all batches, or the results for them.

    The errors of the other images are added to `errors` by their rows.
    """
    for pixels, of_batch in batches:
        errors.update({row: UnreadableImageError(f"row {row}: {error}") for row, error in of_batch.items()})
        if len(pixels):
            yield pixels


def without_unreadable(dataset: ImageDataset, batches: Iterable[tuple[Values, dict[int, str]]]) -> Iterator[Values]:
    """The pixels of the readable images of all batches, or the results for them.

    At the end the dataset leaves out the other images.
    """
    errors: dict[int, InputError] = {}
    yield from skip_unreadable(batches, errors)
    dataset.leave_out(errors)


CPU_BATCH = 8
"""Images that a CPU embeds at a time: the activations of more do not stay in its caches."""

Mapped: TypeAlias = tuple[Floats, dict[int, str]]
"""The result of a function for the readable images of a batch, and the errors of the others by their rows."""


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
