"""Batches of the pixels of images, and of their embeddings, in which an unreadable image costs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vicinal.data.image_ops import without_normalization
from vicinal.data.images import ImageDataset
from vicinal.data.table import Table
from vicinal.data.transforms import ImageTransform
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError

Pixels = tuple[Tensor, dict[int, str]]
"""The pixels of readable images, uint8 `[b, channels, height, width]`, and the errors of the others by their rows."""


@dataclass(frozen=True)
class EmbeddedBatch:
    """The embeddings of consecutive rows of a table.

    Args:
        first_row: The first of these rows.
        vectors: float32 `[b, dim]`, of the readable images.
        errors: The errors of the others by their rows.
    """

    first_row: int
    vectors: Floats
    errors: dict[int, str] = field(default_factory=dict)


class PixelBatches(Dataset[Pixels]):
    """The pixels of images with the transform for testing, before they are normalized.

    Args:
        table: The images.
        transform: Their transform. Whole images differ in size, so their batches must have one image.
        batches: The rows of each batch.

    Item `i` is the batch `i`: the pixels of its readable images, and the errors of the others by their rows.

    Example:
        >>> import pandas as pd, tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (9, 9)).save(f"{folder}/a.png")
        ...     table = Table(pd.DataFrame({"path": ["a.png", "lost.png"]}), root=folder)
        ...     pixels, errors = PixelBatches(table, ImageTransform(size=8), [range(2)])[0]
        >>> pixels.shape, list(errors)
        (torch.Size([1, 3, 8, 8]), [1])
    """

    def __init__(self, table: Table, transform: ImageTransform, batches: Sequence[Iterable[int]]) -> None:
        self.batches = batches
        self._dataset = ImageDataset(table, transform)
        self._to_pixels = without_normalization(transform.test())

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Pixels:
        return _read_pixels(self._dataset, self.batches[index], self._to_pixels)


def _read_pixels(dataset: ImageDataset, rows: Iterable[int], to_pixels: Callable[..., Tensor]) -> Pixels:
    images, errors = [], {}
    for row in rows:
        try:
            images.append(dataset.load(row, to_pixels))
        except InputError as error:
            errors[row] = str(error).removeprefix(f"row {row}: ")
    return torch.stack(images) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8), errors
