"""The model that embedding options name, and what it does with images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vicinal.data.images.nvjpeg import check_nvjpeg
from vicinal.data.settings import DEVICE_STEP, Decoding
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
        if self.decoding == "device":  # and so is a device that decodes nothing
            check_nvjpeg(usable_device(self.device))

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model of the options and the steps after it, before anything is embedded; None without one."""
        if self.model is None:
            return None
        model = self.loaded_model
        return "+".join([model.fingerprint(), *self.image_steps(model), *self.postprocessing.names])

    @cached_property
    def loaded_model(self) -> Embedder | ExportedEmbedder:
        """The model of the options."""
        if not is_exported(str(self.model)):
            return load_model(str(self.model), self.pooling, self.allow_import or (), self.weights)
        for option in ("weights", "pooling", "scales", "device", "decoding"):
            if getattr(self, option) not in (None, "workers"):
                raise InputError(f"{self.model} is an exported model, which has its own; leave out --{option}")
        return ExportedEmbedder(open_exported(str(self.model)))

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

    def decoding_for(self, model: Embedder | ExportedEmbedder) -> Decoding:
        """Where JPEGs are decoded for a model: as the options say, or else as in its training.

        Raises:
            InputError: as in its training, by a GPU, but images are embedded at several scales.
        """
        if self.decoding is not None:
            return self.decoding
        recipe = getattr(model, "recipe", None)  # of an exported model it is not known
        data = recipe.get("data") if isinstance(recipe, dict) else None
        if not isinstance(data, dict) or data.get("decoding") != "device":
            return "workers"
        if self.scales is not None:
            raise InputError("the model was trained with data.decoding = device; give --decoding workers with --scales")
        return "device"

    def image_steps(self, model: Embedder | ExportedEmbedder) -> tuple[str, ...]:
        """What is done otherwise with images than by the model alone: a GPU decodes them, or there are several scales.

        Different ways have different names.
        """
        if self.decoding_for(model) == "device":
            return (DEVICE_STEP,)
        if self.scales is None:
            return ()
        return (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)
