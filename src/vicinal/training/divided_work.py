"""Embedding and checking images, which the processes of a run divide among themselves."""

from __future__ import annotations

from collections.abc import Callable
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

    The batches are those of one process, so that embeddings do not depend on `num_processes`, by default the world size
    of `torch.distributed`.
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

    If `errors` is given, unreadable images are skipped, and their errors are added to it by row.
    """
    batches = image_dataset.PixelBatches(images, image_dataset.row_batches(images, rows, batch_size))
    device, workers = embedder.device, min(num_workers, len(batches)) if len(batches) > 1 else 0
    with embedder.embedding_function(precision) as embed_batch:
        mapped = image_dataset.map_pixels(embed_batch, batches, device, workers, embedder.is_thread_safe, start_worker)
        parts = list(
            map(image_dataset.all_readable, mapped) if errors is None else image_dataset.skip_unreadable(mapped, errors)
        )
    vectors = np.concatenate([np.empty((0, embedder.dim), np.float32), *parts])
    check_embeddings(vectors, used_precision(precision, device), rows.start)
    return vectors


def find_unreadable(images: ImageDataset) -> dict[int, InputError]:
    """The errors of the images that cannot be read, by their rows; each process decodes a part of the images once."""
    own = images.unreadable(divided_rows(len(images), PART_SIZE)[distributed.rank()])
    return {row: error for part in distributed.all_gather_objects(own) for row, error in part.items()}


def embed_own_part(length: int, batch_size: int, embed: Callable[[range], Floats]) -> tuple[range, Floats]:
    """Embed this process's part of `length` images; return its rows and embeddings, [rows, dim].

    All processes take part in gathering sharded weights for every batch, so a process with one batch fewer embeds an
    image in vain.
    """
    parts = divided_rows(length, batch_size)
    rows = parts[distributed.rank()]
    vectors = embed(rows)
    if -(-len(rows) // batch_size) < -(-max(map(len, parts)) // batch_size):
        embed(range(1))
    return rows, vectors


def embed_divided(length: int, batch_size: int, embed: Callable[[range], Floats]) -> Floats:
    """Embed images in parts, one per process, and gather them on all processes, [n, dim]."""
    _, own = embed_own_part(length, batch_size, embed)
    lengths = [len(part) for part in divided_rows(length, batch_size)]
    return distributed.all_gather_parts(torch.from_numpy(own), lengths).numpy()
