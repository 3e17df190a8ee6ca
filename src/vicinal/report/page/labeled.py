"""The page about one set of embeddings with labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.analysis import (
    QueryNeighbors,
    class_scores,
    confusion_matrix,
    confusions,
    label_errors,
    pair_similarities,
    queries_by_score,
    query_neighbors,
)
from vicinal.analysis.clustering import MAX_MAP_IMAGES
from vicinal.analysis.neighbors import check_evaluation
from vicinal.analysis.scores import query_metric, recall_metric
from vicinal.data.class_samples import round_robin
from vicinal.data.table import Table
from vicinal.evaluation.resampling import count_query_classes
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.common import (
    data_section,
    duplicates_section,
    hubs_section,
    map_section,
    similarities_section,
    summary,
)
from vicinal.report.page.frames import ImageFrames, Thumbnails, entry, entry_list, frame_list, image_frames, key
from vicinal.report.page.markup import (
    Markup,
    Section,
    breakable,
    document,
    element,
    figure,
    fold,
    header_line,
    left_out_text,
    model_text,
    percent,
    section,
    splits_text,
    table,
    tall,
    without_home,
)
from vicinal.report.page.metrics import bar, metrics_section
from vicinal.report.page.run import Run, curves_section, read_run, recipe_section, settings
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.console import counted
from vicinal.utils.files import write_bytes

NUM_WORST, NUM_BEST, NUM_RANDOM = 12, 6, 6
MAX_CLASSES = 200  # in the table of the weakest
MIN_CLASSES, NUM_BINS = 20, 20  # of the histogram of recall per class
MAX_CONFUSIONS, MAX_EXAMPLES = 30, 12
MAX_MATRIX_CLASSES = 16  # up to which confusions are drawn as a matrix
CONFUSIONS_TITLE = "Confusions between classes"
NUM_VOTES, MIN_VOTES = 5, 3  # of neighbors against a label
MAX_ERRORS = 12


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
    rerank: Reranking | None = None,
    map_images: int = MAX_MAP_IMAGES,
    seed: int = 0,
) -> None:
    """Write a page that opens from disk without a network: numbers, charts, queries with neighbors, and a map.

    The page has metrics, the worst queries and, to be unfolded, the best and some others, a t-SNE map that can be moved
    and zoomed, recall per class, confusions, similarities of pairs, hubs, duplicates and probable label errors,
    statistics of the data, and the learning curves and recipe of a run. It shows a part of many images, and says so.
    Neighbors are the nearest by cosine similarity, or by a re-ranking; beside a query that is enlarged, lines join the
    patches that it has in common with a neighbor, if these are re-ranked by local features.

    Args:
        path: the file, such as `report.html`; it is replaced as a whole.
        embeddings: float [rows, dim].
        table: one row per embedding, with labels; without paths the page has no images.
        evaluation: of both, as :func:`~vicinal.evaluation.evaluate` returns it.
        title: of the page.
        run: the folder of the run that the embeddings come from, for its recipe, its curves and its data.
        backbone: the name of the model's backbone, if it is known; for a run, its recipe names it.
        num_left_out: the number of files that were left out, because they cannot be read or are not images.
        results: the metrics of the evaluation with their confidence intervals, as
            :func:`~vicinal.evaluation.tabulate` returns them; None: without intervals.
        rerank: the method by which the evaluation was re-ranked, and neighbors are; duplicates are by similarity alone.
        map_images: the number of images on the map; 0: there is no map.
        seed: of all random choices.

    Raises:
        InputError: embeddings, table and evaluation do not belong together, or the run cannot be read.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from vicinal.evaluation import evaluate
        >>> embeddings, table = np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_page(f"{folder}/report.html", embeddings, table, evaluate(embeddings, table))
        ...     Path(f"{folder}/report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    title = without_home(title)
    training = Run() if run is None else read_run(run)
    neighbors = query_neighbors(embeddings, table, rerank=rerank)
    check_evaluation(evaluation, table)
    thumbnails = Thumbnails()
    frames = image_frames(thumbnails, table, rerank)
    on_map, map_data = map_section(embeddings, frames, neighbors, map_images, seed)
    groups: dict[str, list[Section | None]] = {
        "Results": [
            metrics_section(
                results or evaluation.to_results(), count_query_classes(evaluation, table), evaluation.method
            ),
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
            duplicates_section(frames, neighbors if rerank is None else query_neighbors(embeddings, table)),
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
    write_bytes(path, document(title, line, groups, {"map": map_data, "images": images, **frames.data()}))


def queries_section(frames: ImageFrames, neighbors: QueryNeighbors, evaluation: Evaluation, seed: int) -> Section:
    """The worst queries and, folded, the best and some others; one query per class as long as there are classes."""
    labels, metric = frames.table.labels, query_metric(evaluation)
    worst, best = (
        queries_by_score(neighbors, evaluation, ascending=ascending)["row"].to_numpy() for ascending in (True, False)
    )
    shuffled = np.random.default_rng(seed).permutation(neighbors.with_positives().queries)
    lead = "Queries with their neighbors, nearest first; one query per class, then another."

    def query_entries(rows: Integers, number: int) -> Markup:
        selected = round_robin(rows, labels)[:number].tolist()
        return entry_list(
            entry(_query_text(frames.labels[row], row, evaluation), frames.ranking(neighbors, row)) for row in selected
        )

    return section(
        "queries",
        "Queries and their neighbors",
        lead,
        key(frames.numbers),
        element("h3", f"Worst by {metric}"),
        query_entries(worst, NUM_WORST),
        fold(f"Best by {metric}", query_entries(best, NUM_BEST)),
        fold("Drawn at random", query_entries(shuffled, NUM_RANDOM)),
    )


def _query_text(label: str, row: int, evaluation: Evaluation) -> str:
    metric, query = query_metric(evaluation), int(np.searchsorted(evaluation.query_indices, row))
    text = f"{label} · {metric} {percent(float(evaluation.per_query[metric][query]))}"
    rank = int(evaluation.first_positive_ranks[query]) if len(evaluation.first_positive_ranks) else 0
    return f"{text} · first match at rank {rank:,}" if rank else text


def classes_section(evaluated: Table, evaluation: Evaluation) -> Section:
    """The weakest classes and, if there are many classes, a histogram of all."""
    scores = class_scores(evaluation, evaluated)
    recall = recall_metric(evaluation)
    recalls = scores[recall].to_numpy()
    num_perfect, num_weak = (recalls == 1).sum(), (recalls < 0.5).sum()
    text = f"{recall} of {len(scores):,} classes: {num_perfect:,} are at 100 %, {num_weak:,} below 50 %."
    chart = _histogram(recalls, recall, text) if len(scores) >= MIN_CLASSES else None
    lead = "Scores of the queries of each class; the weakest class first."
    weakest = _weakest(scores, recall, query_metric(evaluation))
    return section("classes", "Recall per class", lead if chart else f"{lead} {text}", chart, weakest)


def _histogram(recalls: Doubles, recall: str, text: str) -> Markup:
    edges = np.linspace(0, 100, NUM_BINS + 1)
    groups = {"classes": np.histogram(100 * recalls, edges)[0].astype(np.float64)}
    name = f"{recall} of a class, %"
    chart = histogram_chart(edges, groups, name, "classes", text)
    return figure(chart, text, bins_table(f"Classes by {recall}", name, edges, groups, ".0f"))


def _weakest(scores: pd.DataFrame, recall: str, metric: str) -> Markup:
    shown = scores.head(MAX_CLASSES)
    values = zip(shown["label"], shown["num_queries"], shown[recall], shown[metric], strict=True)
    lines = [
        [label, f"{queries:,}", percent(recalled), bar(recalled), percent(score)]
        for label, queries, recalled, score in values
    ]
    caption = f"The {len(shown):,} weakest of {len(scores):,} classes" if len(shown) < len(scores) else "All classes"
    columns = ("class", "queries", recall, f"{recall}, from 0 to 100 %", metric)
    return tall(table(caption, columns, lines, (1, 2, 4)))


def confusions_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """A matrix if there are few classes, and the most frequent confusions with an example of each."""
    neighbors = neighbors.with_positives()
    pairs = confusions(neighbors)
    lead = "The class of the nearest image where it differs from the query's. "
    if pairs.empty:
        return section(
            "confusions", CONFUSIONS_TITLE, f"{lead}The nearest image of every query with positives is of its class."
        )
    queries = counted(len(neighbors.queries), "query", "queries")
    lead += f"This holds for {pairs['num_queries'].sum():,} of {queries} with positives, "
    lead += f"in {counted(len(pairs), 'pair')} of classes."
    has_matrix = len(frames.table.classes) <= MAX_MATRIX_CLASSES
    return section(
        "confusions",
        CONFUSIONS_TITLE,
        lead,
        _matrix(confusion_matrix(neighbors)) if has_matrix else None,
        tall(_pairs_table(pairs.head(MAX_CONFUSIONS))),
        element("h3", "The most similar mismatch of each"),
        entry_list((_example(frames, each) for each in pairs.head(MAX_EXAMPLES).itertuples()), side_by_side=True),
    )


def _matrix(counts: pd.DataFrame) -> Markup:
    fractions = counts.div(counts.sum(axis=1).clip(lower=1), axis=0).to_numpy()
    names = [str(name) for name in counts.columns]
    size = range(len(names))
    lines = [
        [names[row], *(_count(counts.iat[row, column], fractions[row, column], row == column) for column in size)]
        for row in size
    ]
    heads = [element("span", breakable(name), class_="head", title=name) for name in names]
    caption = "Queries by class (rows) and by the class of their nearest image (columns); dark: a large fraction"
    return element("div", table(caption, ["class", *heads], lines, range(1, len(names) + 1)), class_="matrix")


def _count(count: Any, fraction: float, is_match: bool) -> Markup:
    kind = "match" if is_match else "mismatch"
    style = f"--fraction:{fraction:.3f}" if count else None
    return element("span", f"{count:,}", class_=f"fraction {kind}", style=style)


def _pairs_table(pairs: pd.DataFrame) -> Markup:
    values = zip(pairs["label"], pairs["nearest_label"], pairs["num_queries"], pairs["fraction"], strict=True)
    lines = [(label, nearest, f"{count:,}", percent(fraction)) for label, nearest, count, fraction in values]
    columns = ("class of the query", "class of its nearest image", "queries", "of the class")
    return table(f"The {len(lines)} most frequent pairs", columns, lines, (2, 3))


def _example(frames: ImageFrames, pair: Any) -> Markup:
    images = [frames.query(pair.query), frames.neighbor(pair.query, pair.neighbor, 1, pair.similarity)]
    return entry(f"{pair.label} → {pair.nearest_label}", frame_list(images))


def label_errors_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """The most certain errors, each with the neighbors that agree on another class."""
    errors = label_errors(neighbors, NUM_VOTES, MIN_VOTES)
    shown = errors.head(MAX_ERRORS)
    lead = (
        f"Queries whose {NUM_VOTES} nearest images are all of one other class (or as many as it has, "
        f"but at least {MIN_VOTES}): check the label. "
    )
    lead += f"There are {len(errors):,}" if len(errors) else "There are none"
    lead += f"; the {len(shown)} with the most similar neighbors are shown." if len(shown) < len(errors) else "."
    entries = [
        entry(
            f"Labeled as {each.label}; neighbors' label: {each.suggested_label}",
            frames.ranking(neighbors, each.row, each.num_votes),
        )
        for each in shown.itertuples()
    ]
    shown_errors = entry_list(entries, side_by_side=True) if entries else None
    return section("label-errors", "Probable label errors", lead, shown_errors)
