"""Sections of several kinds of pages: data, similarities, hubs, near duplicates, and the map of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from vicinal.analysis import PairSimilarities, QueryNeighbors, embedding_map, hubness, near_duplicates
from vicinal.analysis.duplicates import DUPLICATE_SIMILARITY
from vicinal.data.statistics import Statistics
from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.result import Evaluation
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.frames import SMALL, ImageFrames, entry, entry_list, frame_list
from vicinal.report.page.markup import Markup, Section, facts, figure, note, percent, render, section, table
from vicinal.report.page.run import Run
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Integers
from vicinal.utils.console import counted

SIDE = 10_000  # coordinates are whole numbers from 0 to this
LEAD = "The embeddings in two dimensions (t-SNE): near points are similar images, distances between groups say little. "
MAX_BINS = 40  # of class sizes
SIMILARITIES_LEAD = (
    "How similar two images of one class are, and two of different classes; the less these overlap, the better."
)
MAX_HUBS = 12
MAX_PAIRS = 24


def map_section(
    embeddings: Array, frames: ImageFrames, neighbors: QueryNeighbors, max_images: int, seed: int
) -> tuple[Section, dict[str, Any] | None]:
    """The section with the map, and the map's data; None if there is no map."""
    if not max_images:
        return section("map", "Map", "No map was requested."), None
    points = embedding_map(embeddings, frames.table, max_images, seed)
    if points.empty:
        return section("map", "Map", "There are too few images for a map, or all are the same."), None
    is_labeled = frames.table.has("label")
    classes = [frames.labels[row] if is_labeled else "image" for row in points["row"]]
    labels, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    total = len(neighbors.gallery)
    shown = f"{len(points):,} of {total:,} images, drawn at random{' class by class' if is_labeled else ''}."
    lead = LEAD + (shown if len(points) < total else f"All {total:,} images.")
    content = render("map.html", is_labeled=is_labeled, counts=dict(zip(labels, counts, strict=True)), size=len(points))
    return section("map", "Map", lead, content), _data(points, labels.tolist(), codes.tolist(), frames, neighbors)


def _data(
    points: pd.DataFrame, classes: list[str], labels: list[int], frames: ImageFrames, neighbors: QueryNeighbors
) -> dict[str, Any]:
    x, y = np.rint(points[["x", "y"]].to_numpy() * SIDE).astype(np.int64).T
    return {
        "side": SIDE,
        "classes": classes,
        "x": x.tolist(),
        "y": y.tolist(),
        "label": labels,
        "image": [frames.thumbnails.number(frames.table, row, SMALL) for row in points["row"].tolist()],
        "match": _nearest_is_match(neighbors)[points["row"]].tolist(),
    }


def _nearest_is_match(neighbors: QueryNeighbors) -> Integers:
    """For each image 1 or 0, whether its nearest is of its class; -1 if it is not a query that can find its class."""
    match = np.full(len(neighbors.table), -1)
    queries = neighbors.with_positives()
    match[queries.queries] = queries.same_class[:, 0]
    return match


def summary(evaluation: Evaluation) -> str:
    """A line about the evaluated images."""
    return f"{evaluation.protocol}: {evaluation.num_queries:,} queries, {evaluation.num_gallery:,} gallery images"


def evaluated_images(table: Table) -> Table:
    """The rows that are queries or gallery images."""
    return table.take(np.union1d(*query_gallery_rows(table)))


def data_section(evaluated: Table, evaluation: Evaluation, run: Run) -> Section:
    """Images and classes of the evaluated table and of every split of the run."""
    part = evaluated_images(evaluated)
    known = [
        ("Protocol", evaluation.protocol),
        ("Queries", f"{evaluation.num_queries:,}"),
        ("Gallery images", f"{evaluation.num_gallery:,}"),
        ("Queries without positives, not counted", f"{evaluation.num_without_positive:,}"),
        ("Positives tied with other images", f"{evaluation.num_ties:,}"),
    ]
    parts: list[object] = [facts(known), statistics_table("What was evaluated", part.statistics())]
    if run.table is not None:
        parts.append(statistics_table("All images of the run", run.table.statistics()))
    lead = "Numbers of images and classes, and of images per class."
    return section("data", "Data", lead, *parts, sizes_figure(part.class_counts))


def statistics_table(caption: str, statistics: Statistics) -> Markup:
    """One row per split and, if there are several, one for all of them."""
    extra = [name.replace("_", " ") for name in (*statistics.coarse, *statistics.noise)]
    columns = ["split", "images", "classes", "smallest class", "median class", "largest class", *extra]
    splits = list(statistics.splits.items())
    lines = [_statistics_row(*each) for each in (splits if len(splits) == 1 else [*splits, ("all", statistics)])]
    return table(caption, columns, lines, range(1, len(columns)))


def sizes_figure(counts: Integers) -> Markup:
    """A histogram of the class sizes."""
    width = max(-(-int(np.ptp(counts) + 1) // MAX_BINS), 1)
    edges = np.arange(counts.min(), counts.max() + width + 1, width).astype(np.float64)
    groups = {"classes": np.histogram(counts, edges)[0].astype(np.float64)}
    sizes = f"{counts.min():,} to {counts.max():,} images, {np.median(counts):g} in the middle"
    text = f"{counted(len(counts), 'class', 'classes')} of {sizes}."
    chart = histogram_chart(edges, groups, "images of a class", "classes", text)
    return figure(chart, text, bins_table("Classes by size", "images of a class", edges, groups, "g"))


def _statistics_row(name: str, part: Statistics) -> list[str]:
    per_class = [f"{part.min_per_class:,}", f"{part.median_per_class:g}", f"{part.max_per_class:,}"]
    sizes = [f"{part.num_classes:,}", *per_class] if part.num_classes else "––––"
    coarse = [f"{number:,}" for number in part.coarse.values()]
    return [name, f"{part.num_images:,}", *sizes, *coarse, *map(percent, part.noise.values())]


def similarities_section(similarities: PairSimilarities) -> Section | None:
    """Histograms of positive and of negative pairs; None if there are no pairs of a kind."""
    chart = similarities_figure(similarities)
    return None if chart is None else section("similarities", "Similarities", SIMILARITIES_LEAD, chart)


def similarities_figure(similarities: PairSimilarities) -> Markup | None:
    """The histograms, with means and overlap in the caption; None if there are no pairs of a kind."""
    positive, negative = similarities.positive, similarities.negative
    if not len(positive) or not len(negative):
        return None
    histogram = similarities.histogram()
    groups = {"of one class": 100 * histogram.positive, "of two classes": 100 * histogram.negative}
    x_name, y_name = "cosine similarity", "% of the pairs"
    text = (
        f"{len(positive):,} pairs of one class (mean {positive.mean():.3f}) and {len(negative):,} of two "
        f"(mean {negative.mean():.3f}), drawn at random. The histograms overlap by {percent(histogram.overlap)}."
    )
    numbers = bins_table("% of the pairs, by similarity", x_name, histogram.edges, groups, ".3f")
    return figure(histogram_chart(histogram.edges, groups, x_name, y_name, text), text, numbers)


def hubs_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """The images that are in the most lists of neighbors."""
    result = hubness(neighbors)
    lead = (
        f"Images that are among the {neighbors.k} nearest of very many queries: on average an image is in "
        f"{result.mean:.1f} of these lists. Images in none of them: {result.num_antihubs:,}."
    )
    skewness = (
        f"Skewness of the number of lists: {result.skewness:.2f}. "
        "At 0 all images are found equally often; far above 0 a few are in very many lists."
    )
    top = result.occurrences.query("k_occurrence > 1").head(MAX_HUBS)
    hubs = [_hub(frames, *each) for each in top.itertuples(index=False)]
    shown = entry_list([entry("In most lists", frame_list(hubs))]) if hubs else None
    return section("hubs", "Hubs", lead, note(skewness), shown)


def _hub(frames: ImageFrames, row: int, count: int, same_class_fraction: float) -> Markup:
    text = f"in {count:,} lists"
    if frames.table.has("label"):
        text += f", {percent(same_class_fraction)} of them of its class"
    return frames.frame(row, "plain", f"{count:,} lists", text)


def duplicates_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """Pairs with two labels, then the others, the most similar pair first."""
    pairs = near_duplicates(neighbors).sort_values("same_label", kind="stable")
    lead = (
        f"Images that are probably the same: among the {neighbors.k} nearest of each query, "
        f"more similar than {DUPLICATE_SIMILARITY}. "
    )
    if pairs.empty:
        return section("duplicates", "Duplicates", f"{lead}There are none.")
    shown = pairs.head(MAX_PAIRS)
    is_labeled = frames.table.has("label")
    lead += f"There are {counted(len(pairs), 'pair')}"
    lead += f", {(~pairs['same_label']).sum():,} with two labels." if is_labeled else "."
    if len(shown) < len(pairs):
        lead += f" {len(shown)} are shown, {'those with two labels' if is_labeled else 'the most similar'} first."
    entries = (_pair(frames, each.first, each.second, each.similarity) for each in shown.itertuples())
    return section("duplicates", "Duplicates", lead, entry_list(entries, side_by_side=True))


def _pair(frames: ImageFrames, first: int, second: int, similarity: float) -> Markup:
    images = [frames.frame(first, "query", "first", "first of two"), frames.neighbor(first, second, 1, similarity)]
    return entry(f"Similarity {similarity:.5f}", frame_list(images))
