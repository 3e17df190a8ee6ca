"""Images for networks: the rows of a table are read, transformed and mapped in batches; unreadable ones are skipped."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import Self

from vicinal.data.columns import row_boxes
from vicinal.data.images.decoding import REDUCTIONS, EncodedJpeg, crop_to_box, decoded, open_image
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import listed, log, track
from vicinal.utils.errors import InputError
from vicinal.utils.threads import thread_pool

Batch = dict[str, Any]
"""The tensors `images` and `rows` of a batch, and `labels` if the table has labels; whole images are a list."""
CPU_BATCH = 8
"""Images that a CPU embeds at a time: the activations of more do not stay in its caches."""

Loaded = TypeVar("Loaded")
Pixels: TypeAlias = tuple[Tensor, dict[int, str]]
"""The pixels of readable images, uint8 `[b, channels, height, width]`, and the errors of the others by their rows."""
Values = TypeVar("Values", Tensor, Floats)
Mapped: TypeAlias = tuple[Floats, dict[int, str]]
"""The result of a function for the readable images of a batch, and the errors of the others by their rows."""


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
            read now. Functions that embed images can skip them too, and then read each image once.

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
        """Some of the images, without reading them again."""
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
        """Decode some images on the CPU, at a reduced size: the errors of unreadable ones, by their rows."""

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


@dataclass(frozen=True)
class EmbeddedBatch:
    """The embeddings, float32 `[b, dim]`, of the readable images of consecutive rows, and the errors of the others.

    The engine is the one that computed them, see :mod:`vicinal.export.exported_embedder`.
    """

    first_row: int
    vectors: Floats
    errors: dict[int, str] = field(default_factory=dict)
    engine: str = "torch"


class PixelBatches(Dataset[Any]):
    """The pixels of images with the transform for testing, before they are normalized.

    Item `i` is the batch `i`: the pixels of its readable images, and the errors of the others by their rows. Whole
    images differ in size, so that their batches must have one image.
    """

    def __init__(self, dataset: ImageDataset, batches: Sequence[Iterable[int]]) -> None:
        from vicinal.data.images.image_ops import without_normalization  # imports torchvision

        self.dataset, self.batches = dataset, batches
        self._transform = without_normalization(dataset.transform.test())

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Pixels:
        images, errors = {}, {}
        for row in self.batches[index]:
            try:
                images[row] = self.dataset.load(row, self._transform)
            except InputError as error:
                errors[row] = str(error).removeprefix(f"row {row}: ")
        return torch.stack([*images.values()]) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8), errors


def row_batches(dataset: ImageDataset, rows: range, batch_size: int) -> list[range]:
    """Consecutive rows in batches; whole images, which differ in size, are batches of one."""
    size = batch_size if dataset.transform.longest is None else 1
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def load_pixels(
    batches: PixelBatches,
    device: str | torch.device,
    num_workers: int = 0,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[Pixels]:
    """Load batches, in `num_workers` other processes if there are any; for a GPU, into page-locked memory."""
    pin_memory = torch.device(device).type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        batches, batch_size=None, num_workers=num_workers, pin_memory=pin_memory, worker_init_fn=worker_init_fn
    )
    yield from loader


def all_readable(batch: tuple[Values, dict[int, str]]) -> Values:
    """The pixels of a batch, or the results for them."""
    pixels, errors = batch
    for row, error in errors.items():
        raise UnreadableImageError(f"row {row}: {error}")
    return pixels


def skip_unreadable(
    batches: Iterable[tuple[Values, dict[int, str]]], errors: dict[int, InputError]
) -> Iterator[Values]:
    """The pixels of the readable images of all batches, or the results for them; errors are added by their rows."""
    for pixels, of_batch in batches:
        errors.update({row: UnreadableImageError(f"row {row}: {error}") for row, error in of_batch.items()})
        if len(pixels):
            yield pixels


def without_unreadable(dataset: ImageDataset, batches: Iterable[tuple[Values, dict[int, str]]]) -> Iterator[Values]:
    """As :func:`skip_unreadable`; at the end the dataset leaves out the other images."""
    errors: dict[int, InputError] = {}
    yield from skip_unreadable(batches, errors)
    dataset.leave_out(errors)


def map_pixels(
    function: Callable[[Tensor], Floats],
    batches: PixelBatches,
    device: str | torch.device,
    num_workers: int = 0,
    in_threads: bool = True,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[Mapped]:
    """Apply a function to the pixels [b, channels, height, width] of each batch, in order.

    The cores of a CPU are divided as follows. Without worker processes, as many threads as PyTorch uses each take a
    batch, decode it, and compute the function with one thread, if `in_threads` allows it. Decoding and computing
    overlap, and no core has two threads. With worker processes, these decode, and the function is computed here with
    all threads of PyTorch. With another device, and for a single batch, this process decodes if there are no workers.
    """

    def mapped(batch: Pixels) -> Mapped:
        pixels, errors = batch
        return (function(pixels) if len(pixels) else np.empty((0, 0), np.float32)), errors

    num_threads = torch.get_num_threads()
    is_divided = in_threads and torch.device(device).type == "cpu" and num_workers == 0
    if not is_divided or min(num_threads, len(batches)) < 2:
        yield from map(mapped, load_pixels(batches, device, num_workers, worker_init_fn))
        return
    pool = ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Mapped]] = deque()
    try:
        for index in range(len(batches)):
            waiting.append(pool.submit(lambda index: mapped(batches[index]), index))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)  # threads that start later take the last number that was set
