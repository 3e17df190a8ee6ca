"""The kinds of images that an embedder takes, as batches of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vicinal.data.batches.image_dataset import (
    CPU_BATCH,
    ImageDataset,
    PixelBatches,
    all_readable,
    load_pixels,
    map_pixels,
    row_batches,
    without_unreadable,
)
from vicinal.data.images.colors import convert_image, to_srgb
from vicinal.data.images.image_ops import without_normalization
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.utils.arguments import is_integer, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.console import track
from vicinal.utils.errors import InputError

Images: TypeAlias = (
    Table | ImageDataset | Sequence[str | os.PathLike[str]] | Sequence[Image.Image] | Sequence[Tensor] | Tensor
)


def image_batches(
    source: Images,
    transform: ImageTransform,
    batch_size: int = 64,
    num_workers: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    device: str | torch.device = "cpu",
) -> tuple[Iterable[Tensor], int]:
    """Divide images of any kind into batches, [b, C, H, W], and return these with their number.

    The transform's version for testing is applied to everything but tensors, which are transformed already and float;
    other batches are uint8 pixels, which the embedder normalizes on its device, read into page-locked memory for a GPU.
    Whole images, which differ in size, are batches of one. With `on_error="skip"` an image dataset, whose cache is
    used, leaves out unreadable images at the end.
    """
    _check_counts(batch_size, num_workers)
    given: Any = source
    if isinstance(given, Tensor) or _are_all_instances(given, Tensor):
        tensors = _check_tensors(given, transform)
        return torch.split(tensors, batch_size), -(-len(tensors) // batch_size)
    if _are_all_instances(given, Image.Image):
        batch_size = batch_size if transform.longest is None else 1
        return _transform_batches(given, transform, batch_size), -(-len(given) // batch_size)
    dataset = _dataset(given, transform)
    batches = PixelBatches(dataset, row_batches(dataset, range(len(dataset)), batch_size))
    pixels = load_pixels(batches, device, num_workers)
    is_skipping = on_error == "skip"  # during embedding; to look for unreadable images first would decode all twice
    return without_unreadable(dataset, pixels) if is_skipping else map(all_readable, pixels), len(batches)


def embed_images(
    embed_batch: Callable[[Tensor], Floats],
    source: Images,
    transform: ImageTransform,
    dim: int,
    *,
    batch_size: int,
    num_workers: int,
    on_error: Literal["raise", "skip"],
    device: str | torch.device,
    progress: bool,
    in_threads: bool,
) -> Floats:
    """Embed images of any kind by a function of batches, float32 [n, dim], in the order of `source`.

    `in_threads`: whether several threads may call the function; see
    :func:`~vicinal.data.batches.image_dataset.map_pixels`.
    """
    if not _is_read(source):
        batches, total = image_batches(source, transform, batch_size)
        parts: Iterable[Floats] = map(embed_batch, batches)
    else:
        _check_counts(batch_size, num_workers)
        dataset = _dataset(source, transform)
        is_divided = in_threads and torch.device(device).type == "cpu" and num_workers == 0
        rows = row_batches(dataset, range(len(dataset)), min(batch_size, CPU_BATCH) if is_divided else batch_size)
        mapped, total = map_pixels(embed_batch, PixelBatches(dataset, rows), device, num_workers, is_divided), len(rows)
        parts = without_unreadable(dataset, mapped) if on_error == "skip" else map(all_readable, mapped)
    return np.concatenate([np.empty((0, dim), np.float32), *track(parts, "embedding", total=total, show=progress)])


def _is_read(source: object) -> bool:
    """Whether images are read from files or a cache, rather than given as tensors or PIL images."""
    return not (
        isinstance(source, Tensor) or _are_all_instances(source, Tensor) or _are_all_instances(source, Image.Image)
    )


def _check_counts(batch_size: int, num_workers: int) -> None:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {shown(batch_size)}; it must be at least 1")
    if not is_integer(num_workers) or num_workers < 0:
        raise InputError(f"num_workers is {shown(num_workers)}; it must be a whole number from 0 up")


def _are_all_instances(source: Any, kind: type) -> bool:
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, kind) for item in source)


def _check_paths(source: Any) -> None:
    """Raise InputError unless the source is a list of paths; for a list, the message names the first other element."""
    is_list, place = isinstance(source, (list, tuple)), ""
    others = [each for each in enumerate(source) if not isinstance(each[1], (str, os.PathLike))] if is_list else []
    if is_list and not others:
        return
    if others:
        place, source = f" in element {others[0][0]} of the list", others[0][1]
    kind, hint = type(source).__name__, ""
    if isinstance(source, np.ndarray):
        hint = "; PIL.Image.fromarray(array) makes a picture of it"
    elif isinstance(source, bytes):
        hint = "; PIL.Image.open(io.BytesIO(content)) reads it"
    elif others and isinstance(source, (Image.Image, Tensor)):
        hint = "; all must be of one kind"
    raise InputError(f"cannot embed {kind}{place}; give a Table, a list of paths, of PIL images or of tensors{hint}")


def _dataset(source: Any, transform: ImageTransform) -> ImageDataset:
    if isinstance(source, ImageDataset):
        if source.transform.to_dict() != transform.to_dict():  # a saved model states its default
            raise InputError("the dataset's transform is not the model's; make it with transform=model.transform")
        return source
    if not isinstance(source, Table):
        _check_paths(source)
        # As objects, since pandas' string type cannot hold a name that is not UTF-8, which the table reports.
        source = Table(pd.DataFrame({"path": [os.fspath(path) for path in source]}, dtype=object))
    return ImageDataset(source, transform)


def _transform_batches(images: Sequence[Image.Image], transform: ImageTransform, batch_size: int) -> Iterator[Tensor]:
    to_pixels = without_normalization(transform.test())
    for start in range(0, len(images), batch_size):
        batch = enumerate(images[start : start + batch_size], start)
        yield torch.stack([to_pixels(_convert(image, row, transform.channels)) for row, image in batch])


def _convert(image: Image.Image, row: int, channels: int) -> Image.Image:
    try:
        return convert_image(to_srgb(ImageOps.exif_transpose(image)), channels)
    except Exception as error:  # PIL decodes a file only now, and decoders raise many types of errors
        raise InputError(f"image {row}: broken ({str(error) or type(error).__name__})") from error


def _check_tensors(source: Tensor | Sequence[Tensor], transform: ImageTransform) -> Tensor:
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
