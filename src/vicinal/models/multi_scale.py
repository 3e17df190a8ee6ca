"""Multi-scale descriptors: each image is embedded at several scales, and the embeddings are averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.images.image_ops import normalized
from vicinal.data.images.transforms import MAX_LONGEST, MAX_SIZE, ImageTransform
from vicinal.models.backbones import patch_size, takes_one_size
from vicinal.models.embedder import Embedder
from vicinal.models.execution import Precision
from vicinal.models.inputs import Images, image_batches
from vicinal.utils.arguments import check_list, is_integer, is_number, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.console import track
from vicinal.utils.errors import InputError

SCALES = (1.0, 2**0.5, 2**-0.5)


def embed_multi_scale(
    model: Embedder,
    source: Images,
    scales: Sequence[float] = SCALES,
    max_size: int | None = None,
    batch_size: int = 64,
    num_workers: int = 0,
    precision: Precision = "auto",
    device: str | torch.device | None = None,
    progress: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
) -> Floats:
    """Embed images at several scales; the descriptor is the L2-normalized mean of the embeddings.

    Reference: the protocol of ROxford and RParis (Radenovic et al., "Fine-tuning CNN Image Retrieval with No Human
    Annotation", TPAMI 2019, with the plain mean; used by Recall@k Surrogate) takes whole images of at most 1,024
    pixels, at scales 1, sqrt 2 and 1 / sqrt 2, resized bilinearly as tensors. For backbones with patches, sides are
    rounded to whole patches.

    Args:
        model: An embedder whose backbone takes images of different sizes. A vision transformer does if it is created
            with `backbone_args={"dynamic_img_size": True}`.
        source: The images, as in :meth:`Embedder.embed`.
        scales: Factors of the sides of the images.
        max_size: Embed whole images, one at a time regardless of `batch_size`, whose longer side is first reduced to
            this many pixels if it is longer, as by the transform's `longest`; None: embed what the model's transform
            gives, most often a square from the center.
        batch_size: Images per batch.
        num_workers: Processes that read files.
        precision: As in :meth:`Embedder.embed`.
        device: The device to which the model is moved first; None: do not move it.
        progress: Show a progress bar.
        on_error: Raise an error at a file that cannot be read, or skip it. With `max_size`, an `ImageDataset` leaves it
            out if its transform keeps whole images by `longest`.

    Returns:
        float32 [n, dim], L2-normalized, in the order of `source`.

    Raises:
        InputError: A scale or `max_size` is invalid, the backbone takes images of one size only, an image is too small
            for a scale, or as :meth:`Embedder.embed`.

    Example:
        >>> from PIL import Image
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32))
        >>> embed_multi_scale(model, [Image.new("RGB", (80, 60))], max_size=64).shape
        (1, 8)
    """
    check_scales(model, scales, max_size)
    if max_size is None:
        batches, num_batches = image_batches(source, model.transform, batch_size, num_workers, on_error)
    else:
        batches, num_batches = _whole_images(model, source, max_size, num_workers, on_error)
    patches = patch_size(model.backbone)
    parts = [np.empty((0, model.dim), np.float32)]
    for images in track(batches, "embedding", total=num_batches, show=progress):
        images = normalized(images, model.transform)
        scaled = (_resize(images, scale, patches) for scale in scales)
        vectors = [
            model.embed(each, batch_size=len(each), precision=precision, device=device, progress=False)
            for each in scaled
        ]
        mean = np.mean(vectors, axis=0, dtype=np.float64)
        lengths = np.linalg.norm(mean, axis=1, keepdims=True)  # 0 where the embeddings of an image cancel out
        parts.append(np.divide(mean, lengths, out=np.zeros_like(mean), where=lengths > 0).astype(np.float32))
    return np.concatenate(parts)


def whole_image_transform(transform: ImageTransform, max_size: int) -> ImageTransform:
    """The transform of whole images whose longer side is reduced to `max_size` pixels."""
    return replace(transform, longest=int(max_size), scale=None, ratio=None)


def check_scales(model: Embedder, scales: Sequence[float], max_size: int | None) -> None:
    """Check the arguments of :func:`embed_multi_scale`."""
    check_list("scales", scales, "numbers")
    if not len(scales):
        raise InputError("scales are empty; give at least one, such as 1.0")
    for scale in scales:
        if not is_number(scale) or not 0 < scale < math.inf:
            raise InputError(f"scale {shown(scale)} is invalid; a scale is a number above 0")
        if max_size is None and model.transform.longest is None and scale * model.transform.size > MAX_SIZE:
            raise _too_large_error(scale, model.transform.size)
    if max_size is not None and not (is_integer(max_size) and 1 <= max_size <= MAX_LONGEST):
        raise InputError(f"max_size is {shown(max_size)}; it must be an integer of pixels, from 1 to {MAX_LONGEST:,}")
    if takes_one_size(model.backbone) and (max_size is not None or set(scales) != {1}):
        raise InputError(
            f"{model.config['backbone']} takes images of {model.transform.size} pixels only; make the model with "
            "backbone_args={'dynamic_img_size': True}, if this backbone supports it, or use one scale, 1"
        )


def _too_large_error(scale: float, side: int) -> InputError:
    sides = f"images with sides of {shown(scale * side)} pixels"
    return InputError(f"scale {shown(scale)} would make {sides}; at most {MAX_SIZE:,} are allowed, so reduce it")


def _whole_images(
    model: Embedder, source: Images, max_size: int, num_workers: int, on_error: Literal["raise", "skip"]
) -> tuple[Iterable[Tensor], int]:
    if isinstance(source, Tensor) or (isinstance(source, (list, tuple)) and any(isinstance(s, Tensor) for s in source)):
        raise InputError("max_size is for images that are read and transformed; tensors already have their size")
    transform = whole_image_transform(model.transform, max_size)
    if isinstance(source, ImageDataset) and source.transform.to_dict() != transform.to_dict():
        source = source.table  # the transform of the dataset would crop the center
    return image_batches(source, transform, batch_size=1, num_workers=num_workers, on_error=on_error)


def _resize(images: Tensor, scale: float, patches: tuple[int, ...]) -> Tensor:
    """Multiply the sides of images [n, C, H, W], rounded down as published or to the nearest whole patches."""
    sides = tuple(images.shape[-2:])
    if scale > 1 and max(sides) * scale > MAX_SIZE:
        raise _too_large_error(scale, max(sides))
    if patches == (1, 1):
        if min(sides) * scale < 1:
            raise InputError(f"an image of {sides[1]} x {sides[0]} pixels is too small for scale {scale:g}")
        return images if scale == 1 else F.interpolate(images, scale_factor=scale, mode="bilinear")
    size = tuple(max(1, round(side * scale / patch)) * patch for side, patch in zip(sides, patches, strict=True))
    return images if size == sides else F.interpolate(images, size=size, mode="bilinear")
