"""The formats of image files by their suffixes, HEIC among them, and how their files are opened for Pillow."""

from __future__ import annotations

import io
import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)

UNREAD_SUFFIXES = (
    *(".arw", ".cr2", ".cr3", ".dng", ".eps", ".heic", ".heif", ".ico", ".jxl", ".mov", ".mp4", ".nef", ".orf"),
    *(".pdf", ".psd", ".raf", ".raw", ".rw2", ".svg"),
)
HEIF_SUFFIXES = (".heic", ".heif")
HEIF_NEEDS = "HEIC needs the package pillow-heif: pip install 'vicinal[heif]', or convert to JPEG"
MIN_READS, BYTES_PER_READ = 20_000, 100  # GIF, which has the smallest parts of all formats, needs one per 128 bytes


@cache
def reads_heif() -> bool:
    """Whether images in HEIC can be read."""
    return find_spec("pillow_heif") is not None


def register_heif() -> tuple[str, ...]:
    """Let Pillow open HEIC, if the package is installed; returns the names of the formats that this adds."""
    if not reads_heif():
        return ()
    import_module("pillow_heif").register_heif_opener()
    return ("HEIF",)


def is_image_file(path: str | Path) -> bool:
    """Whether the name ends like that of an image file."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and reads_heif())


class CountedFile(io.BufferedReader):
    """A file that may be read as often as its size allows.

    Pillow reads headers part by part, such as the texts of a PNG. A file that is nothing but empty parts would keep it
    busy for a second per megabyte.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(io.FileIO(path))
        self._reads_left = MIN_READS + os.fstat(self.fileno()).st_size // BYTES_PER_READ

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes, as every file."""
        self._reads_left -= 1
        if self._reads_left < 0:
            raise OSError("it has too many parts for its size")
        return super().read(size)
