"""The decoding processes: they open the images of clients, with a limit of memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vicinal.data.columns import Box
from vicinal.data.images.decoding import EncodedJpeg, crop_to_box, decoded, open_image, thumbnail
from vicinal.data.images.formats import CountedFile
from vicinal.utils.errors import InputError

JPEG_QUALITY = 85
TOO_MUCH_MEMORY = "it needs more memory than an image may take"
Pixels = npt.NDArray[np.uint8]
Prepare = Callable[[Image.Image | EncodedJpeg], Pixels]


@dataclass(frozen=True)
class ImageTask:
    """Prepare an image for the model."""

    data: bytes
    box: Box | None = None  # the part to take, in pixels of the upright image
    is_local: bool = False  # whether it is prepared for local features


@dataclass(frozen=True)
class ThumbnailTask:
    """Make a JPEG of an image file, with `size` pixels along its longer side, or fewer if it has fewer.

    `changed` is the time of the file, which tells the pictures of a changed file apart.
    """

    path: str
    box: Box | None
    size: int
    changed: int = 0


@dataclass(frozen=True)
class PreparedImage:
    """An image as the model takes it, before it is normalized, and the name of its format, such as JPEG."""

    pixels: Pixels
    format: str


@dataclass(frozen=True)
class Failure:
    """The reason why an image is refused."""

    reason: str


class Decoder:
    """Performs tasks, one after the other; its folder, which holds the file being decoded, is deleted with it."""

    def __init__(
        self, prepare: Prepare | None, max_pixels: int, channels: int = 3, prepare_local: Prepare | None = None
    ) -> None:
        self.prepare, self.max_pixels, self.channels = prepare, max_pixels, channels
        self.prepare_local = prepare_local
        self._folder = tempfile.TemporaryDirectory(prefix="vicinal-")
        self.folder = self._folder.name

    def perform(self, task: ImageTask | ThumbnailTask) -> PreparedImage | bytes | Failure:
        """Perform a task; for a bad image the result is a :class:`Failure`."""
        try:
            return self._prepared(task) if isinstance(task, ImageTask) else _thumbnail(task)
        except InputError as error:
            if MemoryError.__name__ in str(error):
                return Failure(TOO_MUCH_MEMORY)
            name = self._file if isinstance(task, ImageTask) else Path(task.path)
            return Failure(str(error).replace(f"{name}: ", ""))
        except (MemoryError, RuntimeError):  # the latter of torch
            return Failure(TOO_MUCH_MEMORY)

    @property
    def _file(self) -> Path:
        return Path(self.folder) / "image"

    def _prepared(self, task: ImageTask) -> PreparedImage:
        self._file.write_bytes(task.data)
        try:
            name = self._format()
            with open_image(self._file, self.channels) as image:
                part = image if task.box is None else crop_to_box(decoded(image), task.box, self._file)
                prepare = self.prepare_local if task.is_local else self.prepare
                pixels = prepare(part) if prepare is not None else np.empty(0, np.uint8)
            return PreparedImage(pixels, name)
        finally:
            self._file.unlink()

    def _format(self) -> str:
        """The name of the format; images of too many pixels are refused before anything is decoded."""
        try:
            with CountedFile(self._file) as file, Image.open(file) as image:
                (width, height), name = image.size, image.format or ""
        except MemoryError:
            raise
        except Exception:  # which `open_image` explains
            return ""
        if width * height > self.max_pixels:
            raise InputError(
                f"{self._file}: {width:,} x {height:,} pixels are too many; at most {self.max_pixels:,} are read"
            )
        return name


def _thumbnail(task: ThumbnailTask) -> bytes:
    buffer = BytesIO()
    thumbnail(task.path, task.box, task.size).save(buffer, "JPEG", quality=JPEG_QUALITY, icc_profile=None, exif=b"")
    return buffer.getvalue()


def work(connection: Connection, make: Preparation | None, max_pixels: int, max_memory: int) -> None:
    """Perform the tasks that come, until the other side closes the connection.

    Imports do not count as memory of an image: `max_memory` bytes may be allocated after them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the main process finishes requests first
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare, channels = (None, 3) if make is None else (make(), make.channels)
    local = make.local() if isinstance(make, TorchPreparation) else None
    for each in filter(None, (prepare, local)):
        if "torch" in sys.modules:  # the other cores are for the model, and for the other processes
            sys.modules["torch"].set_num_threads(1)
        each(Image.new("RGB" if channels == 3 else "L", (64, 64)))  # first allocations
    decoder = Decoder(prepare, max_pixels, channels, local)
    _limit_memory(max_memory)
    connection.send(decoder.folder)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(decoder.perform(task))


def _limit_memory(max_bytes: int) -> None:
    """Limit the bytes that this process may still allocate, where the system supports that."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not on Linux
        return
    limit = pages * os.sysconf("SC_PAGE_SIZE") + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@dataclass(frozen=True)
class TorchPreparation:
    """Makes the transform of a model for testing, without normalization, which is faster for a whole batch."""

    transform: Any
    local_transform: Any = None

    @property
    def channels(self) -> int:
        return int(self.transform.channels)

    def __call__(self) -> Prepare:
        return _preparation(self.transform)

    def local(self) -> Prepare | None:
        return None if self.local_transform is None else _preparation(self.local_transform)


def _preparation(transform: Any) -> Prepare:
    to_pixels = transform.test()[:-1]

    return lambda image: to_pixels(image).numpy()


@dataclass(frozen=True)
class PillowPreparation:
    """Makes a function that decodes an image in full size, uint8 [height, width, channels]."""

    channels: int = 3

    def __call__(self) -> Prepare:
        return lambda image: np.array(decoded(image))


Preparation = TorchPreparation | PillowPreparation
"""Creates, in a decoding process, the function from images to pixels of a model; it can be pickled."""
