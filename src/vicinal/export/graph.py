"""The network that is exported: from pixels or a normalized tensor to unit vectors, with a refiner or without."""

from __future__ import annotations

import copy

import numpy as np
import torch
from timm.layers import set_exportable
from timm.utils.model import reparameterize_model
from torch import Tensor, nn

from vicinal.data.images.transforms import ImageTransform
from vicinal.export.settings import ExportSettings
from vicinal.models.backbones import check_patches, patch_size, takes_one_size
from vicinal.models.embedder import Embedder
from vicinal.models.model_card import IMPORT
from vicinal.models.refiner import ContextRefiner
from vicinal.models.saving import merged_state_dict
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


class GalleryRefiner(nn.Module):
    """Refines vectors by their nearest neighbors of a gallery, as :func:`vicinal.retrieval.refine` does."""

    gallery: Tensor

    def __init__(self, refiner: ContextRefiner, gallery: Floats) -> None:
        super().__init__()
        refiner.check_dim(gallery.shape[1])
        self.refiner = copy.deepcopy(refiner).cpu().float()
        unit = UnitVectors(np.asarray(gallery, np.float32), "gallery vector")
        self.register_buffer("gallery", unit.block(0, len(unit)).float().clone())

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit vectors [n, dim] -> unit vectors [n, dim]."""
        if self.refiner.context == "self":
            context = vectors[:, None]
        else:
            k = min(self.refiner.neighbors, len(self.gallery))
            context = self.gallery[(vectors @ self.gallery.T).topk(k).indices]
        refined: Tensor = self.refiner(vectors, context)
        return refined


class ExportGraph(nn.Module):
    """The computation of an exported model: a model of :func:`exportable`, and perhaps a refiner of its embeddings."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Embedder, settings: ExportSettings, refiner: GalleryRefiner | None = None) -> None:
        super().__init__()
        self.model, self.settings, self.refiner = model, settings, refiner
        for name in ("mean", "std"):
            values = 255 * torch.tensor(getattr(model.transform, name), dtype=torch.float32)
            self.register_buffer(name, values.view(-1, 1, 1))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Images as the settings say -> unit vectors [n, dim]."""
        if self.settings.layout == "nhwc":
            images = images.permute(0, 3, 1, 2)
        if self.settings.input == "pixels":
            images = (images.float() - self.mean) / self.std
        vectors: Tensor = self.model(images)
        return vectors if self.refiner is None else self.refiner(vectors)

    def example(self, num_images: int, height: int, width: int) -> Tensor:
        """Random images as the input."""
        shape = (num_images, self.model.transform.channels, height, width)
        pixels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images = pixels if self.settings.input == "pixels" else (pixels - self.mean) / self.std
        return images.permute(0, 2, 3, 1).contiguous() if self.settings.layout == "nhwc" else images


def exportable(model: Embedder, settings: ExportSettings) -> Embedder:
    """A copy of an embedder in evaluation mode, float32, whose layers can be exported, for the size of the settings.

    timm builds some layers in another way for exports. Branches that only training needs (RepVGG, FastViT, MobileOne)
    are merged, and so are adapters.
    """
    with torch.random.fork_rng(devices=[]), set_exportable(True):
        if model.config["backbone"].startswith(IMPORT):
            built = copy.deepcopy(model)
        else:
            built = type(model)._from_config(model._get_config())
            built.load_state_dict(merged_state_dict(model))
    built = built.cpu().float().eval()
    built.transform = resized_transform(model, settings.size)
    _check_sizes(built, settings)
    built.backbone = reparameterize_model(built.backbone)
    return built


def resized_transform(model: Embedder, size: int | None) -> ImageTransform:
    """The transform of a model with another size, and with the margin that is cropped away in proportion."""
    transform, name = model.transform, model.config["backbone"]
    if size in (None, transform.size):
        return transform
    if takes_one_size(model.backbone):
        raise InputError(f"size is {size}, but {name} takes images of {transform.size} px only; leave it out")
    check_patches(model.backbone, name, size)
    return transform.at_size(size)


def other_size(model: Embedder) -> tuple[int, int]:
    """Another height and width than that of a model, at which an export for any size is checked."""
    sides = patch_size(model.backbone)
    step = [32 if side == 1 else side for side in sides]
    size = model.transform.size
    return (size // step[0] + 1) * step[0], (size // step[-1] + 2) * step[-1]


def _check_sizes(model: Embedder, settings: ExportSettings) -> None:
    name = model.config["backbone"]
    if not settings.dynamic_size:
        if model.transform.longest is not None:
            raise InputError(f"the model embeds whole images of at most {model.transform.longest} px; add dynamic_size")
        return
    if takes_one_size(model.backbone):
        raise InputError(
            f"dynamic_size: {name} takes images of {model.transform.size} px only, since its positions are fixed; "
            "leave it out, or train with backbone_args {dynamic_img_size: true}"
        )
    # The padding of each layer depends on the size; torch does not finish such an export.
    same = next((module for module in model.backbone.modules() if "Same" in type(module).__name__), None)
    if same is not None:
        kind = type(same).__name__
        raise InputError(f"dynamic_size: {name} pads by the size of its images ({kind}); leave it out, or give size")
