"""Whole images for training: those of a batch differ in size, and are read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from torch import Tensor

from vicinal.data.images import ImageDataset
from vicinal.data.train_batches import Part, TrainBatches


class WholeTrainBatches(TrainBatches):
    """The batches of one epoch of whole images, with the transform for training.

    A part is one image, so that no process holds a batch of them but the one that trains on it. It depends on `seed`
    and the number of the image in the epoch only. The `images` of a batch are a list, uint8 `[channels, height, width]`
    each.

    Args:
        dataset: The images, with labels; its transform has `longest`.
        batches: The rows of each batch.
        seed: The seeds of the random transforms.
    """

    def __init__(self, dataset: ImageDataset, batches: Sequence[Sequence[int]], seed: tuple[int, ...]) -> None:
        super().__init__(dataset, batches, seed)
        self._firsts = list(accumulate(map(len, batches), initial=0))

    def _parts_of(self, number: int) -> list[Part]:
        return [Part([row], (*self.seed, i)) for i, row in enumerate(self.batches[number], self._firsts[number])]

    def _joined(self, loaded: Iterator[Tensor], number: int) -> list[Tensor]:
        # Copied: a process hands images over in shared memory, each of which takes a file descriptor.
        return [image[0].clone() for image in islice(loaded, number)]


def train_batches(dataset: ImageDataset, batches: Sequence[Sequence[int]], seed: tuple[int, ...]) -> TrainBatches:
    """The batches of one epoch, of squares or of whole images as the transform of the dataset says."""
    kind = TrainBatches if dataset.transform.longest is None else WholeTrainBatches
    return kind(dataset, batches, seed)
