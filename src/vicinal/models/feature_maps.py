"""Feature maps of an embedder's backbone: the vectors of the patches of an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vicinal.data.batches.image_dataset import CPU_BATCH
from vicinal.data.images.image_ops import normalized
from vicinal.data.images.transforms import ImageTransform
from vicinal.models.backbones import check_patches, takes_one_size
from vicinal.models.embedder import Embedder
from vicinal.models.execution import eval_mode
from vicinal.models.inputs import Images, image_batches
from vicinal.utils.arguments import is_integer, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.console import track
from vicinal.utils.errors import InputError

MapName = Literal["last", "previous"]


def patch_vectors(
    model: Embedder,
    source: Images,
    size: int | None = None,
    layer: MapName = "previous",
    progress: bool = True,
) -> Iterator[tuple[Floats, tuple[int, int]]]:
    """Yield the patches of images, from a feature map of the backbone, a batch at a time.

    The backbone must be a timm model with feature maps: a convolutional network, or a transformer, whose patch tokens
    are the map. The `previous` map of a convolutional network has four times as many patches as the `last` one, with
    shorter vectors; that of a transformer is of the block before the last. `size` is the side of the square from the
    center of the image, in pixels; a larger one gives more patches. None: that of the model's transform.

    Yields:
        float32 [b, rows * columns, channels], row by row, and the numbers of rows and columns of patches.
    """
    transform = patch_transform(model, size)
    if layer not in get_args(MapName):
        raise InputError(f"the layer of local features is {shown(layer)}; choose {' or '.join(get_args(MapName))}")
    if not hasattr(model.backbone, "forward_intermediates"):
        raise InputError(f"{model.config['backbone']} does not give its feature maps, so it has no local features")
    batches, total = image_batches(source, transform, device=model.device)
    for images in track(batches, "local features", total=total, show=progress):
        parts = torch.split(images, CPU_BATCH if model.device.type == "cpu" else len(images))
        maps = torch.cat([_feature_map(model, normalized(part.to(model.device), transform), layer) for part in parts])
        patches = maps.flatten(2).transpose(1, 2).cpu().numpy()
        if not np.isfinite(patches).all():
            raise InputError("a local feature is not finite; the weights of the model or the image are not")
        yield patches, (int(maps.shape[2]), int(maps.shape[3]))


def patch_transform(model: Embedder, size: int | None = None) -> ImageTransform:
    """The transform of images that are divided into patches: squares, also for a model that embeds whole images."""
    transform, name = model.transform, model.config["backbone"]
    side = transform.size if size is None else size
    if not is_integer(side) or side < 1:
        raise InputError(f"the size of images for local features is {shown(size)}; it must be an integer, at least 1")
    if side != transform.size and takes_one_size(model.backbone):
        raise InputError(
            f"{name} takes images of {transform.size} pixels only; leave out the size of local features, or make the "
            "model with backbone_args={'dynamic_img_size': True}, if this backbone supports it"
        )
    check_patches(model.backbone, name, side)
    return replace(transform.at_size(side), longest=None)


def _feature_map(model: Embedder, images: Tensor, layer: MapName) -> Tensor:
    """A feature map of normalized images [b, C, H, W], float32 [b, channels, rows, columns]."""
    images = images.contiguous(memory_format=model.memory_format)
    with torch.no_grad(), eval_mode(model):
        maps: list[Tensor] = model.backbone.forward_intermediates(  # type: ignore[operator]
            images, indices=1 if layer == "last" else 2, intermediates_only=True, output_fmt="NCHW"
        )
        return maps[0].float()
