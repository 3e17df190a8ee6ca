"""Embedding batches of pixels by a model and the steps after it, wherever the images were read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vicinal.data.images.transforms import ImageTransform
from vicinal.export.exported_embedder import ExportedEmbedder
from vicinal.models.execution import usable_device
from vicinal.utils.arrays import Floats

if TYPE_CHECKING:
    from vicinal.data.images.image_ops import Normalize
    from vicinal.models import Embedder
    from vicinal.workflows.embedding_reader import EmbeddingReader


@dataclass(frozen=True)
class BatchEmbedder:
    """Embeds batches of pixels by a model and the steps after it, as :class:`EmbeddingReader` embeds a table.

    The model is moved to its device with the first batch.

    Args:
        model: The model.
        reader: The options, and the steps after the model.
        num_images: How many images it will embed, by which the engine is chosen.

    Raises:
        InputError: The options do not fit the model.

    Example:
        >>> import torch
        >>> from vicinal.models import Embedder
        >>> from vicinal.workflows import EmbeddingReader
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32))
        >>> BatchEmbedder(model, EmbeddingReader())(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        (2, 8)
    """

    model: Embedder | ExportedEmbedder
    reader: EmbeddingReader
    num_images: int = 0

    def __post_init__(self) -> None:
        if self.reader.scales is not None and not isinstance(self.model, ExportedEmbedder):
            from vicinal.models.multi_scale import check_scales  # loads timm

            check_scales(self.model, self.reader.scales, self.reader.max_size)

    @cached_property
    def transform(self) -> ImageTransform:
        """The transform of the images."""
        return self.reader.transform_for(self.model)

    @property
    def batch_size(self) -> int:
        """The number of images of a batch; one if they are whole, since their sizes differ."""
        return self.reader.batch_size if self.transform.longest is None else 1

    @cached_property
    def device(self) -> str:
        """The device of the model, to which it is moved."""
        device = usable_device(self.reader.device)
        if not isinstance(self.model, ExportedEmbedder):
            self.model.to(device)
        return "cpu" if isinstance(self.model, ExportedEmbedder) else device

    @cached_property
    def engine(self) -> Embedder | ExportedEmbedder:
        """The model that embeds the batches, or its export for another engine."""
        return self.reader.with_engine(self.model, self.num_images)

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may embed at once."""
        return self.reader.scales is None and self.engine.is_thread_safe

    @cached_property
    def _normalize(self) -> Normalize:
        from vicinal.data.images.image_ops import Normalize  # loads torchvision

        return Normalize(self.transform)

    def __call__(self, pixels: Tensor) -> Floats:
        """Embed a batch.

        Args:
            pixels: uint8 [b, channels, height, width], as of :class:`~vicinal.data.batches.image_dataset.PixelBatches`.

        Returns:
            float32 [b, dim]; [0, 0] for an empty batch.

        Raises:
            InputError: An embedding is not finite.
        """
        if not len(pixels):
            return np.empty((0, 0), np.float32)
        pixels, engine = pixels.to(self.device, non_blocking=True), self.engine
        precision, scales = self.reader.used_precision, self.reader.scales
        if isinstance(engine, ExportedEmbedder):
            vectors = engine.embed_batch(pixels)
        elif scales is None:
            vectors = engine.embed(self._normalize(pixels), len(pixels), precision=precision, progress=False)
        else:
            from vicinal.models.multi_scale import embed_multi_scale

            vectors = embed_multi_scale(
                engine, self._normalize(pixels), scales, batch_size=len(pixels), precision=precision, progress=False
            )
        return self.reader.postprocessing.apply(vectors)
