"""Images in frames on a page: queries with their neighbours, each a button that enlarges it."""

from __future__ import annotations

from collections.abc import Iterable

from vicinal.data.table import Table
from vicinal.report.page.markup import Markup, element
from vicinal.report.page.pictures import Pictures
from vicinal.report.page.search import Neighborhood

RIGHT, WRONG = "✓", "✗"  # marks for those who cannot tell green from red
KEY = (
    f"Solid green frames and {RIGHT}: of the query's class. Dashed red frames and {WRONG}: of another. "
    "The numbers are cosine similarities. A click enlarges; arrow keys go on to the next image."
)
SHOWN = 8  # neighbours of a query


class Cells:
    """Makes frames of the images of one table.

    Args:
        pictures: where they are kept.
        table: with labels, and paths if there are images; without, a frame has the row's number in place of one.
    """

    def __init__(self, pictures: Pictures, table: Table) -> None:
        self.pictures, self.table = pictures, table
        self.names: list[str] = [str(name) for name in table.frame["label"].tolist()]

    def image(self, row: int, kind: str, mark: str, what: str) -> Markup:
        """One image as an entry of a list.

        Args:
            row: of the table.
            kind: query, right, wrong or plain; says the colour of the frame.
            mark: a few signs below it.
            what: what it is, for those who do not see it, and beside the enlarged image.
        """
        number = self.pictures.number(self.table, row)
        parts = [
            self._picture(row, number, what),
            element("span", mark, class_="mark"),
            element("span", self.names[row], class_="label", title=self.names[row], dir="auto"),
        ]
        return element(
            "li", element("button", *parts, type="button", class_=f"cell {kind}", data_view=number, data_note=what)
        )

    def _picture(self, row: int, number: int, what: str) -> Markup:
        if not self.table.has("path"):
            return element("span", f"row {row:,}", class_="nothing")
        image = element("img", data_image=number, alt=f"{what}, class {self.names[row]}")
        return element("span", image, class_="picture")

    def neighbor(self, query: int, row: int, rank: int, score: float) -> Markup:
        """A neighbour of a query, which says whether it is of its class."""
        right = self.names[query] == self.names[row]
        word, mark = ("right", RIGHT) if right else ("wrong", WRONG)
        return self.image(row, word, f"{mark} {score:.2f}", f"neighbour {rank}, {word}, similarity {score:.3f}")

    def ranking(self, found: Neighborhood, place: int, *, shown: int = SHOWN) -> list[Markup]:
        """A query and its nearest."""
        query = int(found.queries[place])
        nearest = zip(found.found[place, :shown].tolist(), found.scores[place, :shown].tolist(), strict=True)
        neighbors = [self.neighbor(query, row, rank, score) for rank, (row, score) in enumerate(nearest, 1)]
        return [self.image(query, "query", "query", "query"), *neighbors]


def row(text: object, images: Iterable[Markup]) -> Markup:
    """A line of text and images below it, which the viewer shows one after the other."""
    return entry(text, cell_list(images))


def entry(text: object, content: Markup) -> Markup:
    """The same with more than one list of images below it."""
    return element("li", element("p", text, dir="auto"), content, data_row=True)


def cell_list(images: Iterable[Markup]) -> Markup:
    return element("ul", *images, class_="cells")


def rows(entries: Iterable[Markup], *, side_by_side: bool = False) -> Markup:
    """Entries below each other, or as many beside each other as there is room for."""
    return element("ul", *entries, class_="rows beside" if side_by_side else "rows")
