"""Embedders of the images of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from vicinal.serving.decoding import PillowPreparation, Pixels, Preparation, TorchPreparation
from vicinal.utils.arrays import Floats

if TYPE_CHECKING:
    from vicinal.export.exported_embedder import ExportedEmbedder
    from vicinal.models.embedder import Embedder
    from vicinal.retrieval.whitening import PCAWhitening


class ImageEmbedder(Protocol):
    """Embeds images that processes have decoded; its name is that of the model."""

    name: str
    dim: int

    @property
    def fingerprint(self) -> str | None:
        """Identifies the model and the steps after it; None if that is unknown."""

    @property
    def preparation(self) -> Preparation:
        """Makes the function that turns an image into pixels."""

    def embed(self, images: Sequence[Pixels]) -> Floats:
        """The embeddings of prepared images, float32 [n, dim]."""


class TorchEmbedder:
    """Embeds by a model of torch or an exported one, as `vicinal index build` does with the same flags.

    The fingerprint identifies the model and the steps after it; None takes that of the model alone. `local_model`
    computes local features where `model` is its exported form.
    """

    def __init__(
        self,
        model: Embedder | ExportedEmbedder,
        name: str,
        fingerprint: str | None = None,
        scales: Sequence[float] | None = None,
        max_size: int | None = None,
        whitening: PCAWhitening | None = None,
        keep_dim: int | None = None,
        precision: Any = "auto",
        device: str | None = None,
        local_model: Embedder | ExportedEmbedder | None = None,
    ) -> None:
        from vicinal.data.images.image_ops import Normalize

        self.model, self.name, self.scales = model, name, scales
        self.local_model = model if local_model is None else local_model
        self.whitening, self.keep_dim = whitening, keep_dim
        self.fingerprint = model.fingerprint() if fingerprint is None else fingerprint
        self.options = {"precision": precision, "device": device, "progress": False}
        transform = model.transform
        if max_size is not None:
            transform = replace(transform, longest=max_size, scale=None, ratio=None)
        self.preparation = TorchPreparation(transform)
        self._normalize = Normalize(transform)
        self.dim = self.embed([_some_pixels(self.preparation)]).shape[1]

    def embed(self, images: Sequence[Pixels]) -> Floats:
        """The embeddings of prepared images, float32 [n, dim]; images of one size are embedded together."""
        vectors: dict[int, Floats] = {}
        for shape in dict.fromkeys(image.shape for image in images):
            rows = [row for row, image in enumerate(images) if image.shape == shape]
            vectors |= dict(zip(rows, self._embed(np.stack([images[row] for row in rows])), strict=True))
        return np.stack([vectors[row] for row in range(len(images))])

    def _embed(self, pixels: Pixels) -> Floats:
        import torch

        from vicinal.models.head import shortened

        batch = self._normalize(torch.from_numpy(pixels))
        size = len(batch)
        if self.scales is None:
            vectors = self.model.embed(batch, batch_size=size, **self.options)
        else:
            from vicinal.models.multi_scale import embed_multi_scale

            vectors = embed_multi_scale(
                cast("Embedder", self.model), batch, self.scales, batch_size=size, **self.options
            )
        whitened = vectors if self.whitening is None else self.whitening.apply(vectors)
        return shortened(whitened, self.keep_dim)


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


def as_image_embedder(model: Any) -> ImageEmbedder:
    """An :class:`ImageEmbedder` as it is, or for an :class:`~vicinal.Embedder` or an object that embeds PIL images."""
    if hasattr(model, "preparation"):
        return model
    from vicinal.models.embedder import Embedder

    if isinstance(model, Embedder):
        return TorchEmbedder(model, model.config["backbone"])
    return PillowEmbedder(model)
