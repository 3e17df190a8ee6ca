"""Images that are neighbours of very many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.report.page.cells import Cells, row, rows
from vicinal.report.page.markup import Markup, Section, note, percent, section
from vicinal.report.page.search import Neighborhood

MOST_HUBS = 12

Integers = npt.NDArray[np.int64]


class Hub(NamedTuple):
    """A gallery image in many lists of neighbours: its row, how many lists, and the share of them of its own class."""

    row: int
    lists: int
    right: float


class Hubs(NamedTuple):
    """The images in most lists.

    Attributes:
        top: most first.
        expected: lists an image is in on average.
        skewness: of the number of lists, over the gallery; 0 where all are found alike.
        never: gallery images that are in no list.
    """

    top: list[Hub]
    expected: float
    skewness: float
    never: int


def hubs(found: Neighborhood, most: int) -> Hubs:
    """The gallery images in most of the queries' lists of neighbours.

    Reference: Radovanović et al., "Hubs in Space", JMLR 2010: skewness of the k-occurrence.

    Example:
        >>> rows = np.arange(3)
        >>> three = Neighborhood(rows, rows, rows, np.array([[1], [0], [0]]), np.ones((3, 1), np.float32),
        ...                      np.array([[True], [True], [False]]))
        >>> hubs(three, most=1).top
        [Hub(row=0, lists=2, right=0.5)]
    """
    size = int(max(found.gallery.max(initial=0), found.found.max(initial=0))) + 1
    lists = np.bincount(found.found.ravel(), minlength=size)
    right = np.bincount(found.found.ravel(), weights=found.right.ravel(), minlength=size)
    counts = lists[found.gallery]
    order = found.gallery[np.argsort(-counts, kind="stable")][:most]
    top = [Hub(int(row), int(lists[row]), float(right[row] / lists[row])) for row in order if lists[row] > 1]
    return Hubs(top, float(counts.mean()), _skewness(counts), int((counts == 0).sum()))


def hubs_section(cells: Cells, found: Neighborhood) -> Section:
    """The images in most lists, with how many."""
    result = hubs(found, MOST_HUBS)
    lead = (
        f"Images that crowd into the lists of the {found.k} nearest: one is in {result.expected:.1f} lists on average, "
        f"and {result.never:,} are in none."
    )
    skewness = (
        f"Skewness of the number of lists: {result.skewness:.2f}. "
        "At 0 all images are found alike; far above 0 a few are in very many lists."
    )
    shown = rows([row("In most lists", [_hub(each, cells) for each in result.top])]) if result.top else None
    return section("hubs", "Hubs", lead, note(skewness), shown)


def _hub(each: Hub, cells: Cells) -> Markup:
    text = f"in {each.lists:,} lists, {percent(each.right)} of them of its class"
    return cells.image(each.row, "plain", f"{each.lists:,} lists", text)


def _skewness(counts: Integers) -> float:
    spread = counts.std()
    return float((((counts - counts.mean()) / spread) ** 3).mean()) if spread else 0.0
