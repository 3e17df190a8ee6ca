"""Multi-scale descriptors: an image is embedded at several sizes, and what comes out is averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from vicinal.arguments import is_whole
from vicinal.console import track
from vicinal.data.images import ImageDataset
from vicinal.data.transforms import ImageTransform, NormalizedTensor
from vicinal.errors import InputError
from vicinal.models.embedder import Embedder, Precision
from vicinal.models.inputs import Images, image_batches

SCALES = (1.0, 2**0.5, 2**-0.5)


@dataclass(frozen=True)
class WholeImage(ImageTransform):
    """The whole image in the place of its centre, made smaller where its longer side is above `longest`.

    Args:
        longest: pixels of the longer side, at most; images are never made larger.

    Example:
        >>> WholeImage(channels=1, longest=20).test()(Image.new("L", (80, 60))).shape
        torch.Size([1, 15, 20])
    """

    longest: int = 1024

    def test(self) -> nn.Module:
        """The whole image: PIL image -> float32 `[channels, height, width]`."""
        return v2.Compose([Reduced(self.longest), NormalizedTensor(self.channels, self.mean, self.std)])


class Reduced(nn.Module):
    """An image made smaller, in its proportions, until no side is above `longest`."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def forward(self, image: Image.Image) -> Image.Image:
        reduced = image.copy()  # `thumbnail` works in place, and a cache may keep the image
        reduced.thumbnail((self.longest, self.longest), Image.Resampling.LANCZOS)
        return reduced


def multi_scale(
    model: Embedder,
    source: Images,
    scales: Sequence[float] = SCALES,
    longest: int | None = None,
    batch: int = 64,
    workers: int = 0,
    precision: Precision = "32",
    device: str | torch.device | None = None,
    progress: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
) -> npt.NDArray[np.float32]:
    """Embed images at several scales; the unit vectors' mean, brought to length 1, is the descriptor.

    The protocol of ROxford and RParis (Radenovic et al., "Fine-tuning CNN Image Retrieval with No Human Annotation",
    TPAMI 2019, with the plain mean; used by Recall@k Surrogate): whole images of at most 1,024 pixels, at scales 1,
    sqrt 2 and 1 / sqrt 2, resized bilinearly as tensors. Of a backbone that cuts images into patches, sides are rounded
    to whole patches.

    Args:
        model: any embedder whose backbone takes images of several sizes. A vision transformer does if made with
            `backbone_args={"dynamic_img_size": True}`.
        source: as in :meth:`Embedder.embed`.
        scales: factors of an image's sides.
        longest: whole images are embedded, one at a time whatever `batch` is, after a longer side above so many pixels
            was reduced to that; None: the square that the model's own transform cuts out.
        batch: images at a time.
        workers: processes that read files.
        precision: as in :meth:`Embedder.embed`.
        device: where to move the model first; None: leave it where it is.
        progress: show a progress bar.
        on_error: raise at a file that cannot be read, or skip it.

    Returns:
        float32 [n, dim], rows of length 1, in the order of `source`.

    Raises:
        InputError: an impossible scale or longest side, a backbone that takes one size only, an image that is too small
            for a scale, or as :meth:`Embedder.embed`.

    Example:
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32))
        >>> multi_scale(model, [Image.new("RGB", (80, 60))], longest=64).shape
        (1, 8)
    """
    _check(model, scales, longest)
    batches, number = _batches(model, source, longest, batch, workers, on_error)
    patch = _patch(model.backbone)
    parts = [np.empty((0, model.dim), np.float32)]
    for images in track(batches, "embedding", total=number, show=progress):
        scaled = (_scaled(images, scale, patch) for scale in scales)
        vectors = [model.embed(each, len(each), 0, precision, device, progress=False) for each in scaled]
        parts.append(unit_mean(vectors))
    return np.concatenate(parts)


def unit_mean(vectors: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """The mean of unit vectors, row by row, brought to length 1; it stays zero where they cancel out.

    Example:
        >>> unit_mean([np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)])
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    mean = np.mean(vectors, axis=0, dtype=np.float64)
    lengths = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.divide(mean, lengths, out=np.zeros_like(mean), where=lengths > 0).astype(np.float32)


def _check(model: Embedder, scales: Sequence[float], longest: int | None) -> None:
    if not len(scales):
        raise InputError("scales are empty; give at least one, such as 1.0")
    for scale in scales:
        if not 0 < scale < math.inf:
            raise InputError(f"scale {scale} is impossible; a scale is a number above 0")
    if longest is not None and not (is_whole(longest) and longest >= 1):
        raise InputError(f"longest is {longest}; it must be a whole number of pixels, at least 1")
    one_size = getattr(getattr(model.backbone, "patch_embed", None), "strict_img_size", False)
    if one_size and (longest is not None or set(scales) != {1}):
        raise InputError(
            f"{model.config['backbone']} takes images of {model.transform.size} pixels only; make the model with "
            "backbone_args={'dynamic_img_size': True}, if this backbone knows it, or use one scale, 1"
        )


def _batches(
    model: Embedder,
    source: Images,
    longest: int | None,
    batch: int,
    workers: int,
    on_error: Literal["raise", "skip"],
) -> tuple[Iterable[Tensor], int]:
    if longest is None:
        return image_batches(source, model.transform, batch, workers, on_error)
    if isinstance(source, Tensor) or (isinstance(source, (list, tuple)) and any(isinstance(s, Tensor) for s in source)):
        raise InputError("longest is for images that are to be read; tensors have their size already")
    if isinstance(source, ImageDataset):
        source = source.table  # what the dataset makes of images is their centre
    return image_batches(source, WholeImage(**{**asdict(model.transform), "longest": longest}), 1, workers, on_error)


def _patch(backbone: nn.Module) -> tuple[int, ...]:
    """Sides of the patches that images are cut into; (1, 1) where any size will do."""
    embed = getattr(backbone, "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    return (1, 1) if patch is None or getattr(embed, "dynamic_img_pad", False) else tuple(patch)


def _scaled(images: Tensor, scale: float, patch: tuple[int, ...]) -> Tensor:
    """Images [n, C, H, W] with sides times `scale`, rounded down as published, or to the nearest whole patches."""
    sides = tuple(images.shape[-2:])
    if patch == (1, 1):
        if min(sides) * scale < 1:
            raise InputError(f"an image of {sides[1]} x {sides[0]} pixels is too small for scale {scale:g}")
        return images if scale == 1 else F.interpolate(images, scale_factor=scale, mode="bilinear")
    wanted = tuple(max(1, round(side * scale / length)) * length for side, length in zip(sides, patch, strict=True))
    return images if wanted == sides else F.interpolate(images, size=wanted, mode="bilinear")
