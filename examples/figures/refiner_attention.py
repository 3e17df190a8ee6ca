"""Neighbors of some queries before and after refinement, with the attention that they get.

Each query stands beside two rows: its nearest neighbors before refinement, and after it. Frames are green for the same
label, red for another, gray for unknown; the number is the similarity. Below a neighbor of the first row is the
attention it gets, averaged over all blocks, in percent, with a bar that is full for the query's largest attention.

Run `python examples/figures/refiner_attention.py refiner/model embeddings.parquet 3 14 15 --out attention.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vicinal.analysis.refiner import refiner_input
from vicinal.data import Table, load_embeddings
from vicinal.models.execution import eval_mode
from vicinal.models.refiner import ContextRefiner
from vicinal.report.contact_sheets import GAP, IMAGE, LINE, Item, canvas, cell, verdict
from vicinal.report.drawing import EMPTY, INK, PALE, QUERY, picture_format, write_figure
from vicinal.retrieval import Neighbors
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

MAX_QUERIES, MAX_NEIGHBORS = 25, 12  # of a readable picture
ROW_NAME = 0.2  # in cells: the space of the words beside a row


class RefinedNeighbors(NamedTuple):
    """The neighbors of some queries before and after refinement; indices are rows of the table.

    Attributes:
        before: the k nearest by e^0, the context that the refiner sees.
        attention: float32 [depth, queries, k], the attention of each block to each of them, averaged over the heads;
            its sum over k is 1.
        after: the k nearest by e^T.
    """

    before: Neighbors
    attention: Floats
    after: Neighbors


def refined_neighbors(
    refiner: ContextRefiner, embeddings: Array, table: Table, queries: Sequence[int] | Integers
) -> RefinedNeighbors:
    """Find the neighbors of some rows before and after refinement, and the refiner's attention.

    Neighbors are searched among queries and gallery together, without the row itself; k is that of the refiner, or
    less where there are fewer.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row per embedding.
        queries: [q], rows of the table.

    Raises:
        InputError: another dimension or number of rows, no queries or a row that does not exist or is not evaluated, or
            a refiner without neighbors.
    """
    evaluated = refiner_input(refiner, embeddings, table)
    vectors, rows = evaluated.vectors, evaluated.rows
    index = indices_of(queries, rows, len(table))
    k = min(refiner.neighbors, len(vectors) - 1)
    if refiner.context == "self":
        raise InputError("this refiner attends to the embedding itself only; there are no neighbors to show")
    if k < 1:
        raise InputError(
            f"{refiner.neighbors} neighbors of {len(vectors)} embeddings leave none; at least one is needed"
        )
    found = evaluated.query_gallery().query_neighbors(k)
    refined = Refinement(refiner).refine_vectors(vectors, vectors, found.ids)
    unit = UnitVectors(refined, "refined embedding", device=vectors.device)
    after = QueryGallery(unit.subset(index), unit, index).query_neighbors(k)
    context = vectors.take(found.ids[index].ravel()).view(len(index), k, -1)
    with eval_mode(refiner), torch.inference_mode():
        attention = refiner.attention_weights(vectors.take(index), context).cpu().numpy()
    before = Neighbors(found.scores[index], rows[found.ids[index]])
    return RefinedNeighbors(before, attention, Neighbors(after.scores, rows[after.ids]))


def indices_of(queries: Sequence[int] | Integers, rows: Integers, size: int) -> Integers:
    """The indices in `rows` of some rows of a table of the given size."""
    wanted = np.asarray(queries)
    if wanted.ndim != 1 or not len(wanted) or wanted.dtype.kind not in "iu":
        raise InputError(f"queries are {wanted.dtype} {list(wanted.shape)}; give a list of row numbers, at least one")
    index = np.full(size, -1)
    index[rows] = np.arange(len(rows))
    for row in wanted.tolist():
        if not 0 <= row < size:
            raise InputError(f"queries name row {row}; the table has {size} rows, numbered from 0")
        if index[row] < 0:
            raise InputError(f"queries name row {row}, which is neither query nor gallery; choose one that is")
    return index[wanted]


def attention_grid(
    refiner: ContextRefiner, embeddings: Array, table: Table, queries: Sequence[int] | Integers, path: str | Path
) -> None:
    """Draw :func:`refined_neighbors`; of more than 12 neighbors the nearest 12 are drawn.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row per embedding, with the column `path`.
        queries: [q], rows of the table, 25 at most.
        path: the picture; its suffix is the format.

    Raises:
        InputError: as :func:`refined_neighbors`, too many queries, a table without paths, or an image that cannot be
            read.
    """
    picture_format(Path(path))
    if not table.has("path"):
        raise InputError("the table has no column 'path'; a picture of neighbors needs the images' paths")
    if len(queries) > MAX_QUERIES:
        raise InputError(f"{len(queries)} queries are too many for a picture; give {MAX_QUERIES} at most")
    found = refined_neighbors(refiner, embeddings, table, queries)
    shown = min(found.before.ids.shape[1], MAX_NEIGHBORS)
    figure, axes = canvas(2 * len(queries), 1 + shown + ROW_NAME / (IMAGE + GAP), lines=3)
    labels = table.frame["label"].tolist() if table.has("label") else [None] * len(table)
    items = [{"path": path, "label": label} for path, label in zip(table.paths, labels, strict=True)]
    for number, row in enumerate(map(int, queries)):
        cell(axes, items[row], 0.0, top_of(2 * number + 0.5), QUERY, f"query, row {row}")
        draw_neighbors(axes, "before", items, row, found.before, number, top_of(2 * number))
        draw_bars(axes, found.attention[:, number, :shown].mean(axis=0), top_of(2 * number))
        draw_neighbors(axes, "after", items, row, found.after, number, top_of(2 * number + 1))
    write_figure(figure, Path(path))


def top_of(row: float) -> float:
    """The y coordinate of a row."""
    return row * (IMAGE + 3 * LINE + GAP)


def left_of(rank: int) -> float:
    """The x coordinate of the neighbor of a rank, from 1 on."""
    return rank * (IMAGE + GAP) + GAP + ROW_NAME


def draw_neighbors(
    axes: Axes, name: str, items: Sequence[Item], query: int, found: Neighbors, number: int, top: float
) -> None:
    """Draw a row of neighbors with its name beside it."""
    left, middle = left_of(1) - GAP, top + IMAGE / 2
    axes.text(left, middle, name, ha="center", va="center", rotation=90, fontsize=8.5, color=PALE)
    nearest = zip(found.ids[number, :MAX_NEIGHBORS], found.scores[number], strict=False)
    for rank, (row, score) in enumerate(nearest, 1):
        color, mark = verdict(items[query].get("label"), items[row].get("label"))
        cell(axes, items[row], left_of(rank), top, color, f"{score:.2f}{mark}")


def draw_bars(axes: Axes, attention: Floats, top: float) -> None:
    """Draw the attention below the neighbors, as bars and numbers."""
    full = 0.62 * IMAGE
    for rank, weight in enumerate(attention.tolist(), 1):
        left, middle = left_of(rank), top + IMAGE + 2.65 * LINE
        for color, length in ((EMPTY, full), (QUERY, full * weight / max(attention.max(), 1e-9))):
            axes.add_patch(Rectangle((left, middle - 0.2 * LINE), length, 0.4 * LINE, color=color, linewidth=0))
        axes.text(left + IMAGE, middle, f"{100 * weight:.0f} %", ha="right", va="center", fontsize=7.5, color=INK)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("refiner", help="the folder of a refiner, such as refiner/model")
    parser.add_argument("embeddings", help="embeddings of the same model, a .parquet file with paths")
    parser.add_argument("queries", type=int, nargs="+", help="rows of the file")
    parser.add_argument("--out", default="refiner_attention.png", help="the picture (png, jpg, webp, pdf, svg)")
    given = parser.parse_args()
    refiner = ContextRefiner.from_pretrained(given.refiner)
    attention_grid(refiner, *load_embeddings(given.embeddings), given.queries, given.out)
