"""The thumbnails of a page: every image once, referred to by number, in a given number of bytes."""

from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from PIL import Image, ImageOps

from vicinal.data.decoding import read_image
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.report.page.markup import counted
from vicinal.report.page.paths import shown_paths

LARGE, SMALL = 320, 96  # longer side in pixels: of what can be enlarged, and of what is on the map
BUDGET = 11 * 2**20  # bytes of all thumbnails in base 64, so that a page stays below 15 MB
QUALITY, LEAST = 75, 16
READERS = 4


class Pictures:
    """Images that a page shows, numbered from 0 in the order in which they are asked for.

    Images are the same if their paths are; without paths, if the rows of one table are.

    Example:
        >>> import pandas as pd
        >>> pictures, table = Pictures(), Table(pd.DataFrame({"label": ["a", "b"]}))
        >>> [pictures.number(table, row) for row in (1, 0, 1)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._images: list[dict[str, Any]] = []
        self._paths: list[str | None] = []
        self._sizes: list[int] = []
        self.unreadable = 0

    def number(self, table: Table, row: int, size: int = LARGE) -> int:
        """The number of a row's image; its thumbnail will have the largest size that was asked for."""
        key = table.paths[row] if table.has("path") else (id(table), row)
        if key not in self._numbers:
            self._numbers[key] = len(self._images)
            self._paths.append(table.paths[row] if table.has("path") else None)
            self._images.append({"label": str(table.frame["label"].iloc[row]), "file": f"row {row}"})
            self._sizes.append(size)
        number = self._numbers[key]
        self._sizes[number] = max(self._sizes[number], size)
        return number

    def __len__(self) -> int:
        return len(self._images)

    def encoded(self, budget: int | None = None) -> list[dict[str, Any]]:
        """All images as `label`, `file` and `src`: WebP in base 64, or None where there is no image that can be read.

        Files are named by their path within the folder that all are in.

        Args:
            budget: bytes for all thumbnails, which are made smaller until they fit; None: :data:`BUDGET`.
        """
        budget = BUDGET if budget is None else budget
        with ThreadPoolExecutor(READERS) as pool:
            thumbnails = list(pool.map(self._read, range(len(self))))
            self.unreadable = sum(
                path is not None and thumbnail is None for path, thumbnail in zip(self._paths, thumbnails, strict=True)
            )
            sources, scale = _sources(pool, thumbnails, 1.0), 1.0
            while (size := sum(map(len, filter(None, sources)))) > budget and scale * LARGE > LEAST:
                scale *= 0.95 * min((budget / size) ** 0.5, 1.0)
                sources = _sources(pool, thumbnails, scale)
        names = shown_paths(self._paths)
        return [
            {**image, "file": name or image["file"], "src": source}
            for image, name, source in zip(self._images, names, sources, strict=True)
        ]

    def notes(self) -> list[str]:
        """What is to be said of the images that were encoded: how many could not be read, if any."""
        count = self.unreadable
        return [f"{counted(count, 'image')} could not be read, and the page has frames in their place"] if count else []

    def _read(self, number: int) -> Image.Image | None:
        path, size = self._paths[number], self._sizes[number]
        return None if path is None else _thumbnail(path, size)


def _thumbnail(path: str, size: int) -> Image.Image | None:
    """The image in at most `size` x `size` pixels; None if it cannot be read."""
    try:
        image = _small_jpeg(path, size) or read_image(path)
    except InputError:
        return None
    image.thumbnail((size, size))
    return image


def _small_jpeg(path: str, size: int) -> Image.Image | None:
    """A colour JPEG decoded at a fraction of its size, many times faster; None for any other image."""
    if not os.path.isfile(path):  # a pipe would be waited for without end
        return None
    try:
        with Image.open(path) as image:
            if image.format != "JPEG" or image.mode != "RGB":
                return None
            image.draft("RGB", (2 * size, 2 * size))
            return ImageOps.exif_transpose(image)
    except Exception:  # read_image says what is wrong with it, or copes
        return None


def _sources(pool: ThreadPoolExecutor, thumbnails: list[Image.Image | None], scale: float) -> list[str | None]:
    return list(pool.map(lambda thumbnail: None if thumbnail is None else _source(thumbnail, scale), thumbnails))


def _source(thumbnail: Image.Image, scale: float) -> str:
    if scale < 1:
        thumbnail = thumbnail.resize([max(1, round(scale * side)) for side in thumbnail.size])
    buffer = BytesIO()
    thumbnail.save(buffer, "WEBP", quality=QUALITY, icc_profile=None, exif=b"", xmp=b"")  # pixels alone
    return base64.b64encode(buffer.getvalue()).decode("ascii")
