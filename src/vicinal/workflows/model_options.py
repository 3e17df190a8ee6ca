"""The model that embedding options name, and how it embeds batches of pixels, wherever they were read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vicinal.data.checks import row_blocks
from vicinal.data.images.transforms import ImageTransform
from vicinal.export.exported_embedder import ExportedEmbedder, is_exported, open_exported, with_engine
from vicinal.models.execution import UsedPrecision, usable_device, used_precision
from vicinal.models.head import check_dim, shortened, trained_dims
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.memory import temporary_map
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.models import load_model
from vicinal.workflows.settings import EmbeddingOptions

if TYPE_CHECKING:
    from vicinal.data.images.image_ops import Normalize
    from vicinal.models import Embedder
    from vicinal.workflows.embedding_reader import EmbeddingReader


@dataclass(frozen=True)
class ModelOptions(EmbeddingOptions):
    """Embedding options with the model they name, loaded when it is first used, and the steps after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.postprocessing  # an unreadable file is reported before anything is embedded

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model of the options and the steps after it, before anything is embedded; None without one."""
        if self.model is None:
            return None
        model = self.loaded_model
        return "+".join([model.fingerprint(), *self.image_steps, *self.postprocessing.names])

    @cached_property
    def loaded_model(self) -> Embedder | ExportedEmbedder:
        """The model of the options."""
        if not is_exported(str(self.model)):
            return load_model(str(self.model), self.pooling, self.allow_import or (), self.weights)
        for option in ("weights", "pooling", "scales", "device"):
            if getattr(self, option) is not None:
                raise InputError(f"{self.model} is an exported model, which has its own; leave out --{option}")
        if self.engine != "auto":
            raise InputError(f"{self.model} is an exported model, which has its own engine; leave out --engine")
        return ExportedEmbedder(open_exported(str(self.model)))

    def with_engine(
        self, model: Embedder | ExportedEmbedder, num_images: int | None = None
    ) -> Embedder | ExportedEmbedder:
        """The embedder by the engine of the options; see :func:`with_engine`."""
        if isinstance(model, ExportedEmbedder):
            return model
        obstacle = None
        if self.scales is not None:
            obstacle = "images are embedded at several scales"
        elif model.transform.longest is not None:
            obstacle = "the model embeds whole images"
        elif self.used_precision != "32":
            obstacle = f"precision is {self.used_precision}, and other engines compute in float32"
        return with_engine(model, self.engine, usable_device(self.device), num_images, obstacle)

    @cached_property
    def postprocessing(self) -> Postprocessing:
        """The steps after the model."""
        return Postprocessing(None if self.whitening is None else PCAWhitening.load(self.whitening), self.dim)

    @property
    def used_precision(self) -> UsedPrecision:
        """The precision of the options, or what `auto` stands for; 32 for an exported model, which has its own."""
        if self.precision == "auto" and self.model is not None and is_exported(self.model):
            return "32"
        return used_precision(self.precision, usable_device(self.device))

    def transform_for(self, model: Embedder | ExportedEmbedder) -> ImageTransform:
        """The transform of images for a model: its own, or that of whole images."""
        from vicinal.models.multi_scale import whole_image_transform

        return model.transform if self.max_size is None else whole_image_transform(model.transform, self.max_size)

    @property
    def image_steps(self) -> tuple[str, ...]:
        """The options that change embeddings of the model, as one name."""
        if self.scales is None:
            return ()
        return (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)


@dataclass(frozen=True)
class Postprocessing:
    """The steps after a model.

    Args:
        whitening: is applied first; None: no whitening.
        dim: the number of first dimensions that are kept, normalized; None: all.

    Example:
        >>> import numpy as np
        >>> steps = Postprocessing(dim=1)
        >>> steps.names, steps.apply(np.array([[0.6, 0.8]], np.float32))
        (('dim 1',), array([[1.]], dtype=float32))
    """

    whitening: PCAWhitening | None = None
    dim: int | None = None
    _checked_models: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps; different steps have different names."""
        whitening = () if self.whitening is None else (self.whitening.fingerprint(),)
        return whitening if self.dim is None else (*whitening, f"dim {self.dim}")

    def apply(self, vectors: Floats) -> Floats:
        """Apply the steps to embeddings, float32 [n, d]."""
        if self.whitening is not None:
            vectors = self.whitening.apply(vectors)
        return vectors if self.dim is None else shortened(vectors, self.dim)

    def apply_to(self, embedded: EmbeddedTable, mapped: bool = False) -> EmbeddedTable:
        """Apply the steps to embeddings with their table; if `mapped`, block by block into a temporary file."""
        if not self.names:
            return embedded
        steps = (*embedded.postprocessing, *self.names)
        if not mapped:
            return replace(embedded, vectors=self.apply(embedded.vectors), postprocessing=steps)
        dim = self.dim if self.whitening is None or self.dim is not None else self.whitening.dim
        blocks = map(self.apply, row_blocks(embedded.vectors))
        vectors = temporary_map(blocks, (len(embedded.vectors), int(dim or 0)), "embeddings")
        return replace(embedded, vectors=vectors, postprocessing=steps)

    def check_model(self, model: Embedder | ExportedEmbedder) -> None:
        """Check before anything is embedded that a model has so many dimensions; warn if they are not trained.

        Raises:
            InputError: it has fewer.
        """
        if self.dim is None or self.whitening is not None:
            return
        check_dim(self.dim, model.dim)
        recipe = getattr(model, "recipe", None)  # of an exported model it is not known
        if recipe is None or id(model) in self._checked_models:
            return
        self._checked_models.add(id(model))
        dims = trained_dims(recipe)
        if self.dim < (dims[0] if dims else model.dim):
            trained = f"with Matryoshka for {dims[0]} dimensions and more" if dims else "without Matryoshka"
            log(
                f"warning: the model was trained {trained}; its first {self.dim} dimensions alone may find much less "
                "than PCA whitening to as many (vicinal whiten --dim)"
            )


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
