"""Images on a page: each is embedded once, small, and shown in frames beside its neighbors."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image

from vicinal.analysis import QueryNeighbors
from vicinal.data.columns import Box, row_boxes
from vicinal.data.images.decoding import thumbnail
from vicinal.data.table import Table
from vicinal.report.page.markup import Markup, breakable, element, joined, relative_paths
from vicinal.retrieval.reranking.base import Reranking
from vicinal.utils.console import counted, shorten
from vicinal.utils.errors import InputError

MATCH, MISMATCH = "✓", "✗"  # marks for readers who cannot tell green from red
KEY = f"{MATCH} solid green: of the query's class · {MISMATCH} dashed red: of another · numbers: "
MAX_NEIGHBORS = 8  # shown of a query
PHONE_FRAMES = 4  # beside each other on a phone: a query and three neighbors; see the style sheet
MAX_LABEL_LENGTH = 36  # characters below an image
LARGE, SMALL = 320, 96  # longer side in pixels: of images that can be enlarged, and of images on the map only
MAX_BYTES = 11 * 2**20  # of all thumbnails in base 64, so that a page stays below 15 MB
QUALITY, MIN_SIDE = 75, 16
NUM_THREADS = 4


class ImageFrames:
    """Makes the frames of the images of one table, with labels, paths or both.

    Without labels the names of files are in their place, and no frame says whether a neighbor is right; without paths a
    frame shows the row's number in place of an image.
    """

    score, numbers = "similarity", "cosine similarity"

    def __init__(self, thumbnails: Thumbnails, table: Table) -> None:
        self.thumbnails, self.table = thumbnails, table
        self.labels = thumbnails.labels(table)

    def frame(self, row: int, kind: str, mark: str, text: str) -> Markup:
        """An image in its frame, as an item of a list, with a few characters, the mark, below it.

        The kind, "query", "match", "mismatch" or "plain", is the color of the frame; the text describes the image to
        screen readers, and beside the enlarged image.
        """
        number = self.thumbnails.number(self.table, row)
        parts = [
            self._picture(row, number, text),
            element("span", mark, class_="mark"),
            element(
                "span",
                breakable(shorten(self.labels[row], MAX_LABEL_LENGTH)),
                class_="label",
                title=self.labels[row],
                dir="auto",
            ),
        ]
        return element(
            "li", element("button", *parts, type="button", class_=f"cell {kind}", data_view=number, data_note=text)
        )

    def _picture(self, row: int, number: int, text: str) -> Markup:
        if not self.table.has("path"):
            return element("span", f"row {row:,}", class_="nothing")
        kind = "class" if self.table.has("label") else "file"
        image = element("img", data_image=number, alt=f"{text}, {kind} {self.labels[row]}")
        return element("span", image, class_="picture")

    def data(self) -> dict[str, object]:
        """The data of the script, without the images."""
        return {}

    def query(self, row: int) -> Markup:
        return self.frame(row, "query", "query", "query")

    def neighbor(self, query: int, row: int, rank: int, similarity: float) -> Markup:
        """The frame of a neighbor, which shows whether it is of the query's class, if classes are known."""
        if not self.table.has("label"):
            text = f"neighbor {rank}, {self.score} {similarity:.3f}"
            return self.frame(row, "plain", f"{similarity:.2f}", text)
        kind, mark = ("match", MATCH) if self.labels[query] == self.labels[row] else ("mismatch", MISMATCH)
        text = f"neighbor {rank}, {kind}, {self.score} {similarity:.3f}"
        return self.frame(row, kind, f"{mark} {similarity:.2f}", text)

    def ranking(self, neighbors: QueryNeighbors, query: int, max_neighbors: int = MAX_NEIGHBORS) -> Markup:
        """A list of a query, given by its row, and its nearest neighbors."""
        at = neighbors.index(query)
        rows = neighbors.ids[at, :max_neighbors].tolist()
        similarities = neighbors.scores[at, :max_neighbors].tolist()
        nearest = zip(rows, range(1, len(rows) + 1), similarities, strict=True)
        return frame_list([self.query(query), *(self.neighbor(query, *each) for each in nearest)])


class RerankedFrames(ImageFrames):
    """Frames of images that a method re-ranks; by local features, with the patches that neighbors have in common."""

    score, numbers = "score", "score after re-ranking"

    def __init__(self, thumbnails: Thumbnails, table: Table, method: Reranking) -> None:
        from vicinal.retrieval.reranking.local import LocalReranking  # loads the models

        super().__init__(thumbnails, table)
        self._local = method if isinstance(method, LocalReranking) else None
        self._patches = dict[str, list[list[float]]]()

    def neighbor(self, query: int, row: int, rank: int, similarity: float) -> Markup:
        if self._local is not None:
            numbers = [self.thumbnails.number(self.table, each) for each in (query, row)]
            self._patches["{} {}".format(*numbers)] = self._local.matches(query, [row])[0].to_list()
        return super().neighbor(query, row, rank, similarity)

    def data(self) -> dict[str, object]:
        """The patches by the numbers of query and neighbor, and the square that was compared."""
        if self._local is None:
            return {}
        return {"patches": self._patches, "square": self._local.features()[0].square}


def image_frames(thumbnails: Thumbnails, table: Table, rerank: Reranking | None) -> ImageFrames:
    """The frames of a page whose neighbors may be re-ranked."""
    return ImageFrames(thumbnails, table) if rerank is None else RerankedFrames(thumbnails, table, rerank)


def key(numbers: str = "cosine similarity") -> Markup:
    """The meaning of frames and numbers."""
    return element("p", KEY + numbers, element("span", " · click to enlarge", class_="by-mouse"), class_="note key")


def frame_list(frames: Iterable[Markup]) -> Markup:
    """Frames beside each other; a phone shows the first four, and a button that shows the others."""
    cells = list(frames)
    shown = element("ul", *cells, class_="cells")
    if len(cells) <= PHONE_FRAMES:
        return shown
    text = f"{len(cells) - PHONE_FRAMES} more"
    return joined([shown, element("button", text, type="button", class_="more", aria_expanded="false", data_text=text)])


def entry(text: object, *content: Markup) -> Markup:
    """A line of text and lists of frames below it, through which the viewer goes from image to image."""
    return element("li", element("p", breakable(text), dir="auto"), *content, data_row=True)


def entry_list(entries: Iterable[Markup], *, side_by_side: bool = False) -> Markup:
    """Entries below each other, or as many beside each other as there is room for."""
    return element("ul", *entries, class_="rows beside" if side_by_side else "rows")


def image_labels(table: Table) -> list[str]:
    """The caption of each image: its label, or without labels the name of its file or the number of its row."""
    if table.has("label"):
        return [str(label) for label in table.frame["label"]]
    if table.has("path"):
        return [os.path.basename(path) for path in table.paths]
    return [f"row {row}" for row in range(len(table))]


class _Rows(NamedTuple):
    """The captions and boxes of a table's images; the table is kept, so that no other gets its id."""

    table: Table
    labels: list[str]
    boxes: list[Box | None]


class Thumbnails:
    """Collects the images that a page shows and numbers them from 0, in the order in which they are first shown.

    Two images are the same if their paths and boxes are equal; without paths, if they are the same row of the same
    table.
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

    def encoded(self) -> list[dict[str, Any]]:
        """Encode all images, smaller until they fit in :data:`MAX_BYTES`.

        Each has its `label`, its `file` (the path within the folder that all images are in) and `src` (WebP in base 64,
        or None without a readable image).
        """
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            thumbnails = list(pool.map(self._read, range(len(self))))
            self.num_unreadable = sum(
                path is not None and thumbnail is None for path, thumbnail in zip(self._paths, thumbnails, strict=True)
            )
            sources, scale = _sources(pool, thumbnails, 1.0), 1.0
            while (size := sum(map(len, filter(None, sources)))) > MAX_BYTES and scale * LARGE > MIN_SIDE:
                scale *= 0.95 * min((MAX_BYTES / size) ** 0.5, 1.0)
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
        path = self._paths[number]
        try:
            return None if path is None else thumbnail(path, self._boxes[number], self._sizes[number])
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
