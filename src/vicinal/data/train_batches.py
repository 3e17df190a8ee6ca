"""The batches of an epoch of training, loaded in parts that any process may load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vicinal.data.image_ops import without_normalization
from vicinal.data.images import Batch, ImageDataset, load_pixels, seeded

PART_SIZE = 128
"""Images that a process loads at a time. All processes load a larger batch together, and what they read ahead does not
grow with it."""


class Part(NamedTuple):
    """Images that a process loads together.

    Attributes:
        rows: Their rows.
        seed: The seeds of their random transforms.
    """

    rows: Sequence[int]
    seed: tuple[int, ...]


class TrainImages(Dataset[Tensor]):
    """Images with the transform for training. The item of a :class:`Part` depends on the part only.

    Args:
        dataset: The images.

    An item is uint8 `[rows, channels, height, width]`, pixels that the embedder normalizes.
    """

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset
        self.transform = without_normalization(dataset.transform.train())

    def __getitem__(self, part: Part) -> Tensor:
        with seeded(*part.seed):
            return load_pixels(self.dataset, part.rows, self.transform)


class TrainBatches(Dataset[Batch]):
    """The batches of one epoch with the transform for training; item `i` is batch `i`.

    An item depends on `seed` and `i` only, not on the process that loads it or on other items. So a run can be resumed
    in the middle of an epoch, and any number of workers gives the same batches. The training loop has them loaded part
    by part: `parts` are the items of a `TrainImages`, and `collate` makes batches of what was loaded.

    Args:
        dataset: The images, with labels.
        batches: The rows of each batch, as a batch sampler yields them.
        seed: The seeds of the random transforms, such as those of run, epoch and process.

    An item is a dictionary of `images` uint8 `[b, channels, size, size]`, pixels that the embedder normalizes, `labels`
    int64 `[b]`, `rows` int64 `[b]`. For whole images of differing sizes see ``vicinal.data.whole_images``.
    """

    def __init__(self, dataset: ImageDataset, batches: Sequence[Sequence[int]], seed: tuple[int, ...]) -> None:
        self.images, self.batches, self.seed = TrainImages(dataset), batches, seed
        self.labels = torch.from_numpy(dataset.table.labels)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        number = range(len(self))[index]
        return next(self.collate(map(self.images.__getitem__, self._parts_of(number)), number))

    def parts(self, start: int = 0) -> list[Part]:
        """The parts of the batches from number `start` on."""
        return [part for number in range(start, len(self)) for part in self._parts_of(number)]

    def collate(self, loaded: Iterator[Tensor], start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on, made of their parts as they are loaded."""
        for batch in self.batches[start:]:
            rows = torch.tensor(batch)
            yield {"images": self._joined(loaded, len(batch)), "labels": self.labels[rows], "rows": rows}

    def _parts_of(self, number: int) -> list[Part]:
        batch = self.batches[number]
        # The first part has the seed of the batch, which is that of all batches of one part.
        return [
            Part(batch[first : first + PART_SIZE], (*self.seed, number, *([first // PART_SIZE] if first else [])))
            for first in range(0, len(batch), PART_SIZE)
        ]

    def _joined(self, loaded: Iterator[Tensor], number: int) -> Tensor | list[Tensor]:
        """The next images, so many, as one tensor, pinned if the parts are; the memory of each is free once copied."""
        first = next(loaded)
        if len(first) == number:
            return first
        images = torch.empty((number, *first.shape[1:]), dtype=first.dtype, pin_memory=first.is_pinned())
        done = 0
        for part in chain([first], loaded):
            images[done : done + len(part)] = part
            done += len(part)
            if done == number:
                break
        return images
