"""Images that are nearly the same; those with two labels first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from vicinal.report.page.cells import Cells, row, rows
from vicinal.report.page.markup import Markup, Section, counted, section
from vicinal.report.page.search import Neighborhood

DUPLICATE = 0.999  # similarity above which two images count as one
MOST_PAIRS = 24


class Pair(NamedTuple):
    """Two table rows and their similarity."""

    first: int
    second: int
    score: float


def duplicates(found: Neighborhood, threshold: float = DUPLICATE) -> list[Pair]:
    """Pairs of a query and a neighbour more similar than the threshold, each once, most similar first.

    Example:
        >>> rows = np.arange(2)
        >>> scores, right = np.ones((2, 1), np.float32), np.ones((2, 1), bool)
        >>> two = Neighborhood(rows, rows, rows, np.array([[1], [0]]), scores, right)
        >>> duplicates(two)
        [Pair(first=0, second=1, score=1.0)]
    """
    queries, places = np.nonzero(found.scores > threshold)
    ends = np.sort(np.stack([found.queries[queries], found.found[queries, places]], axis=1), axis=1)
    frame = pd.DataFrame({"first": ends[:, 0], "second": ends[:, 1], "score": found.scores[queries, places]})
    frame = frame.drop_duplicates(["first", "second"]).sort_values(
        ["score", "first", "second"], ascending=[False, True, True]
    )
    return [Pair(*values) for values in zip(*(frame[name].tolist() for name in frame.columns), strict=True)]


def duplicates_section(cells: Cells, found: Neighborhood) -> Section:
    """Pairs with two labels, then the others, the most similar first."""
    pairs = duplicates(found)
    lead = (
        f"Images that are probably the same: among the {found.k} nearest of each query, more similar than {DUPLICATE}. "
    )
    if not pairs:
        return section("duplicates", "Duplicates", f"{lead}There are none.")
    pairs = sorted(pairs, key=lambda pair: cells.names[pair.first] == cells.names[pair.second])
    other = sum(cells.names[pair.first] != cells.names[pair.second] for pair in pairs)
    shown = pairs[:MOST_PAIRS]
    lead += f"There are {counted(len(pairs), 'pair')}, {other:,} with two labels."
    lead += f" {len(shown)} are shown, those with two labels first." if len(shown) < len(pairs) else ""
    entries = (_pair(pair, cells) for pair in shown)
    return section("duplicates", "Duplicates", lead, rows(entries, side_by_side=True))


def _pair(pair: Pair, cells: Cells) -> Markup:
    first = cells.image(pair.first, "query", "first", "first of two")
    return row(f"Similarity {pair.score:.5f}", [first, cells.neighbor(pair.first, pair.second, 1, pair.score)])
