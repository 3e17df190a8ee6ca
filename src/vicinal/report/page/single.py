"""The page of one evaluated set: one HTML file that contains everything it shows."""

from __future__ import annotations

from pathlib import Path

from vicinal.analysis import pair_similarities, query_neighbors
from vicinal.analysis.neighbors import check_evaluation
from vicinal.analysis.projection import MAX_MAP_IMAGES
from vicinal.data.table import Table
from vicinal.evaluation.resampling import count_query_classes
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.classes import classes_section
from vicinal.report.page.confusions import confusions_section
from vicinal.report.page.data import data_section, summary
from vicinal.report.page.document import document
from vicinal.report.page.duplicates import duplicates_section
from vicinal.report.page.frames import ImageFrames
from vicinal.report.page.header import header_line, left_out_text, model_text, splits_text
from vicinal.report.page.hubs import hubs_section
from vicinal.report.page.label_errors import label_errors_section
from vicinal.report.page.map import map_section
from vicinal.report.page.markup import Section
from vicinal.report.page.metrics import metrics_section
from vicinal.report.page.paths import without_home
from vicinal.report.page.queries import queries_section
from vicinal.report.page.run import Run, read_run, settings
from vicinal.report.page.similarities import similarities_section
from vicinal.report.page.thumbnails import Thumbnails
from vicinal.report.page.training import curves_section, recipe_section
from vicinal.retrieval.scores import Array
from vicinal.utils.files import write_bytes


def write_page(
    path: str | Path,
    embeddings: Array,
    table: Table,
    evaluation: Evaluation,
    *,
    title: str = "Evaluation",
    run: str | Path | None = None,
    backbone: str | None = None,
    num_left_out: int = 0,
    results: ResultsTable | None = None,
    map_images: int = MAX_MAP_IMAGES,
    seed: int = 0,
) -> None:
    """Write a page that opens from disk without a network: numbers, charts, queries with neighbors, and a map.

    The page has metrics, the worst queries and, to be unfolded, the best and some others, a t-SNE map that can be moved
    and zoomed, recall per class, confusions, similarities of pairs, hubs, duplicates and probable label errors,
    statistics of the data, and the learning curves and recipe of a run. It shows a part of many images, and says so.
    Neighbors are the nearest by cosine similarity, without re-ranking.

    Args:
        path: the file, such as `report.html`; it is replaced as a whole.
        embeddings: float [rows, dim].
        table: one row per embedding, with labels; without paths the page has no images.
        evaluation: of both, as :func:`~vicinal.evaluation.evaluate` returns it.
        title: of the page.
        run: the folder of the run that the embeddings come from, for its recipe, its curves and its data.
        backbone: the name of the model's backbone, if it is known; of a run its recipe says it.
        num_left_out: the number of files that were left out, because they cannot be read or are no images.
        results: the metrics of the evaluation with their confidence intervals, as
            :func:`~vicinal.evaluation.tabulate` returns them; None: without intervals.
        map_images: the number of images on the map; 0: there is no map.
        seed: of all random choices.

    Raises:
        InputError: embeddings, table and evaluation do not belong together, or the run cannot be read.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> embeddings, table = np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_page(f"{folder}/report.html", embeddings, table, evaluate(embeddings, table))
        ...     Path(f"{folder}/report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    title = without_home(title)
    training = Run() if run is None else read_run(run)
    neighbors = query_neighbors(embeddings, table)
    check_evaluation(evaluation, table)
    thumbnails = Thumbnails()
    frames = ImageFrames(thumbnails, table)
    on_map, map_data = map_section(embeddings, frames, neighbors, map_images, seed)
    groups: dict[str, list[Section | None]] = {
        "Results": [
            metrics_section(results or evaluation.to_results(), count_query_classes(evaluation, table)),
            queries_section(frames, neighbors, evaluation, seed),
            on_map,
        ],
        "What goes wrong": [
            classes_section(table, evaluation),
            confusions_section(frames, neighbors),
            similarities_section(pair_similarities(embeddings, table, seed=seed)),
            hubs_section(frames, neighbors),
        ],
        "Data": [
            duplicates_section(frames, neighbors),
            label_errors_section(frames, neighbors),
            data_section(table, evaluation, training),
        ],
        "Training": [curves_section({"run": training}), recipe_section(training)],
    }
    images = thumbnails.encoded()
    line = header_line(
        splits_text(table),
        model_text(backbone or settings(training.recipe).get("model.backbone"), embeddings.shape[1]),
        summary(evaluation),
        left_out_text(num_left_out),
        *thumbnails.notes(),
    )
    write_bytes(path, document(title, line, groups, {"map": map_data, "images": images}))
