"""What was evaluated, and all data of the run: images, classes and class sizes."""

from __future__ import annotations

import numpy as np

from vicinal.data.statistics import Statistics
from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.result import Evaluation
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.markup import Markup, Section, facts, figure, percent, section, table
from vicinal.report.page.run import Run
from vicinal.utils.arrays import Integers
from vicinal.utils.wording import counted

MAX_BINS = 40  # of class sizes


def summary(evaluation: Evaluation) -> str:
    """What was evaluated, in a line.

    Example:
        >>> from vicinal.evaluation import evaluate_arrays
        >>> summary(evaluate_arrays(np.eye(2), [0, 1], np.eye(2), [0, 1], recall_at=[1]))
        'query/gallery: 2 queries, 2 gallery images'
    """
    return f"{evaluation.protocol}: {evaluation.num_queries:,} queries, {evaluation.num_gallery:,} gallery images"


def evaluated_images(table: Table) -> Table:
    """The rows that are queries or gallery images.

    Example:
        >>> import pandas as pd
        >>> sides = {"is_query": [True, False, False], "is_gallery": [False, True, False]}
        >>> len(evaluated_images(Table(pd.DataFrame({"label": ["cat", "cat", "dog"], **sides}))))
        2
    """
    return table.take(np.union1d(*query_gallery_rows(table)))


def data_section(evaluated: Table, evaluation: Evaluation, run: Run) -> Section:
    """Images and classes of what was evaluated and of every split of the run."""
    part = evaluated_images(evaluated)
    known = [
        ("Protocol", evaluation.protocol),
        ("Queries", f"{evaluation.num_queries:,}"),
        ("Gallery images", f"{evaluation.num_gallery:,}"),
        ("Queries with nothing to find, not counted", f"{evaluation.num_without_positive:,}"),
        ("Positives tied with other images", f"{evaluation.num_ties:,}"),
    ]
    parts: list[object] = [facts(known), statistics_table("What was evaluated", part.statistics())]
    if run.table is not None:
        parts.append(statistics_table("All images of the run", run.table.statistics()))
    lead = "How many images and classes there are, and how many images a class has."
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
