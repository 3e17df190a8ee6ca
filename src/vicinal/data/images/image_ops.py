"""The operations of the image transforms, as modules on PIL images, and crops of JPEGs resized by torch."""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torchvision.transforms import v2

from vicinal.data.images.decoding import EncodedJpeg, decoded
from vicinal.data.images.transforms import DEFAULT_RATIO, DEFAULT_SCALE, ImageTransform

MIN_OVERSAMPLING = 2.0
"""Pixels per side that a reduced JPEG keeps for each pixel of the result; with fewer, differences are larger."""
MAX_ASPECT_RATIO = 8
"""Images with a larger one are cropped before they are resized."""

Source: TypeAlias = Image.Image | EncodedJpeg


class FastRandomResizedCrop(nn.Module):
    """Image -> uint8 `[channels, size, size]`: the random crops of torchvision's `RandomResizedCrop`."""

    def __init__(
        self, size: int, scale: tuple[float, float], ratio: tuple[float, float], interpolation: v2.InterpolationMode
    ) -> None:
        super().__init__()
        self.size, self.interpolation = size, interpolation.value
        self.crop = v2.RandomResizedCrop(size, scale, ratio)

    def forward(self, image: Source) -> torch.Tensor:
        width, height = image.size
        crop = self.crop.make_params([torch.empty((1, height, width), device="meta")])  # which looks at the size only
        left, top = crop["left"], crop["top"]
        box = (left, top, left + crop["width"], top + crop["height"])
        return resized_crop(image, box, (self.size, self.size), self.interpolation)


class FastResizeCenterCrop(nn.Module):
    """Image -> uint8 `[channels, size, size]`: the shorter side is resized to `resize`, and the center cropped.

    Images with a large aspect ratio are left to `thin`.
    """

    def __init__(self, resize: int, size: int, interpolation: str, thin: nn.Module) -> None:
        super().__init__()
        self.resize, self.size, self.interpolation, self.thin = resize, size, interpolation, thin

    def forward(self, image: Source) -> torch.Tensor:
        (width, height), shorter = image.size, min(image.size)
        if max(width, height) > MAX_ASPECT_RATIO * shorter:
            pixels: torch.Tensor = self.thin(image)
            return pixels
        size = (self.resize * width // shorter, self.resize * height // shorter)
        left, top = (round((side - self.size) / 2) for side in size)  # as torchvision's CenterCrop
        resized = resized_crop(image, (0, 0, width, height), size, self.interpolation)
        return resized[:, top : top + self.size, left : left + self.size]


def resized_crop(
    image: Source, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: str
) -> torch.Tensor:
    """Crop and resize an image: uint8 `[channels, height, width]`.

    A JPEG is decoded at the smallest size that has two pixels for each of the result, per side. The crop of a reduced
    JPEG starts at a whole pixel of it, so that it is moved by up to a quarter of a pixel of the result, except where it
    starts at 0. The box is in pixels of the image in full size.
    """
    full_size, sides = image.size, (box[2] - box[0], box[3] - box[1])
    per_pixel = min(side / pixels for side, pixels in zip(sides, size, strict=True))
    pixels = _pixels(image, max_reduction=per_pixel / MIN_OVERSAMPLING)
    height, width, _ = pixels.shape
    reduction = 2 ** round(math.log2(max(full_size) / max(width, height)))  # the sides were rounded up
    left, right = _span(box[0], sides[0], reduction, width)
    top, bottom = _span(box[1], sides[1], reduction, height)
    crop = torch.from_numpy(np.ascontiguousarray(pixels[top:bottom, left:right]))[None]
    # Relative to the sides before rounding up; the next larger number, as torch rounds the sides of the result down.
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


def build_train_transform(transform: ImageTransform) -> nn.Sequential:
    """The random transform for training: image -> float32 `[channels, size, size]`; uint8 of whole images."""
    steps: list[nn.Module] = [] if transform.resizes_by_torch and not transform.rotation else [Decode()]
    if transform.rotation:
        steps.append(RandomRotation(transform.rotation, transform.interpolation))
    steps.append(_random_crop(transform) if transform.longest is None else LimitSize(transform.longest))
    if transform.flip:
        steps.append(v2.RandomHorizontalFlip(transform.flip))
    if transform.color_jitter:
        steps.append(color_jitter(transform))
    if not transform.resizes_by_torch:
        steps.append(ToPixels(transform.channels))
    if transform.longest is None:
        steps.append(Normalize(transform))
    return nn.Sequential(*steps)


def build_test_transform(transform: ImageTransform) -> nn.Sequential:
    """The transform for testing: image -> float32 `[channels, size, size]`; `[channels, height, width]` whole."""
    if transform.resizes_by_torch:
        steps: list[nn.Module] = [_center_crop(transform)]
    elif transform.longest is None:
        steps = [Decode(), _center_crop(transform), ToPixels(transform.channels)]
    else:
        steps = [Decode(), LimitSize(transform.longest), ToPixels(transform.channels)]
    return nn.Sequential(*steps, Normalize(transform))


def color_jitter(transform: ImageTransform) -> v2.ColorJitter:
    """The random change of brightness, contrast and, of RGB, saturation."""
    saturation = transform.color_jitter if transform.channels == 3 else 0.0
    return v2.ColorJitter(transform.color_jitter, transform.color_jitter, saturation)


def _random_crop(transform: ImageTransform) -> nn.Module:
    crop = FastRandomResizedCrop if transform.resizes_by_torch else v2.RandomResizedCrop
    mode = v2.InterpolationMode(transform.interpolation)
    scale, ratio = transform.scale or DEFAULT_SCALE, transform.ratio or DEFAULT_RATIO
    return crop(transform.size, scale, ratio, interpolation=mode)


def _center_crop(transform: ImageTransform) -> nn.Module:
    resize = transform.shorter_side
    crop = ResizeCenterCrop(resize, transform.size, v2.InterpolationMode(transform.interpolation))
    if not transform.resizes_by_torch:
        return crop
    thin = nn.Sequential(Decode(), crop, ToPixels(transform.channels))
    return FastResizeCenterCrop(resize, transform.size, transform.interpolation, thin)


class Decode(nn.Module):
    """Image of a file, decoded or not -> PIL image."""

    def forward(self, image: Image.Image | EncodedJpeg) -> Image.Image:
        return decoded(image)


class ToPixels(nn.Module):
    """PIL image -> uint8 `[channels, height, width]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, self.channels)
        return pixels.permute(2, 0, 1).contiguous()


class Normalize(nn.Module):
    """Pixels, uint8 `[..., channels, height, width]` on any device -> float32 `(pixel / 255 - mean) / std`.

    It takes two operations, whose results are the same on all devices; the transforms of torchvision for it take longer
    than the crop of a small image.
    """

    def __init__(self, transform: ImageTransform) -> None:
        super().__init__()
        self.mean, self.std = transform.mean, transform.std

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        # Tensors made while a model is traced, by torch.export perhaps, are fake: they must not stay in the cache.
        is_traced = torch.compiler.is_compiling() or isinstance(pixels, FakeTensor)
        gray_levels = _in_gray_levels if is_traced else _cached_gray_levels
        return (pixels - gray_levels(self.mean, pixels.device)).div_(gray_levels(self.std, pixels.device))


def _in_gray_levels(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return (255 * torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)).to(device)


_cached_gray_levels = cache(_in_gray_levels)  # a copy to a GPU for each micro-batch would make the host wait


def normalized(images: torch.Tensor, transform: ImageTransform) -> torch.Tensor:
    """Images `[..., channels, height, width]`: uint8 pixels as float32 by :class:`Normalize`, others as they are."""
    return Normalize(transform)(images) if images.dtype == torch.uint8 else images


def without_normalization(transform: nn.Sequential) -> nn.Sequential:
    """The steps of an image transform that give pixels, uint8."""
    return transform[:-1] if isinstance(transform[-1], Normalize) else transform


class LimitSize(nn.Module):
    """Reduce an image, with its aspect ratio, until its longer side is at most `longest`; never enlarge it."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def forward(self, image: Image.Image) -> Image.Image:
        reduced = image.copy()  # `thumbnail` works in place, and the image may be cached
        reduced.thumbnail((self.longest, self.longest), Image.Resampling.LANCZOS)
        return reduced


class ResizeCenterCrop(nn.Module):
    """Resize the shorter side to `resize` and crop the center, a square of `size`.

    Of an image with a large aspect ratio only the region of the crop is resized; resizing a whole image of 1 x 60,000
    pixels would take gigabytes.
    """

    def __init__(self, resize: int, size: int, interpolation: v2.InterpolationMode) -> None:
        super().__init__()
        self.resize, self.size = resize, size
        self.whole = nn.Sequential(v2.Resize(resize, interpolation=interpolation), v2.CenterCrop(size))
        self.resample = Image.Resampling[interpolation.name]

    def forward(self, image: Image.Image) -> Image.Image:
        if max(image.size) <= MAX_ASPECT_RATIO * min(image.size):
            resized: Image.Image = self.whole(image)
            return resized
        # PIL holds the box in float32, too coarse for such a long side, so the image is first cropped to whole pixels.
        (left, right, x0, x1), (top, bottom, y0, y1) = (self._span(length, min(image.size)) for length in image.size)
        region = image.crop((left, top, right, bottom))
        return region.resize((self.size, self.size), self.resample, (x0 - left, y0 - top, x1 - left, y1 - top))

    def _span(self, length: int, shorter: int) -> tuple[int, int, float, float]:
        """Along one side: first and last pixel that the interpolation needs, and start and end of the crop."""
        resized = int(self.resize * length / shorter)
        scale = length / resized
        start = round((resized - self.size) / 2) * scale
        end = min(start + self.size * scale, length)
        support = 2 * max(scale, 1.0)  # of bicubic interpolation, the widest
        return max(math.floor(start - support), 0), min(math.ceil(end + support), length), start, end


class RandomRotation(nn.Module):
    """Rotate an image about its center by a random angle; the corners get the mean color of its border, not black."""

    def __init__(self, degrees: float, interpolation: str) -> None:
        super().__init__()
        self.degrees = degrees
        self.resample = Image.Resampling[interpolation.upper()]

    def forward(self, image: Image.Image) -> Image.Image:
        angle = float(torch.empty(()).uniform_(-self.degrees, self.degrees))
        pixels = np.asarray(image)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        color = tuple(np.rint(border.mean(axis=0, keepdims=border.ndim == 1)).astype(int).tolist())
        return image.rotate(angle, self.resample, fillcolor=color)
