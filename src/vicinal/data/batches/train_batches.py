"""The batches of an epoch of training, loaded in parts that any process may load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vicinal.data.batches.image_dataset import Batch, ImageDataset
from vicinal.data.images.augmentation import create_sampler
from vicinal.data.images.image_ops import without_normalization
from vicinal.utils.seeds import seeded

PART_SIZE = 128
"""Images that a process loads at a time. All processes load a larger batch together, and what they read ahead does not
grow with it."""


class Part(NamedTuple):
    """The rows of images that a process loads together, and the seeds of their random transforms."""

    rows: Sequence[int]
    seed: tuple[int, ...]


class LoadedImages(NamedTuple):
    """Images that a process has loaded: pixels uint8 `[n, channels, height, width]`, which the embedder normalizes.

    `augmentation`, float32 `[n, parameters]`, are the random changes that are left to the device, by
    ``vicinal.data.images.augmentation.augment``.
    """

    pixels: Tensor
    augmentation: Tensor | None


class TrainImages(Dataset[LoadedImages]):
    """Images with the transform for training. The item of a :class:`Part` depends on the part only.

    With the augmentation "workers" all random changes are made here; with "device", flip and color jitter, if the
    transform has them, are only drawn here.
    """

    def __init__(self, dataset: ImageDataset, augmentation: Literal["workers", "device"] = "workers") -> None:
        self.dataset = dataset
        self.sampler = create_sampler(dataset.transform) if augmentation == "device" else None
        transform = dataset.transform
        if self.sampler is not None:
            transform = replace(transform, flip=0.0, color_jitter=0.0)
        self.transform = without_normalization(transform.train())

    def __getitem__(self, part: Part) -> LoadedImages:
        with seeded(*part.seed):
            images, drawn = zip(*map(self._load, part.rows), strict=True)
        return LoadedImages(torch.stack(images), None if self.sampler is None else torch.stack(drawn))

    def _load(self, row: int) -> tuple[Tensor, Tensor | None]:
        return self.dataset.load(row, self.transform), None if self.sampler is None else self.sampler.draw()


class TrainBatches(Dataset[Batch]):
    """The batches of one epoch with the transform for training; item `i` is batch `i`.

    An item depends on `seed` and `i` only, not on the process that loads it or on other items. So a run can be resumed
    in the middle of an epoch, and any number of workers gives the same batches. The training loop has them loaded part
    by part: `parts` are the items of a `TrainImages`, and `collate` makes batches of loaded parts.

    Args:
        dataset: The images, with labels.
        batches: The rows of each batch, as a batch sampler yields them.
        seed: The seeds of the random transforms, such as those of run, epoch and process.
        augmentation: "workers" or "device", as for `TrainImages`.

    An item is a dictionary of `images` uint8 `[b, channels, size, size]`, pixels that the embedder normalizes, `labels`
    int64 `[b]`, `rows` int64 `[b]`, and `augmentation` float32 `[b, parameters]` if something is left to the device.
    For whole images of differing sizes see ``vicinal.data.batches.train_batches``.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        batches: Sequence[Sequence[int]],
        seed: tuple[int, ...],
        augmentation: Literal["workers", "device"] = "workers",
    ) -> None:
        self.images, self.batches, self.seed = TrainImages(dataset, augmentation), batches, seed
        self.labels = torch.from_numpy(dataset.table.labels)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        number = range(len(self))[index]
        return next(self.collate(map(self.images.__getitem__, self._parts_of(number)), number))

    def parts(self, start: int = 0) -> list[Part]:
        """The parts of the batches from number `start` on."""
        return [part for number in range(start, len(self)) for part in self._parts_of(number)]

    def collate(self, loaded: Iterator[LoadedImages], start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on, made of their parts as they are loaded."""
        for batch in self.batches[start:]:
            rows, (images, augmentation) = torch.tensor(batch), self._joined(loaded, len(batch))
            item = {"images": images, "labels": self.labels[rows], "rows": rows}
            yield item if augmentation is None else {**item, "augmentation": augmentation}

    def _parts_of(self, number: int) -> list[Part]:
        batch = self.batches[number]
        # The first part has the seed of the batch, which is that of all batches of one part.
        return [
            Part(batch[first : first + PART_SIZE], (*self.seed, number, *([first // PART_SIZE] if first else [])))
            for first in range(0, len(batch), PART_SIZE)
        ]

    def _joined(self, loaded: Iterator[LoadedImages], number: int) -> tuple[Tensor | list[Tensor], Tensor | None]:
        """The next `number` images as one tensor, pinned if the parts are; the memory of each is free once copied."""
        first = next(loaded)
        if len(first.pixels) == number:
            return first
        pixels, augmentation = (None if each is None else _empty_like(each, number) for each in first)
        assert pixels is not None
        done = 0
        for part in chain([first], loaded):
            rows = slice(done, done + len(part.pixels))
            pixels[rows] = part.pixels
            if augmentation is not None and part.augmentation is not None:
                augmentation[rows] = part.augmentation
            done = rows.stop
            if done == number:
                break
        return pixels, augmentation


def _empty_like(part: Tensor, number: int) -> Tensor:
    shape = (number, *part.shape[1:])
    return torch.empty(shape, dtype=part.dtype, device=part.device, pin_memory=part.is_pinned())


class WholeTrainBatches(TrainBatches):
    """The batches of one epoch of whole images, with the transform for training.

    A part is one image, so that no process holds a batch of them but the one that trains on it. It depends on `seed`
    and the number of the image in the epoch only. The `images` of a batch are a list, uint8 `[channels, height, width]`
    each.
    """

    @cached_property
    def _firsts(self) -> list[int]:
        """The number in the epoch of the first image of each batch."""
        return list(accumulate(map(len, self.batches), initial=0))

    def _parts_of(self, number: int) -> list[Part]:
        return [Part([row], (*self.seed, i)) for i, row in enumerate(self.batches[number], self._firsts[number])]

    def _joined(self, loaded: Iterator[LoadedImages], number: int) -> tuple[list[Tensor], Tensor | None]:
        images, drawn = [], []
        for pixels, augmentation in islice(loaded, number):
            # Copied: a process hands images over in shared memory, each of which takes a file descriptor.
            images.append(pixels[0].clone())
            drawn += [] if augmentation is None else [augmentation.clone()]
        return images, torch.cat(drawn) if drawn else None


def train_batches(
    dataset: ImageDataset,
    batches: Sequence[Sequence[int]],
    seed: tuple[int, ...],
    augmentation: Literal["workers", "device"] = "workers",
) -> TrainBatches:
    """The batches of one epoch, of squares or of whole images as the transform of the dataset says."""
    kind = TrainBatches if dataset.transform.longest is None else WholeTrainBatches
    return kind(dataset, batches, seed, augmentation)
