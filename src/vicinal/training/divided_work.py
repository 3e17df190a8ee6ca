"""Embedding and checking images, which the processes of a run divide among themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vicinal.data import ImageDataset
from vicinal.data.batches import image_dataset
from vicinal.data.batches.train_batches import PART_SIZE
from vicinal.models.embedder import check_embeddings
from vicinal.models.execution import Precision, used_precision
from vicinal.training.processes import start_worker
from vicinal.utils import distributed
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


class BatchEmbedder(Protocol):
    """An embedder of batches, exported or not."""

    @property
    def dim(self) -> int: ...

    @property
    def device(self) -> torch.device | str: ...

    @property
    def is_thread_safe(self) -> bool: ...

    def embedding_function(self, precision: Precision = ...) -> AbstractContextManager[Callable[[Tensor], Floats]]: ...


def divided_rows(length: int, batch_size: int, num_processes: int | None = None) -> list[range]:
    """The rows of each process: whole batches in their order, as evenly as that allows.

    The batches are those of one process, so that an embedding does not depend on the number of processes, which is that
    of `torch.distributed` unless it is given.

    Example:
        >>> divided_rows(10, batch_size=2, num_processes=2)
        [range(0, 4), range(4, 10)]
    """
    number = distributed.world_size() if num_processes is None else num_processes
    bounds = np.linspace(0, -(-length // batch_size), number + 1).round().astype(int) * batch_size
    return [range(min(first, length), min(last, length)) for first, last in pairwise(bounds.tolist())]


def embed_rows(
    embedder: BatchEmbedder,
    images: ImageDataset,
    rows: range,
    *,
    batch_size: int,
    num_workers: int,
    precision: Precision,
    errors: dict[int, InputError] | None = None,
) -> Floats:
    """Embed some consecutive images without a progress bar, float32 [rows, dim]; arguments as `Embedder.embed`.

    Images that cannot be read are skipped if there are `errors`, to which theirs are added by their rows.
    """
    batches, device = (
        image_dataset.PixelBatches(images, image_dataset.row_batches(images, rows, batch_size)),
        embedder.device,
    )
    with embedder.embedding_function(precision) as embed_batch:
        workers = _workers(batches, num_workers)
        mapped = image_dataset.map_pixels(embed_batch, batches, device, workers, embedder.is_thread_safe, start_worker)
        parts = list(
            map(image_dataset.all_readable, mapped) if errors is None else image_dataset.skip_unreadable(mapped, errors)
        )
    vectors = np.concatenate([np.empty((0, embedder.dim), np.float32), *parts])
    check_embeddings(vectors, used_precision(precision, device), rows.start)
    return vectors


def _load(
    batches: image_dataset.PixelBatches, device: torch.device, num_workers: int
) -> Iterator[image_dataset.Pixels]:
    return image_dataset.load_pixels(batches, device, _workers(batches, num_workers), start_worker)


def _workers(batches: image_dataset.PixelBatches, num_workers: int) -> int:
    return min(num_workers, len(batches)) if len(batches) > 1 else 0


def find_unreadable(images: ImageDataset) -> dict[int, InputError]:
    """Find the images that cannot be read, before it is decided which of them are a batch.

    All are decoded once, a part of them by each process.

    Returns:
        Their errors by their rows, the same on all processes.
    """
    own = images.unreadable(divided_rows(len(images), PART_SIZE)[distributed.rank()])
    return {row: error for part in distributed.all_gather_objects(own) for row, error in part.items()}


def embed_own_part(length: int, batch_size: int, embed: Callable[[range], Floats]) -> tuple[range, Floats]:
    """Embed this process's part of the images in as many batches as the other processes embed theirs.

    Sharded weights are gathered for every batch, in which all processes take part: one with a batch less than others
    embeds an image for nothing.

    Args:
        length: number of images, n.
        batch_size: images per batch.
        embed: function of the rows of a part that returns their embeddings, float32 [rows, dim].

    Returns:
        The rows of the part, and their embeddings.
    """
    parts = divided_rows(length, batch_size)
    rows = parts[distributed.rank()]
    vectors = embed(rows)
    if -(-len(rows) // batch_size) < -(-max(map(len, parts)) // batch_size):
        embed(range(1))
    return rows, vectors


def embed_divided(length: int, batch_size: int, embed: Callable[[range], Floats]) -> Floats:
    """Embed images in parts, one per process, and gather them on all processes.

    Arguments are those of :func:`embed_own_part`.

    Returns:
        float32 [n, dim].
    """
    _, own = embed_own_part(length, batch_size, embed)
    lengths = [len(part) for part in divided_rows(length, batch_size)]
    return distributed.all_gather_parts(torch.from_numpy(own), lengths).numpy()
