"""What an embedder can be asked to embed, brought into batches of image tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import pandas as pd
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader

from vicinal.data.decoding import convert_image
from vicinal.data.images import ImageDataset, TestBatches
from vicinal.data.table import Table
from vicinal.data.transforms import ImageTransform
from vicinal.errors import InputError

Images: TypeAlias = (
    Table | ImageDataset | Sequence[str | os.PathLike[str]] | Sequence[Image.Image] | Sequence[Tensor] | Tensor
)


def image_batches(
    source: Images,
    transform: ImageTransform,
    batch: int = 64,
    workers: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    pin_memory: bool = False,
) -> tuple[Iterable[Tensor], int]:
    """The batches of a source and how many there are.

    Args:
        source: A table; a dataset of images (its cache is used); a list of paths or of PIL images; transformed images
            as one tensor [n, C, H, W] or a list of [C, H, W].
        transform: Its test view is taken of everything but tensors.
        batch: Images a batch.
        workers: Processes that read files.
        on_error: What is done about a file that cannot be read; `skip` leaves it out.
        pin_memory: Put what is read into page-locked memory, from where an accelerator copies faster.

    Returns:
        Batches float [b, C, H, W], and their number.

    Raises:
        InputError: `source` is none of these, or its images do not go with `transform`.

    Example:
        >>> batches, number = image_batches([Image.new("L", (9, 9))] * 3, ImageTransform(size=8), batch=2)
        >>> number, [images.shape[0] for images in batches]
        (2, [2, 1])
    """
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"batch is {batch!r}; it must be at least 1")
    given: Any = source
    if isinstance(given, Tensor) or _all_are(given, Tensor):
        tensors = _checked_tensors(given, transform)
        return torch.split(tensors, batch), -(-len(tensors) // batch)
    if _all_are(given, Image.Image):
        return _picture_batches(given, transform, batch), -(-len(given) // batch)
    batches = TestBatches(_dataset(given, transform, on_error), batch)
    loader = DataLoader(batches, batch_size=None, num_workers=workers, pin_memory=pin_memory)
    return (item["images"] for item in loader), len(batches)


def _all_are(source: Any, kind: type) -> bool:
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, kind) for item in source)


def _dataset(source: Any, transform: ImageTransform, on_error: Literal["raise", "skip"]) -> ImageDataset:
    if isinstance(source, ImageDataset):
        if source.transform != transform:
            raise InputError("the dataset's transform is not the model's; make it with transform=model.transform")
        return source
    if not isinstance(source, Table):
        if not isinstance(source, (list, tuple)) or not all(isinstance(path, (str, os.PathLike)) for path in source):
            raise InputError(
                f"cannot embed {type(source).__name__}; give a Table, a list of paths, of PIL images or of tensors"
            )
        # As objects, for pandas' own text holds no name that is not UTF-8, which the table refuses by name.
        source = Table(pd.DataFrame({"path": [os.fspath(path) for path in source]}, dtype=object))
    return ImageDataset(source, transform, on_error=on_error)


def _picture_batches(pictures: Sequence[Image.Image], transform: ImageTransform, batch: int) -> Iterator[Tensor]:
    view = transform.test()
    for first in range(0, len(pictures), batch):
        chunk = pictures[first : first + batch]
        yield torch.stack(
            [view(_plain_picture(picture, row, transform.channels)) for row, picture in enumerate(chunk, first)]
        )


def _plain_picture(picture: Image.Image, row: int, channels: int) -> Image.Image:
    try:
        return convert_image(ImageOps.exif_transpose(picture), channels)
    except Exception as error:  # PIL decodes a file only now; decoders raise whatever a broken one drives them to
        raise InputError(f"image {row}: broken ({str(error) or type(error).__name__})") from error


def _checked_tensors(source: Tensor | Sequence[Tensor], transform: ImageTransform) -> Tensor:
    if not isinstance(source, Tensor):
        shapes = {tuple(tensor.shape) for tensor in source}
        if len(shapes) > 1:
            first, second, *_ = sorted(shapes)
            raise InputError(f"images of shapes {first} and {second} cannot be one batch; embed them one by one")
        source = torch.stack(list(source))
    if source.ndim != 4 or source.shape[1] != transform.channels or not source.is_floating_point():
        raise InputError(
            f"images of shape {tuple(source.shape)} and {source.dtype}; the model takes transformed images, "
            f"float [n, {transform.channels}, H, W]"
        )
    return source
