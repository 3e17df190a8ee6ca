"""The thumbnails of a page: every image is stored once and referred to by its number, within a budget of bytes."""

from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image

from vicinal.data.boxes import Box, row_boxes
from vicinal.data.images.thumbnails import thumbnail
from vicinal.data.table import Table
from vicinal.report.page.paths import relative_paths
from vicinal.utils.errors import InputError
from vicinal.utils.wording import counted

LARGE, SMALL = 320, 96  # longer side in pixels: of images that can be enlarged, and of images on the map only
MAX_BYTES = 11 * 2**20  # of all thumbnails in base 64, so that a page stays below 15 MB
QUALITY, MIN_SIDE = 75, 16
NUM_THREADS = 4


def image_labels(table: Table) -> list[str]:
    """What is written below each image: its label, or without labels the name of its file or the number of its row.

    Example:
        >>> import pandas as pd
        >>> image_labels(Table(pd.DataFrame({"path": ["/photos/a.png"]})))
        ['a.png']
    """
    if table.has("label"):
        return [str(label) for label in table.frame["label"]]
    if table.has("path"):
        return [os.path.basename(path) for path in table.paths]
    return [f"row {row}" for row in range(len(table))]


class _Rows(NamedTuple):
    """What is known of the images of a table; the table is kept, so that its id stays its own."""

    table: Table
    labels: list[str]
    boxes: list[Box | None]


class Thumbnails:
    """Collects the images that a page shows and numbers them from 0, in the order in which they are first shown.

    Two images are the same if their paths and boxes are equal; without paths, if they are the same row of the same
    table.

    Attributes:
        num_unreadable: the images that could not be read when they were encoded.

    Example:
        >>> import pandas as pd
        >>> thumbnails, table = Thumbnails(), Table(pd.DataFrame({"label": ["a", "b"]}))
        >>> [thumbnails.number(table, row) for row in (1, 0, 1)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._tables: dict[int, _Rows] = {}
        self._numbers: dict[object, int] = {}
        self._images: list[dict[str, Any]] = []
        self._paths: list[str | None] = []
        self._boxes: list[Box | None] = []
        self._sizes: list[int] = []
        self.num_unreadable = 0

    def number(self, table: Table, row: int, size: int = LARGE) -> int:
        """The number of a row's image; its thumbnail has the largest size that is asked for."""
        key = table.image_keys[row] if table.has("path") else (id(table), row)
        if key not in self._numbers:
            rows = self._rows(table)
            self._numbers[key] = len(self._images)
            self._paths.append(table.paths[row] if table.has("path") else None)
            self._boxes.append(rows.boxes[row])
            self._images.append({"label": rows.labels[row], "file": f"row {row}"})
            self._sizes.append(size)
        number = self._numbers[key]
        self._sizes[number] = max(self._sizes[number], size)
        return number

    def labels(self, table: Table) -> list[str]:
        """The labels of all images of a table, see :func:`image_labels`."""
        return self._rows(table).labels

    def _rows(self, table: Table) -> _Rows:
        if id(table) not in self._tables:
            self._tables[id(table)] = _Rows(table, image_labels(table), row_boxes(table.frame))
        return self._tables[id(table)]

    def __len__(self) -> int:
        return len(self._images)

    def encoded(self, budget: int | None = None) -> list[dict[str, Any]]:
        """Encode all images.

        Args:
            budget: bytes for all thumbnails, which are made smaller until they fit; by default :data:`MAX_BYTES`.

        Returns:
            For each image its `label`, its `file` (the path within the folder that all images are in) and `src` (WebP
            in base 64, or None if there is no image that can be read).
        """
        budget = MAX_BYTES if budget is None else budget
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            thumbnails = list(pool.map(self._read, range(len(self))))
            self.num_unreadable = sum(
                path is not None and thumbnail is None for path, thumbnail in zip(self._paths, thumbnails, strict=True)
            )
            sources, scale = _sources(pool, thumbnails, 1.0), 1.0
            while (size := sum(map(len, filter(None, sources)))) > budget and scale * LARGE > MIN_SIDE:
                scale *= 0.95 * min((budget / size) ** 0.5, 1.0)
                sources = _sources(pool, thumbnails, scale)
        names = relative_paths(self._paths)
        return [
            {**image, "file": name or image["file"], "src": source}
            for image, name, source in zip(self._images, names, sources, strict=True)
        ]

    def notes(self) -> list[str]:
        """A remark about the images that could not be read, if there are any."""
        count = self.num_unreadable
        return [f"{counted(count, 'image')} could not be read, and the page has frames in their place"] if count else []

    def _read(self, number: int) -> Image.Image | None:
        path, size = self._paths[number], self._sizes[number]
        return None if path is None else _thumbnail(path, self._boxes[number], size)


def _thumbnail(path: str, box: Box | None, size: int) -> Image.Image | None:
    """The image in at most `size` x `size` pixels; None if it cannot be read."""
    try:
        return thumbnail(path, box, size)
    except InputError:
        return None


def _sources(pool: ThreadPoolExecutor, thumbnails: list[Image.Image | None], scale: float) -> list[str | None]:
    return list(pool.map(lambda thumbnail: None if thumbnail is None else _source(thumbnail, scale), thumbnails))


def _source(thumbnail: Image.Image, scale: float) -> str:
    if scale < 1:
        thumbnail = thumbnail.resize([max(1, round(scale * side)) for side in thumbnail.size])
    buffer = BytesIO()
    thumbnail.save(buffer, "WEBP", quality=QUALITY, icc_profile=None, exif=b"", xmp=b"")  # pixels alone
    return base64.b64encode(buffer.getvalue()).decode("ascii")
