"""Whole images for training: those of a batch differ in size, and are read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import Literal

import torch
from torch import Tensor

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.batches.train_batches import LoadedImages, Part, TrainBatches


class WholeTrainBatches(TrainBatches):
    """The batches of one epoch of whole images, with the transform for training.

    A part is one image, so that no process holds a batch of them but the one that trains on it. It depends on `seed`
    and the number of the image in the epoch only. The `images` of a batch are a list, uint8 `[channels, height, width]`
    each.

    Args:
        dataset: The images, with labels; its transform has `longest`.
        batches: The rows of each batch.
        seed: The seeds of the random transforms.
        augmentation: "workers" or "device", as for `TrainImages`.
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
