"""One pass of images through a backbone and its pooling, which are not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.data import ImageDataset
from vicinal.data.batches.map_pixels import map_pixels
from vicinal.data.batches.pixel_batches import PixelBatches, all_readable, row_batches
from vicinal.models import Embedder
from vicinal.models.modes import eval_mode
from vicinal.models.precision import Precision, autocast_to, used_precision
from vicinal.utils.arrays import Floats
from vicinal.utils.console import track

Values = npt.NDArray[np.floating]
OnError = Literal["raise", "skip"]


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
        rows = row_batches(self.images, range(start, len(self.images)), self.batch_size)
        batches, used = PixelBatches(self.images, rows), used_precision(self.precision, device)

        def features(pixels: Tensor) -> Floats:
            with torch.inference_mode(), autocast_to(used, device):
                return self.embedder.pooled_features(pixels.to(device, non_blocking=True)).float().cpu().numpy()

        with eval_mode(self.embedder):
            mapped = map_pixels(features, batches, device, self.num_workers, self.embedder.is_thread_safe)
            for some, batch in zip(rows, track(mapped, "features", total=len(batches)), strict=True):
                found, errors = (all_readable(batch), {}) if self.on_error == "raise" else batch
                readable = np.array([row not in errors for row in some])
                values = np.full((len(some), self.embedder.num_features), np.nan, dtype=np.float32)
                if len(found):
                    values[readable] = found
                yield values, readable
