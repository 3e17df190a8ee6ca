"""Whole images for training: those of a batch differ in size, and are read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from vicinal.data.images import Batch, ImageDataset, TrainBatches, seeded


class WholeTrainImages(TrainBatches):
    """The whole images of the batches of one epoch, in their order, with the transform for training.

    An item is one image, uint8 `[channels, height, width]`, so that no process holds a batch of them but the one that
    trains on it. An item depends on `seed` and its number only.

    Args:
        dataset: The images, with labels; its transform has `longest`.
        batches: The rows of each batch.
        seed: The seeds of the random transforms.
    """

    def __init__(self, dataset: ImageDataset, batches: Sequence[Sequence[int]], seed: tuple[int, ...]) -> None:
        super().__init__(dataset, batches, seed)
        self.rows = [row for batch in batches for row in batch]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        with seeded(*self.seed, index):
            return self.dataset.load(self.rows[index], self.transform)

    def items(self, start: int) -> range:
        return range(sum(map(len, self.batches[:start])), len(self))

    def collate(self, items: Iterator[Any], start: int) -> Iterator[Batch]:
        """The batches, with the `images` in a list, [channels, height, width] each."""
        for batch in self.batches[start:]:
            rows = torch.tensor(batch)
            # Copied: a process hands images over in shared memory, each of which takes a file descriptor.
            images = [image.clone() for image in islice(items, len(batch))]
            yield {"images": images, "labels": self.labels[rows], "rows": rows}


def train_batches(dataset: ImageDataset, batches: Sequence[Sequence[int]], seed: tuple[int, ...]) -> TrainBatches:
    """The batches of one epoch, of squares or of whole images as the transform of the dataset says."""
    kind = TrainBatches if dataset.transform.longest is None else WholeTrainImages
    return kind(dataset, batches, seed)
