"""Embedders of the images of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vicinal.serving.decoding import PillowPreparation, Pixels, Preparation, TorchPreparation
from vicinal.utils.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from vicinal.data.images.transforms import ImageTransform
    from vicinal.export.exported_embedder import ExportedEmbedder
    from vicinal.models.embedder import Embedder


class TorchEmbedder:
    """Embeds by a function of pixels, uint8 [b, channels, height, width], as the transform gives them.

    The fingerprint identifies the model and the steps after it; `local_model` computes local features.
    """

    def __init__(
        self,
        embed_pixels: Callable[[Tensor], Floats],
        transform: ImageTransform,
        name: str,
        fingerprint: str | None,
        local_model: Embedder | ExportedEmbedder,
    ) -> None:
        self.name, self.fingerprint, self.local_model = name, fingerprint, local_model
        self.preparation, self._embed_pixels = TorchPreparation(transform), embed_pixels
        self.dim = self.embed([_some_pixels(self.preparation)]).shape[1]

    def embed(self, images: Sequence[Pixels]) -> Floats:
        """The embeddings of prepared images, float32 [n, dim]; images of one size are embedded together."""
        import torch

        vectors: dict[int, Floats] = {}
        for shape in dict.fromkeys(image.shape for image in images):
            rows = [row for row, image in enumerate(images) if image.shape == shape]
            pixels = torch.from_numpy(np.stack([images[row] for row in rows]))
            vectors |= dict(zip(rows, self._embed_pixels(pixels), strict=True))
        return np.stack([vectors[row] for row in range(len(images))])


def _some_pixels(preparation: Preparation) -> Pixels:
    """The pixels of an image by which a model is tried."""
    from PIL import Image

    return preparation()(Image.new("RGB" if preparation.channels == 3 else "L", (64, 64)))


class PillowEmbedder:
    """Embeds by any object with a method `embed` that takes a list of PIL images."""

    def __init__(self, model: Any) -> None:
        self._model, self.preparation = model, PillowPreparation()
        self.name = type(model).__name__
        self.fingerprint: str | None = None
        self.dim = self.embed([_some_pixels(self.preparation)]).shape[1]

    def embed(self, images: Sequence[Pixels]) -> Floats:
        from PIL import Image

        return np.asarray(self._model.embed([Image.fromarray(image) for image in images]), np.float32)


ImageEmbedder = TorchEmbedder | PillowEmbedder
"""Embeds images that decoding processes have prepared: name, dim, fingerprint (None: unknown), preparation, embed."""


def as_image_embedder(model: Any) -> ImageEmbedder:
    """An `ImageEmbedder` as it is, or for an :class:`~vicinal.Embedder` or an object that embeds PIL images."""
    if hasattr(model, "preparation"):
        return model
    from vicinal.models.embedder import Embedder

    if not isinstance(model, Embedder):
        return PillowEmbedder(model)
    from vicinal.data.images.image_ops import Normalize

    normalize = Normalize(model.transform)

    def embed_pixels(pixels: Tensor) -> Floats:
        return model.embed(normalize(pixels), len(pixels), progress=False)

    return TorchEmbedder(embed_pixels, model.transform, model.config["backbone"], model.fingerprint(), model)
