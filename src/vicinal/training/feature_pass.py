"""One pass of images through a backbone and its pooling, which are not trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vicinal.data import ImageDataset
from vicinal.data.images import Batch, TestBatches, UnreadableImageError
from vicinal.models import Embedder
from vicinal.models.modes import eval_mode
from vicinal.models.precision import Precision, autocast_to, used_precision
from vicinal.utils.console import track

Values = npt.NDArray[np.floating]
OnError = Literal["raise", "skip"]


class SkippingBatches(TestBatches):
    """Batches for testing, in which images that cannot be read are black; `readable`, bool [b], says where some are."""

    def __getitem__(self, index: int) -> Batch:
        try:
            return super().__getitem__(index)
        except UnreadableImageError:
            first = index * self.batch_size
            rows = range(first, min(first + self.batch_size, len(self.dataset)))
            images = [self._image(row) for row in rows]
            readable = torch.tensor([image is not None for image in images])
            transform = self.dataset.transform
            black = torch.zeros((1, transform.channels, transform.size, transform.size), dtype=torch.uint8)
            return {"images": torch.cat([black if image is None else image for image in images]), "readable": readable}

    def _image(self, row: int) -> Tensor | None:
        one = ImageDataset(self.dataset.table.take([row]), self.dataset.transform)
        try:
            images: Tensor = TestBatches(one, 1)[0]["images"]
        except UnreadableImageError:
            return None
        return images


@dataclass(frozen=True)
class FeaturePass:
    """A pass of images through backbone and pooling.

    Args:
        embedder: the model.
        images: the images.
        precision: as in :meth:`Embedder.embed`.
        batch_size: images per forward pass.
        num_workers: processes that read images.
        on_error: raise an error at an image that cannot be read, or give it features that are NaN.
    """

    embedder: Embedder
    images: ImageDataset
    precision: Precision = "auto"
    batch_size: int = 64
    num_workers: int = 0
    on_error: OnError = "raise"

    def batches(self, start: int) -> Iterator[tuple[Values, npt.NDArray[np.bool_]]]:
        """The features of batches of images from row `start` on, float32 [b, d], and which could be read, bool [b]."""
        device = next(self.embedder.backbone.parameters()).device
        images = ImageDataset(self.images.table.take(range(start, len(self.images))), self.images.transform)
        batches = (TestBatches if self.on_error == "raise" else SkippingBatches)(images, self.batch_size)
        loader = DataLoader(batches, batch_size=None, num_workers=self.num_workers, pin_memory=device.type == "cuda")
        autocast = autocast_to(used_precision(self.precision, device), device)
        with eval_mode(self.embedder), torch.inference_mode(), autocast:
            for batch in track(loader, "features", total=len(batches)):
                images = batch["images"]
                readable = batch.get("readable", torch.ones(len(images), dtype=torch.bool))
                features = self.embedder.pooled_features(images.to(device, non_blocking=True)).float().cpu()
                features[~readable] = math.nan
                yield features.numpy(), readable.numpy()
