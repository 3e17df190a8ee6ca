"""The model that embedding options name, and what it does with images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vicinal.export.engine import with_engine
from vicinal.export.exported_embedder import ExportedEmbedder, is_exported, open_exported
from vicinal.models.precision import UsedPrecision, used_precision
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding.embedding_options import EmbeddingOptions
from vicinal.workflows.embedding.postprocessing import Postprocessing
from vicinal.workflows.models import load_model, usable_device

if TYPE_CHECKING:
    from vicinal.data.images.transforms import ImageTransform
    from vicinal.models import Embedder


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
        """What embeds images by the engine of the options; see :func:`~vicinal.export.engine.with_engine`."""
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
        """What is done otherwise with images than by the model alone; different ways have different names."""
        if self.scales is None:
            return ()
        return (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)
