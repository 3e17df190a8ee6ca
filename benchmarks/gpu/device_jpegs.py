"""JPEGs decoded on the device: whether their pixels are those of the CPU, but for the rounding of nvJPEG."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from PIL import ExifTags, Image
from torch import Tensor

from benchmarks.gpu.rows import Numbers
from benchmarks.images import picture
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches.pixel_batches import PixelBatches, all_readable, load_pixels
from vicinal.data.settings import Decoding

SIDES = ((96, 71), (80, 120), (203, 155))
ORIENTATIONS = range(1, 9)


@contextmanager
def jpeg_decoder(device: torch.device) -> Iterator[None]:
    """A context in which libjpeg decodes in the place of nvJPEG if the device is no GPU."""
    if device.type == "cuda":
        yield
        return
    with patch("vicinal.data.images.nvjpeg.check_nvjpeg"):
        yield


def compare_pixels(subsampling: int, allowed: float, _: int, device: torch.device) -> Numbers:
    """Of images in all orientations, baseline and progressive, in color and gray.

    Args:
        subsampling: That of colors, as Pillow has it: 0 for 4:4:4, 2 for 4:2:0.
        allowed: Mean difference of the pixels of an image, in gray levels.
        device: Where they are decoded.

    Returns:
        The mean difference in the worst image.
    """
    with tempfile.TemporaryDirectory() as folder, jpeg_decoder(device):
        dataset = ImageDataset(_table(Path(folder), subsampling), ImageTransform(size=64))
        expected, found = (_pixels(dataset, decoding, device) for decoding in ("workers", "device"))
    largest = float((found.cpu().double() - expected.double()).abs().mean(dim=(1, 2, 3)).max())
    return {"passed": found.device.type == device.type and largest <= allowed, "difference": largest}


def _pixels(dataset: ImageDataset, decoding: Decoding, device: torch.device) -> Tensor:
    batches = PixelBatches(dataset, [range(len(dataset))], decoding)
    return all_readable(next(load_pixels(batches, device if decoding == "device" else "cpu")))


def _table(folder: Path, subsampling: int) -> Table:
    """The files of all kinds, and a row for each."""
    paths = []
    for number, (width, height) in enumerate(SIDES):
        image = picture(width, height, number)
        for orientation in ORIENTATIONS:
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            paths.append(str(folder / f"{number}-{orientation}.jpg"))
            shown = image.convert("L") if orientation == 1 and number == 1 else image
            shown.save(paths[-1], exif=exif, quality=90, subsampling=subsampling, progressive=orientation % 2 == 0)
    return Table(pd.DataFrame({"path": paths}))
