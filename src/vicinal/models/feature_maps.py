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
from vicinal.models.execution import check_device, eval_mode
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
    batch_size: int = 64,
    num_workers: int = 0,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> Iterator[tuple[Floats, tuple[int, int]]]:
    """Yield the patches of images, from a feature map of the backbone, a batch at a time.

    Args:
        model: An embedder whose backbone is a timm model with feature maps: a convolutional network, or a transformer,
            whose patch tokens are the map.
        source: The images, as in :meth:`Embedder.embed`.
        size: Side of the square from the center of the image, in pixels; a larger one gives more patches. None: that of
            the model's transform.
        layer: Which map: the `last`, or the `previous` one. That of a convolutional network has four times as many
            patches, with shorter vectors; that of a transformer is of the block before the last.
        batch_size: Images per batch.
        num_workers: Processes that read files.
        device: The device to which the model is moved first; None: do not move it.
        progress: Show a progress bar.

    Yields:
        float32 [b, rows * columns, channels], row by row, and the numbers of rows and columns of patches.

    Raises:
        InputError: the backbone has no feature maps or does not take images of this size, an argument is invalid, an
            image cannot be read, or a feature is not finite.

    Example:
        >>> from PIL import Image
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=64))
        >>> [(patches.shape, grid) for patches, grid in patch_vectors(model, [Image.new("RGB", (80, 60))])]
        [((1, 16, 192), (4, 4))]
    """
    transform = patch_transform(model, size)
    check_layer(model, layer)
    if device is not None:
        check_device(device)
        model.to(device)
    batches, total = image_batches(source, transform, batch_size, num_workers, device=model.device)
    for images in track(batches, "local features", total=total, show=progress):
        parts = torch.split(images, CPU_BATCH if model.device.type == "cpu" else len(images))
        maps = torch.cat([_feature_map(model, normalized(part.to(model.device), transform), layer) for part in parts])
        patches = maps.flatten(2).transpose(1, 2).cpu().numpy()
        if not np.isfinite(patches).all():
            raise InputError("a local feature is not finite; the weights of the model or the image are not")
        yield patches, (int(maps.shape[2]), int(maps.shape[3]))


def patch_transform(model: Embedder, size: int | None = None) -> ImageTransform:
    """The transform of images that are divided into patches: squares, also for a model that embeds whole images.

    Raises:
        InputError: the size is invalid, or the backbone does not take images of this size.
    """
    transform, name = model.transform, model.config["backbone"]
    side = transform.size if size is None else size
    if not is_integer(side) or side < 1:
        raise InputError(f"the size of images for local features is {shown(size)}; it must be an integer, at least 1")
    if side != transform.size and takes_one_size(model.backbone):
        raise InputError(
            f"{name} takes images of {transform.size} pixels only; leave out the size of local features, or make the "
            "model with backbone_args={'dynamic_img_size': True}, if this backbone knows it"
        )
    check_patches(model.backbone, name, side)
    resize = None if transform.resize is None else max(side, round(transform.resize * side / transform.size))
    return replace(transform, size=side, resize=resize, longest=None)


def check_layer(model: Embedder, layer: str) -> None:
    """Raise InputError if the layer is unknown, or the backbone has no feature maps."""
    if layer not in get_args(MapName):
        raise InputError(f"the layer of local features is {shown(layer)}; choose {' or '.join(get_args(MapName))}")
    if not hasattr(model.backbone, "forward_intermediates"):
        raise InputError(f"{model.config['backbone']} does not give its feature maps, so it has no local features")


def _feature_map(model: Embedder, images: Tensor, layer: MapName) -> Tensor:
    """A feature map of normalized images [b, C, H, W], float32 [b, channels, rows, columns]."""
    images = images.contiguous(memory_format=model.memory_format)
    with torch.no_grad(), eval_mode(model):
        maps: list[Tensor] = model.backbone.forward_intermediates(  # type: ignore[operator]
            images, indices=1 if layer == "last" else 2, intermediates_only=True, output_fmt="NCHW"
        )
        return maps[0].float()
