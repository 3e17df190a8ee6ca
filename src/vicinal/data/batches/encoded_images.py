"""Images that a process has read for a GPU to decode: JPEG files, what becomes of them, and pixels of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vicinal.data.images.decoding import EncodedJpeg
from vicinal.data.images.fast_resize import Crop, FastCrop

MAX_SCALE = 32
"""How many pixels, per side, become one on a GPU at most; for many more its kernel of antialiasing has no memory."""


class DevicePlan(NamedTuple):
    """What becomes of a JPEG on a device; all numbers are pixels unless they say otherwise.

    Attributes:
        row: The row of the image in its dataset.
        num_bytes: The length of the file; 0: the image is not one, and was decoded when it was read.
        stored_width: Its width, as it is stored.
        stored_height: Its height, as it is stored.
        orientation: How it is turned upright, 1 to 8 as in EXIF.
        left: The left edge of the part of the upright image that is resized.
        top: Its upper edge.
        right: Its right edge.
        bottom: Its lower edge.
        width: Its width when it is resized.
        height: Its height when it is resized.
        corner_left: The left edge of the square that is cut out of it.
        corner_top: The upper edge of that.
    """

    row: int
    num_bytes: int = 0
    stored_width: int = 0
    stored_height: int = 0
    orientation: int = 1
    left: int = 0
    top: int = 0
    right: int = 0
    bottom: int = 0
    width: int = 0
    height: int = 0
    corner_left: int = 0
    corner_top: int = 0


class EncodedImages(NamedTuple):
    """Images in a few tensors, since each that a process hands over takes a file descriptor.

    Attributes:
        files: uint8 `[bytes]`, the JPEG files, one after the other.
        plans: int64 `[n, 13]`, a :class:`DevicePlan` each.
        pixels: uint8 `[m, channels, size, size]`, those of the images that are no such files.
    """

    files: Tensor
    plans: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, images: Sequence[EncodedImage | Tensor], rows: Sequence[int]) -> EncodedImages:
        """Put images together, with their rows in the dataset."""
        encoded = [image for image in images if isinstance(image, EncodedImage)]
        content = bytearray().join(image.content for image in encoded)
        pixels = [image for image in images if isinstance(image, Tensor)]
        plans = [
            image.plan._replace(row=row) if isinstance(image, EncodedImage) else DevicePlan(row)
            for image, row in zip(images, rows, strict=True)
        ]
        return cls(
            torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8),
            torch.tensor(plans, dtype=torch.int64).view(len(plans), len(DevicePlan._fields)),
            torch.stack(pixels) if pixels else torch.empty(0, 0, 0, 0, dtype=torch.uint8),
        )

    def listed_plans(self) -> list[DevicePlan]:
        """The plans as numbers of Python."""
        return [DevicePlan(*numbers) for numbers in self.plans.tolist()]

    def split_files(self, plans: Sequence[DevicePlan]) -> list[Tensor]:
        """The files, uint8 `[bytes]` each."""
        return list(torch.split(self.files, [plan.num_bytes for plan in plans if plan.num_bytes]))


class EncodedImage(NamedTuple):
    """One image: the content of its file, and what becomes of it."""

    content: bytes
    plan: DevicePlan


class ImageEncoder:
    """Reads images for a device to decode: image of a file -> its file and what becomes of it, or else its pixels.

    Args:
        crop: The crop, which draws the same random numbers as where images are decoded when they are read.
    """

    def __init__(self, crop: FastCrop) -> None:
        self.crop = crop

    def __call__(self, image: Image.Image | EncodedJpeg) -> EncodedImage | Tensor:
        crop = self.crop.plan(*image.size)
        if crop is not None and isinstance(image, EncodedJpeg) and _is_in_reach(crop):
            content = image.file_for_device()
            if content is not None:
                return EncodedImage(content, _plan(image, crop, len(content)))
        return self.crop.cut(image, crop)


def _is_in_reach(crop: Crop) -> bool:
    left, top, right, bottom = crop.box
    return max((right - left) / crop.size[0], (bottom - top) / crop.size[1]) <= MAX_SCALE


def _plan(image: EncodedJpeg, crop: Crop, num_bytes: int) -> DevicePlan:
    x, y = (0, 0) if image.box is None else image.box[:2]
    left, top, right, bottom = crop.box
    box = (left + x, top + y, right + x, bottom + y)
    return DevicePlan(0, num_bytes, *image.stored_size, image.orientation, *box, *crop.size, *crop.corner)
