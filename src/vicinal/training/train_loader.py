"""Loading the batches of a run: by processes that stay from epoch to epoch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from vicinal.data import ImageDataset
from vicinal.data.batches.image_dataset import Batch
from vicinal.data.batches.train_batches import LoadedImages, Part, TrainBatches, TrainImages
from vicinal.training.interrupt import start_worker


class TrainLoader:
    """Loads the batches of one epoch after the other.

    Processes hand out pixels as uint8, in parts of at most 128 images, and read two parts each ahead. So they hold
    at most `2 * 128 * num_workers` images in shared memory, whatever the size of a batch is: 0.3 GB with 8 processes
    and 224 x 224 pixels. The batch itself is made in this process. They are started with the first batch.

    Args:
        images: The images, with labels.
        num_workers: Processes that load them; 0: this one does.
        device: Where batches are needed: for a GPU they are in page-locked memory, from which they are copied faster.
        augmentation: "workers" or "device": where images are flipped and their colors changed.
    """

    def __init__(
        self,
        images: ImageDataset,
        num_workers: int,
        device: torch.device,
        augmentation: Literal["workers", "device"] = "workers",
    ) -> None:
        self._parts: list[Part] = []  # of this epoch
        self._loader: DataLoader[LoadedImages] = DataLoader(
            TrainImages(images, augmentation),
            batch_size=None,
            sampler=self._parts,
            num_workers=num_workers,
            worker_init_fn=start_worker,
            pin_memory=device.type == "cuda",
            persistent_workers=num_workers > 0,
        )

    def load(self, batches: TrainBatches, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch from number `start` on."""
        self._parts[:] = batches.parts(start)
        try:
            yield from batches.collate(iter(self._loader), start)
        except BaseException:  # also where the generator is closed: its processes load what nobody takes
            self.close()
            raise

    def close(self) -> None:
        """End the processes, if there are any; the next epoch starts others."""
        workers: Any = self._loader._iterator
        self._loader._iterator = None
        if workers is not None:
            workers._shutdown_workers()  # a traceback would keep them alive
