"""Images for networks: the rows of a table are read, transformed and collated into batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from PIL import Image
from typing_extensions import Self

from vicinal.data.boxes import crop_to_box, row_boxes
from vicinal.data.images.decoding import REDUCTIONS, EncodedJpeg, decoded, open_image
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.console import listed, log, track
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import derive_seed
from vicinal.utils.threads import thread_pool

Batch = dict[str, Any]
"""The tensors `images` and `rows` of a batch, and `labels` if the table has labels; whole images are a list."""


Loaded = TypeVar("Loaded")


class UnreadableImageError(InputError):
    """An image cannot be read. The message is one line, although a DataLoader prepends the traceback of its worker."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rstrip().splitlines()[-1].removeprefix(f"{__name__}.{type(self).__name__}: "))


class NoReadableImageError(InputError):
    """Unreadable images are to be skipped, and all of them are unreadable."""


class ImageDataset:
    """The images of a table, cropped to their bounding boxes.

    Args:
        table: A table with paths; rows with `x_1`, `y_1`, `x_2` and `y_2` are parts of images.
        transform: The transform of the images; its `channels` also determine whether they are read as RGB or grayscale.
        cache: Decode all images now, in full size, and keep them in memory, with one byte per pixel for grayscale and
            four for RGB. Large JPEGs then differ slightly from those of files that `transform.fast` reduces.
        on_error: What to do with an image that cannot be read: `raise` an error; or `skip` it, for which all images are
            read now. What embeds images skips them too, and then reads each once.

    Raises:
        InputError: An image cannot be read, with its row and path; or none can.

    Attributes:
        table: The rows that can be read. Row numbers elsewhere in this class refer to it.
        skipped: The rows of the original table that were skipped.

    Example:
        >>> import pandas as pd, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (9, 9)).save(f"{folder}/a.png")
        ...     table = Table(pd.DataFrame({"path": ["a.png", "lost.png"]}), root=folder)
        ...     dataset = ImageDataset(table, ImageTransform(size=8), on_error="skip")
        ...     dataset.skipped, dataset.read(0).size
        ([1], (9, 9))
    """

    def __init__(
        self, table: Table, transform: ImageTransform, cache: bool = False, on_error: Literal["raise", "skip"] = "raise"
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error is {on_error!r}; it can be raise or skip")
        self.table = table
        self.transform = transform
        self.skipped: list[int] = []
        self._paths, self._boxes = table.paths, row_boxes(table.frame)
        self._images: list[Image.Image] | None = None
        if cache:
            self._keep_all(skip=on_error == "skip")
        elif on_error == "skip":
            self.leave_out(self.unreadable(range(len(self))))

    def __len__(self) -> int:
        return len(self.table)

    def subset(self, rows: Integers) -> Self:
        """Some of the images, none of which is read again."""
        part = copy.copy(self)
        part.table, part.skipped = self.table.take(rows), []
        part._paths, part._boxes = part.table.paths, row_boxes(part.table.frame)
        part._images = None if self._images is None else [self._images[row] for row in rows]
        return part

    def read(self, row: int) -> Image.Image:
        """Read the image of a row, of mode RGB or L. Do not modify it, since it may be cached.

        Raises:
            UnreadableImageError: The image cannot be read, with its row and path.
        """
        return self.load(row, decoded)

    def load(self, row: int, transform: Callable[[Image.Image | EncodedJpeg], Loaded]) -> Loaded:
        """The transformed image of a row. The transform decodes a JPEG itself, which takes less time at a smaller size.

        Raises:
            UnreadableImageError: The image cannot be read, with its row and path.
        """
        if self._images is not None:
            return transform(self._images[row])
        try:
            path, box = self._paths[row], self._boxes[row]
            with open_image(path, self.transform.channels) as image:
                return transform(crop_to_box(image, box, path))
        except InputError as error:
            raise UnreadableImageError(f"row {row}: {error}") from None

    def unreadable(self, rows: range) -> dict[int, InputError]:
        """Decode some images on the CPU, at a reduced size: the errors of those that cannot be read, by their rows."""

        def attempt(row: int) -> InputError | None:
            try:
                self.load(row, partial(decoded, max_reduction=REDUCTIONS[0]))
            except InputError as error:
                return error
            return None

        results = zip(rows, _in_threads(attempt, rows), strict=True)
        return {row: error for row, error in results if error is not None}

    def _keep_all(self, skip: bool) -> None:
        def attempt(row: int) -> Image.Image | InputError:
            try:
                return self.read(row)
            except InputError as error:
                if not skip:
                    raise
                return error

        results = list(_in_threads(attempt, range(len(self))))
        self.leave_out({row: result for row, result in enumerate(results) if isinstance(result, InputError)})
        self._images = [result for result in results if isinstance(result, Image.Image)]

    def leave_out(self, errors: dict[int, InputError]) -> None:
        """Leave out the rows that cannot be read, which are logged with their errors.

        Raises:
            InputError: No other row is left.
        """
        if not errors:
            return
        if len(errors) == len(self):
            raise NoReadableImageError(f"none of the {len(self)} images can be read; {next(iter(errors.values()))}")
        log(f"left out {len(errors):,} of {len(self):,} images that cannot be read:")
        for line in listed([str(error) for error in errors.values()]):
            log(line)
        original = np.delete(np.arange(len(self) + len(self.skipped)), self.skipped)
        self.skipped = sorted([*self.skipped, *original[[*errors]].tolist()])
        self.table = self.table.take([row for row in range(len(self)) if row not in errors])
        self._paths, self._boxes = self.table.paths, row_boxes(self.table.frame)


def _in_threads(function: Callable[[int], Loaded], rows: range) -> Iterator[Loaded]:
    with thread_pool() as pool:
        yield from track(pool.map(function, rows), "reading images", total=len(rows))


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """In this context, torch's CPU generator is seeded by these numbers; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the generators of the accelerators.
        torch.default_generator.manual_seed(derive_seed(*numbers))
        yield
