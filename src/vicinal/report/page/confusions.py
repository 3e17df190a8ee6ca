"""Which class is found in the place of which."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.report.page.cells import Cells, row, rows
from vicinal.report.page.markup import Markup, Section, counted, element, percent, section, table, tall
from vicinal.report.page.search import Neighborhood

MOST_CONFUSIONS, MOST_EXAMPLES = 30, 12
MOST_CLASSES = 16  # of a matrix

Integers = npt.NDArray[np.int64]


class Confusion(NamedTuple):
    """A class and the one that is found in its stead.

    Attributes:
        label: code of the queries' class.
        found: code of the class of their nearest images.
        queries: of which this is so.
        share: of the class's queries, from 0 to 1.
        query: a table row, the one whose wrong neighbour is the most similar.
        neighbor: that neighbour's row.
    """

    label: int
    found: int
    queries: int
    share: float
    query: int
    neighbor: int


def confusions(found: Neighborhood, labels: Integers, most: int) -> tuple[list[Confusion], int]:
    """Pairs of classes by how many queries of the one have an image of the other nearest, and how many pairs there are.

    Example:
        >>> rows = np.arange(3)
        >>> three = Neighborhood(rows, rows, rows, np.array([[1], [0], [0]]),
        ...                      np.array([[0.5], [0.9], [0.8]], np.float32), np.array([[True], [True], [False]]))
        >>> confusions(three, np.array([0, 0, 1]), most=5)[0][0][:4]
        (1, 0, 1, 1.0)
    """
    wrong = np.flatnonzero(~found.right[:, 0])
    frame = pd.DataFrame(
        {
            "label": labels[found.queries[wrong]],
            "found": labels[found.found[wrong, 0]],
            "score": found.scores[wrong, 0],
            "place": wrong,
        }
    ).sort_values("score", ascending=False, kind="stable")
    pairs = frame.groupby(["label", "found"], sort=True).agg(count=("place", "size"), place=("place", "first"))
    of_class = np.bincount(labels[found.queries], minlength=int(labels.max(initial=0)) + 1)
    top = pairs.sort_values("count", ascending=False, kind="stable").head(most).reset_index()
    return [
        Confusion(label, other, count, count / int(of_class[label]), int(found.queries[at]), int(found.found[at, 0]))
        for label, other, count, at in top.to_numpy(dtype=np.int64).tolist()
    ], len(pairs)


def confusion_matrix(found: Neighborhood, labels: Integers, classes: int) -> Integers:
    """Queries of each class (rows) by the class of their nearest image (columns).

    Returns:
        int64 [classes, classes].

    Example:
        >>> rows = np.arange(3)
        >>> three = Neighborhood(rows, rows, rows, np.array([[1], [0], [0]]), np.ones((3, 1), np.float32),
        ...                      np.array([[True], [True], [False]]))
        >>> confusion_matrix(three, np.array([0, 0, 1]), classes=2)
        array([[2, 0],
               [1, 0]])
    """
    pairs = labels[found.queries] * classes + labels[found.found[:, 0]]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes).astype(np.int64)


def confusions_section(cells: Cells, found: Neighborhood) -> Section:
    """A matrix of few classes; the most frequent pairs, and an example of each."""
    labels = cells.table.labels
    top, pairs = confusions(found, labels, MOST_CONFUSIONS)
    lead = "Which class the nearest image is of where it is not the query's. "
    if not top:
        return section(
            "confusions", "Confusions", f"{lead}Every query that has something to find has its class nearest."
        )
    wrong = int((~found.right[:, 0]).sum())
    queries = counted(len(found.queries), "query", "queries")
    lead += f"So it is for {wrong:,} of {queries} with something to find, in {counted(pairs, 'pair')} of classes."
    few = len(cells.table.classes) <= MOST_CLASSES
    return section(
        "confusions",
        "Confusions between classes",
        lead,
        _matrix(confusion_matrix(found, labels, len(cells.table.classes)), cells) if few else None,
        tall(_pairs_table(top, cells)),
        element("h3", "The most similar wrong pair of each"),
        rows((_example(each, cells, found) for each in top[:MOST_EXAMPLES]), side_by_side=True),
    )


def _matrix(counts: Integers, cells: Cells) -> Markup:
    names = [str(name) for name in cells.table.classes]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    lines = [
        [name, *(_share(count, share, at == other) for other, (count, share) in enumerate(zip(*values, strict=True)))]
        for at, (name, *values) in enumerate(zip(names, counts.tolist(), shares.tolist(), strict=True))
    ]
    heads = [element("span", name, class_="head", title=name) for name in names]
    caption = "Queries by class (rows) and by the class of their nearest image (columns); dark: much of a class"
    return element("div", table(caption, ["class", *heads], lines, range(1, len(names) + 1)), class_="matrix")


def _share(count: int, share: float, right: bool) -> Markup:
    """A cell of the matrix, as dark as it is large."""
    kind = "right" if right else "wrong"
    return element("span", f"{count:,}", class_=f"share {kind}", style=f"--share:{share:.3f}" if count else None)


def _pairs_table(top: list[Confusion], cells: Cells) -> Markup:
    classes = cells.table.classes
    lines = [(classes[each.label], classes[each.found], f"{each.queries:,}", percent(each.share)) for each in top]
    columns = ("class of the query", "class of its nearest image", "queries", "of the class")
    return table(f"The {len(top)} most frequent pairs", columns, lines, (2, 3))


def _example(each: Confusion, cells: Cells, found: Neighborhood) -> Markup:
    place = int(np.flatnonzero(found.queries == each.query)[0])
    text = f"{cells.table.classes[each.label]} → {cells.table.classes[each.found]}"
    first = cells.neighbor(each.query, each.neighbor, 1, float(found.scores[place, 0]))
    return row(text, [cells.image(each.query, "query", "query", "query"), first])
