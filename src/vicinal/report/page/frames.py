"""Images in frames: queries with their neighbors, each a button that enlarges the image."""

from __future__ import annotations

from collections.abc import Iterable

from vicinal.analysis import QueryNeighbors
from vicinal.data.table import Table
from vicinal.report.labels import shorten
from vicinal.report.page.markup import Markup, breakable, element, joined
from vicinal.report.page.thumbnails import Thumbnails

MATCH, MISMATCH = "✓", "✗"  # marks for readers who cannot tell green from red
KEY = f"{MATCH} solid green: of the query's class · {MISMATCH} dashed red: of another · numbers: cosine similarity"
MAX_NEIGHBORS = 8  # shown of a query
PHONE_FRAMES = 4  # beside each other on a phone: a query and three neighbors; see the style sheet
MAX_LABEL_LENGTH = 36  # characters below an image


class ImageFrames:
    """Makes the frames of the images of one table.

    Args:
        thumbnails: collects the images.
        table: with labels, paths or both. Without labels the names of files are in their place, and no frame says
            whether a neighbor is right; without paths a frame shows the row's number in place of an image.
    """

    def __init__(self, thumbnails: Thumbnails, table: Table) -> None:
        self.thumbnails, self.table = thumbnails, table
        self.labels = thumbnails.labels(table)

    def frame(self, row: int, kind: str, mark: str, text: str) -> Markup:
        """An image in its frame, as an item of a list.

        Args:
            row: of the table.
            kind: "query", "match", "mismatch" or "plain", the color of the frame.
            mark: a few characters below the image.
            text: describes the image to screen readers, and beside the enlarged image.
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

    def query(self, row: int) -> Markup:
        """The frame of a query."""
        return self.frame(row, "query", "query", "query")

    def neighbor(self, query: int, row: int, rank: int, similarity: float) -> Markup:
        """The frame of a neighbor, which shows whether it is of the query's class, if classes are known."""
        if not self.table.has("label"):
            text = f"neighbor {rank}, similarity {similarity:.3f}"
            return self.frame(row, "plain", f"{similarity:.2f}", text)
        kind, mark = ("match", MATCH) if self.labels[query] == self.labels[row] else ("mismatch", MISMATCH)
        text = f"neighbor {rank}, {kind}, similarity {similarity:.3f}"
        return self.frame(row, kind, f"{mark} {similarity:.2f}", text)

    def ranking(self, neighbors: QueryNeighbors, query: int, max_neighbors: int = MAX_NEIGHBORS) -> Markup:
        """A list of a query, given by its row, and its nearest neighbors."""
        at = neighbors.index(query)
        rows = neighbors.ids[at, :max_neighbors].tolist()
        similarities = neighbors.scores[at, :max_neighbors].tolist()
        nearest = zip(rows, range(1, len(rows) + 1), similarities, strict=True)
        return frame_list([self.query(query), *(self.neighbor(query, *each) for each in nearest)])


def key() -> Markup:
    """What frames and numbers mean."""
    return element("p", KEY, element("span", " · click to enlarge", class_="by-mouse"), class_="note key")


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
