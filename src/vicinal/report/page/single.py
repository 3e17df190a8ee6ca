"""A page of an evaluated set: one HTML file that holds all it shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vicinal.data.table import Table
from vicinal.evaluation.protocol import Evaluation
from vicinal.files import write_bytes
from vicinal.report.page.cells import Cells
from vicinal.report.page.map import MAP_IMAGES, embedding_map
from vicinal.report.page.markup import Section, page
from vicinal.report.page.pairs import pair_similarities
from vicinal.report.page.pictures import Pictures
from vicinal.report.page.run import Run, read_run
from vicinal.report.page.search import Neighborhood, neighborhood
from vicinal.report.page.sections import (
    classes_section,
    confusions_section,
    curves_section,
    data_section,
    duplicates_section,
    hubs_section,
    label_errors_section,
    map_data,
    map_section,
    metrics_section,
    queries_section,
    recipe_section,
    similarities_section,
    unreadable_note,
)
from vicinal.retrieval.scores import Array

THUMBNAIL_BYTES = 11 * 2**20  # of all thumbnails in base 64, so that the page stays below 15 MB


def write_page(
    path: str | Path,
    vectors: Array,
    table: Table,
    evaluation: Evaluation,
    *,
    title: str = "Evaluation",
    run: str | Path | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    map_images: int = MAP_IMAGES,
    seed: int = 0,
) -> None:
    """Write a page that opens from disk without a network: numbers, charts, queries with neighbours, and a map.

    It has statistics of the data, recipe and learning curves of a run, metrics, similarities of pairs of one class and
    of two, recall per class, confusions, the worst and best queries, a t-SNE map that can be moved and zoomed, hubs,
    duplicates and probable label errors. Of many images some are shown, and the text says of how many. Neighbours are
    those by cosine similarity, without re-ranking.

    Args:
        path: of the file, such as `report.html`; replaced as a whole.
        vectors: float [rows, dim].
        table: one row a vector, with labels; without paths the page has no images.
        evaluation: of both, as :func:`~vicinal.evaluation.evaluate` gives it.
        title: of the page.
        run: the folder of the run they come from, for its recipe, its curves and its data.
        intervals: metric -> its confidence interval, from 0 to 1.
        map_images: at most so many images are on the map.
        seed: of everything drawn by chance.

    Raises:
        InputError: vectors, table and evaluation do not belong together, or the run cannot be read.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> vectors, table = np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_page(f"{folder}/report.html", vectors, table, evaluate(vectors, table, recall_at=[1]))
        ...     Path(f"{folder}/report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    record = Run() if run is None else read_run(run)
    found = neighborhood(vectors, table, evaluation)
    cells = Cells(Pictures(), table)
    sections = [
        metrics_section(evaluation, intervals),
        data_section(table, evaluation, record),
        recipe_section(record),
        curves_section({"run": record}),
        similarities_section(pair_similarities(vectors, table, found.queries, found.gallery, seed=seed)),
        classes_section(table, evaluation),
        confusions_section(cells, found),
        queries_section(cells, found, evaluation, seed),
        hubs_section(cells, found),
        duplicates_section(cells, found),
        label_errors_section(cells, found),
    ]
    mapped, data = _mapped(vectors, cells, found, map_images, seed)
    sections.insert(8, mapped)
    data["images"] = cells.pictures.encoded(THUMBNAIL_BYTES)
    there = [part for part in sections if part is not None]
    there[-1] = there[-1].extended(unreadable_note(cells.pictures))
    write_bytes(path, page(title, summary(evaluation), there, data))


def summary(evaluation: Evaluation) -> str:
    """What was evaluated, in a line.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate_arrays
        >>> summary(evaluate_arrays(np.eye(2), [0, 1], np.eye(2), [0, 1], recall_at=[1]))
        'query/gallery: 2 queries, 2 gallery images'
    """
    return f"{evaluation.protocol}: {evaluation.queries:,} queries, {evaluation.gallery:,} gallery images"


def _mapped(
    vectors: Array, cells: Cells, found: Neighborhood, images: int, seed: int
) -> tuple[Section, dict[str, Any]]:
    """The section with the map, and its data: None where there is no map."""
    drawn = embedding_map(vectors, cells.table.labels, found.gallery, images, seed)
    data = None if drawn is None else map_data(drawn, cells, cells.pictures, found)
    return map_section(drawn, cells, len(found.gallery)), {"map": data}
