"""Crops resized from no more of a JPEG than they need, by torch, whose resampling of bytes is faster than Pillow's."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from vicinal.data.images.decoding import EncodedJpeg

MIN_OVERSAMPLING = 2.0
"""Pixels per side that a reduced JPEG keeps for each pixel of the result; with fewer, differences are larger."""

Source: TypeAlias = Image.Image | EncodedJpeg


class Crop(NamedTuple):
    """What becomes of an image: a box of it is resized, and a square cut out of the result.

    Attributes:
        box: Left, top, right and bottom edge, in pixels of the image in full size.
        size: Width and height of the resized box.
        corner: The left and the upper edge of the square in it.
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    corner: tuple[int, int] = (0, 0)


class FastCrop(nn.Module):
    """Image -> uint8 `[channels, size, size]`. Subclasses say which part of it, or leave an image to `thin`."""

    def __init__(self, size: int, interpolation: str, thin: nn.Module | None = None) -> None:
        super().__init__()
        self.size, self.interpolation, self.thin = size, interpolation, thin

    def plan(self, width: int, height: int) -> Crop | None:
        """The crop of an image of this size, by torch's generator if it is random; None: it is left to `thin`."""
        raise NotImplementedError

    def forward(self, image: Source) -> torch.Tensor:
        crop = self.plan(*image.size)
        if crop is None and self.thin is not None:
            pixels: torch.Tensor = self.thin(image)
            return pixels
        assert crop is not None
        left, top = crop.corner
        resized = resized_crop(image, crop.box, crop.size, self.interpolation)
        return resized[:, top : top + self.size, left : left + self.size]


class FastRandomResizedCrop(FastCrop):
    """The random crops of torchvision's `RandomResizedCrop`."""

    def __init__(
        self, size: int, scale: tuple[float, float], ratio: tuple[float, float], interpolation: v2.InterpolationMode
    ) -> None:
        super().__init__(size, interpolation.value)
        self.crop = v2.RandomResizedCrop(size, scale, ratio)

    def plan(self, width: int, height: int) -> Crop:
        crop = self.crop.make_params([torch.empty((1, height, width), device="meta")])  # which looks at the size only
        left, top = crop["left"], crop["top"]
        return Crop((left, top, left + crop["width"], top + crop["height"]), (self.size, self.size))


class FastResizeCenterCrop(FastCrop):
    """Resize the shorter side to `resize` and crop the center.

    Images with a larger aspect ratio than `max_aspect_ratio` are left to the module `thin`.
    """

    def __init__(self, resize: int, size: int, interpolation: str, max_aspect_ratio: float, thin: nn.Module) -> None:
        super().__init__(size, interpolation, thin)
        self.resize, self.max_aspect_ratio = resize, max_aspect_ratio

    def plan(self, width: int, height: int) -> Crop | None:
        shorter = min(width, height)
        if max(width, height) > self.max_aspect_ratio * shorter:
            return None
        size = (self.resize * width // shorter, self.resize * height // shorter)
        left, top = (round((side - self.size) / 2) for side in size)  # as torchvision's CenterCrop
        return Crop((0, 0, width, height), size, (left, top))


def resized_crop(
    image: Source, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: str
) -> torch.Tensor:
    """Crop and resize an image.

    Args:
        image: The image; a JPEG is decoded at the smallest size that has two pixels for each of the result, per side.
        box: The crop: left, top, right, bottom, in pixels of the image in full size.
        size: Width and height of the result.
        interpolation: `bicubic` or `bilinear`.

    Returns:
        uint8 `[channels, height, width]`. The crop of a reduced JPEG starts at a whole pixel of it, so that it is moved
        by up to a quarter of a pixel of the result, except where it starts at 0.
    """
    full_size, sides = image.size, (box[2] - box[0], box[3] - box[1])
    per_pixel = min(side / pixels for side, pixels in zip(sides, size, strict=True))
    pixels = _pixels(image, max_reduction=per_pixel / MIN_OVERSAMPLING)
    height, width, _ = pixels.shape
    reduction = 2 ** round(math.log2(max(full_size) / max(width, height)))  # the sides were rounded up
    left, right = _span(box[0], sides[0], reduction, width)
    top, bottom = _span(box[1], sides[1], reduction, height)
    crop = torch.from_numpy(np.ascontiguousarray(pixels[top:bottom, left:right]))[None]
    # Of the sides before they were rounded up; the next larger number, as torch rounds the sides of the result down.
    factors = [math.nextafter(size[axis] * reduction / sides[axis], math.inf) for axis in (1, 0)]
    # In memory, channels stay last, which is faster.
    return F.interpolate(crop.permute(0, 3, 1, 2), scale_factor=factors, mode=interpolation, antialias=True)[0]


def _pixels(image: Source, max_reduction: float) -> npt.NDArray[np.uint8]:
    if isinstance(image, EncodedJpeg):
        return image.pixels(max_reduction)
    pixels = np.array(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _span(start: int, length: int, reduction: int, limit: int) -> tuple[int, int]:
    """First pixel and end of the pixels of a reduced image that hold a stretch of the full one."""
    reduced = -(-length // reduction)
    first = min(round(start / reduction), limit - reduced)
    return first, first + reduced
