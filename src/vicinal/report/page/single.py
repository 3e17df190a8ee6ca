"""A page of an evaluated set: one HTML file that holds all it shows."""

from __future__ import annotations

from pathlib import Path

from vicinal.data.table import Table
from vicinal.evaluation.protocol import Evaluation
from vicinal.evaluation.uncertainty import query_classes
from vicinal.files import write_bytes
from vicinal.report.page.cells import Cells
from vicinal.report.page.classes import classes_section
from vicinal.report.page.confusions import confusions_section
from vicinal.report.page.data import data_section, summary
from vicinal.report.page.document import document
from vicinal.report.page.duplicates import duplicates_section
from vicinal.report.page.hubs import hubs_section
from vicinal.report.page.label_errors import label_errors_section
from vicinal.report.page.map import MAP_IMAGES
from vicinal.report.page.map_section import mapped
from vicinal.report.page.markup import Section
from vicinal.report.page.metrics import Intervals, metrics_section
from vicinal.report.page.pairs import pair_similarities
from vicinal.report.page.paths import without_home
from vicinal.report.page.pictures import Pictures
from vicinal.report.page.queries import queries_section
from vicinal.report.page.run import Run, read_run
from vicinal.report.page.search import neighborhood, with_positives
from vicinal.report.page.similarities import similarities_section
from vicinal.report.page.training import curves_section, recipe_section
from vicinal.retrieval.scores import Array


def write_page(
    path: str | Path,
    vectors: Array,
    table: Table,
    evaluation: Evaluation,
    *,
    title: str = "Evaluation",
    run: str | Path | None = None,
    intervals: Intervals | None = None,
    level: float = 0.95,
    map_images: int = MAP_IMAGES,
    seed: int = 0,
) -> None:
    """Write a page that opens from disk without a network: numbers, charts, queries with neighbours, and a map.

    It has metrics, the worst and best queries, a t-SNE map that can be moved and zoomed, recall per class, confusions,
    similarities of pairs of one class and of two, hubs, duplicates and probable label errors, statistics of the data,
    and the learning curves and recipe of a run. Of many images some are shown, and the text says of how many.
    Neighbours are those by cosine similarity, without re-ranking.

    Args:
        path: of the file, such as `report.html`; replaced as a whole.
        vectors: float [rows, dim].
        table: one row a vector, with labels; without paths the page has no images.
        evaluation: of both, as :func:`~vicinal.evaluation.evaluate` gives it.
        title: of the page.
        run: the folder of the run they come from, for its recipe, its curves and its data.
        intervals: metric -> its confidence interval, from 0 to 1.
        level: the confidence of the intervals, which the page names.
        map_images: at most so many images are on the map; 0: there is no map.
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
    title = without_home(title)
    record = Run() if run is None else read_run(run)
    found = neighborhood(vectors, table, evaluation)
    counting = with_positives(found, evaluation)
    cells = Cells(Pictures(), table)
    on_map, map_data = mapped(vectors, cells, counting, map_images, seed)
    pairs = pair_similarities(vectors, table, found.queries, found.gallery, seed=seed)
    groups: dict[str, list[Section | None]] = {
        "Results": [
            metrics_section(evaluation, intervals, level, query_classes(table, evaluation)),
            queries_section(cells, counting, evaluation, seed),
            on_map,
        ],
        "What goes wrong": [
            classes_section(table, evaluation),
            confusions_section(cells, counting),
            similarities_section(pairs),
            hubs_section(cells, found),
        ],
        "Data": [
            duplicates_section(cells, found),
            label_errors_section(cells, counting),
            data_section(table, evaluation, record),
        ],
        "Training": [curves_section({"run": record}), recipe_section(record)],
    }
    images = cells.pictures.encoded()
    summed = " · ".join([summary(evaluation), *cells.pictures.notes()])
    write_bytes(path, document(title, summed, groups, {"map": map_data, "images": images}))
