"""Whom a context refiner looks at: the neighbours of some queries before and after, with attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.models.embedder import evaluating
from vicinal.models.refiner import ContextRefiner
from vicinal.report.cells import GAP, IMAGE, LINE, Item, canvas, cell, verdict
from vicinal.report.compared import compared, one_set
from vicinal.report.drawing import EMPTY, INK, PALE, QUERY, picture_format, write_figure
from vicinal.retrieval import Neighbors
from vicinal.retrieval.refine import Refinement
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.retrieval.sides import Sides

MOST_QUERIES, MOST_NEIGHBORS = 25, 12  # of a grid; more would make a picture that nobody can read


ROW_NAME = 0.2  # in cells: the space of the words beside a row of a grid

Integers = npt.NDArray[np.int64]


class Neighborhoods(NamedTuple):
    """The neighbours of some queries before and after refinement; indices are rows of the table.

    Attributes:
        before: the k nearest by e^0, the context that the refiner sees.
        attention: float32 [depth, queries, k], how much each block looks at each of them, mean of its heads; the sum
            over k is 1.
        after: the k nearest by e^T.
    """

    before: Neighbors
    attention: npt.NDArray[np.float32]
    after: Neighbors


def neighborhoods(
    refiner: ContextRefiner, embeddings: Array, table: Table, queries: Sequence[int] | Integers
) -> Neighborhoods:
    """The neighbours of some rows before and after refinement, and how much the refiner looks at each.

    They are searched among all that is evaluated (queries and gallery together), without the row itself; k is that of
    the refiner, or less where there are fewer.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding.
        queries: [q], the rows that are asked about.

    Raises:
        InputError: another dimension or number of rows, no queries or a row that is not there or not evaluated, or a
            refiner without neighbours.

    Example:
        >>> import pandas as pd
        >>> embeddings, table = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), Table(pd.DataFrame(index=range(3)))
        >>> found = neighborhoods(ContextRefiner(2, depth=3, heads=1, neighbors=1), embeddings, table, queries=[0])
        >>> found.before.indices, found.after.indices, found.attention.ravel()
        (array([[1]]), array([[1]]), array([1., 1., 1.], dtype=float32))
    """
    vectors, _, rows = compared(refiner, embeddings, table)
    places = _places(queries, rows, len(table))
    sides = one_set(vectors)
    k = min(refiner.neighbors, sides.most)
    if refiner.context == "itself":
        raise InputError("this refiner looks at itself alone; there are no neighbours to show")
    if not k:
        raise InputError(
            f"{refiner.neighbors} neighbours of {len(vectors)} embeddings leave none; it takes one or more"
        )
    found = sides.nearest_of_queries(k)
    refined = Refinement(refiner).refined(vectors, vectors, found.indices)
    unit = UnitVectors(refined, "refined embedding", device=vectors.device)
    after = Sides(unit.subset(places), unit, places).nearest_of_queries(k)
    before = Neighbors(found.scores[places], found.indices[places])
    return Neighborhoods(
        Neighbors(before.scores, rows[before.indices]),
        _attention(refiner, vectors, places, before.indices),
        Neighbors(after.scores, rows[after.indices]),
    )


def attention_grid(
    refiner: ContextRefiner,
    embeddings: Array,
    table: Table,
    queries: Sequence[int] | Integers,
    path: str | Path,
) -> None:
    """Draw :func:`neighborhoods`: each query with its neighbours before refinement, and after it in a row below.

    Frames are green for the same label, red for another, grey for unknown; the number is the similarity. Below a
    neighbour of before is the attention it gets, mean of all blocks, in percent, with a bar that is full for the
    neighbour that this query looks at most. Of more than 12 neighbours the nearest 12 are drawn.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding, with the column `path`.
        queries: [q], rows of the table, 25 at most.
        path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: as :func:`neighborhoods`, too many queries, a table without paths, an image that cannot be read, or
            an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (8, 8), "red").save(f"{folder}/red.png")
        ...     table = Table(pd.DataFrame({"path": [f"{folder}/red.png"] * 3}))
        ...     attention_grid(ContextRefiner(4, heads=1), np.eye(4)[:3], table, [0, 2], f"{folder}/grid.png")
    """
    picture_format(Path(path))
    if not table.has("path"):
        raise InputError("the table has no column 'path'; a picture of neighbours needs the images' paths")
    if len(queries) > MOST_QUERIES:
        raise InputError(f"{len(queries)} queries are too many for a picture; give {MOST_QUERIES} at most")
    found = neighborhoods(refiner, embeddings, table, queries)
    shown = min(found.before.indices.shape[1], MOST_NEIGHBORS)
    figure, axes = canvas(2 * len(queries), 1 + shown + ROW_NAME / (IMAGE + GAP), lines=3)
    items = _items(table)
    for number, row in enumerate(queries):
        _query(axes, items, int(row), _top(2 * number + 0.5))
        _neighbors(axes, "before", items, int(row), found.before, number, _top(2 * number))
        _bars(axes, found.attention[:, number, :shown].mean(axis=0), _top(2 * number))
        _neighbors(axes, "after", items, int(row), found.after, number, _top(2 * number + 1))
    write_figure(figure, Path(path))


def _places(queries: Sequence[int] | Integers, rows: Integers, size: int) -> Integers:
    """Where the queries, rows of a table of a size, are among the evaluated rows."""
    wanted = np.asarray(queries)
    if wanted.ndim != 1 or not len(wanted) or wanted.dtype.kind not in "iu":
        raise InputError(f"queries are {wanted.dtype} {list(wanted.shape)}; give a list of row numbers, at least one")
    places = np.full(size, -1)
    places[rows] = np.arange(len(rows))
    for row in wanted.tolist():
        if not 0 <= row < size:
            raise InputError(f"queries name row {row}; the table has {size} rows, numbered from 0")
        if places[row] < 0:
            raise InputError(f"queries name row {row}, which is neither query nor gallery; choose one that is")
    return places[wanted]


def _attention(
    refiner: ContextRefiner, vectors: UnitVectors, places: Integers, neighbors: Integers
) -> npt.NDArray[np.float32]:
    context = vectors.take(neighbors.ravel()).view(*neighbors.shape, -1)
    with evaluating(refiner), torch.inference_mode():
        return refiner.attention(vectors.take(places), context).cpu().numpy()


def _top(row: float) -> float:
    return row * (IMAGE + 3 * LINE + GAP)


def _left(rank: int) -> float:
    """Of the neighbour of a rank, from 1 on."""
    return rank * (IMAGE + GAP) + GAP + ROW_NAME


def _items(table: Table) -> list[Item]:
    labels = table.frame["label"].tolist() if table.has("label") else [None] * len(table)
    return [{"path": path, "label": label} for path, label in zip(table.paths, labels, strict=True)]


def _query(axes: Axes, items: Sequence[Item], row: int, top: float) -> None:
    cell(axes, items[row], 0.0, top, QUERY, f"query, row {row}")


def _neighbors(
    axes: Axes, name: str, items: Sequence[Item], query: int, found: Neighbors, number: int, top: float
) -> None:
    left, middle = _left(1) - GAP, top + IMAGE / 2
    axes.text(left, middle, name, ha="center", va="center", rotation=90, fontsize=8.5, color=PALE)
    nearest = zip(found.indices[number, :MOST_NEIGHBORS], found.scores[number], strict=False)
    for rank, (row, score) in enumerate(nearest, 1):
        color, mark = verdict(items[query].get("label"), items[row].get("label"))
        cell(axes, items[row], _left(rank), top, color, f"{score:.2f}{mark}")


def _bars(axes: Axes, attention: npt.NDArray[np.float32], top: float) -> None:
    """Below the neighbours; the number stands behind the bar's full length."""
    full = 0.62 * IMAGE
    for rank, weight in enumerate(attention.tolist(), 1):
        left, middle = _left(rank), top + IMAGE + 2.65 * LINE
        for color, length in ((EMPTY, full), (QUERY, full * weight / max(attention.max(), 1e-9))):
            axes.add_patch(Rectangle((left, middle - 0.2 * LINE), length, 0.4 * LINE, color=color, linewidth=0))
        axes.text(left + IMAGE, middle, f"{100 * weight:.0f} %", ha="right", va="center", fontsize=7.5, color=INK)
