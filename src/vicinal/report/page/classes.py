"""How well the images of each class are found, the weakest class first."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis import class_scores
from vicinal.analysis.scores import query_metric, recall_metric
from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.markup import Markup, Section, figure, percent, section, table, tall
from vicinal.report.page.metrics import bar
from vicinal.utils.arrays import Doubles

MAX_CLASSES = 200  # in the table
MIN_CLASSES, NUM_BINS = 20, 20  # of a histogram


def classes_section(evaluated: Table, evaluation: Evaluation) -> Section:
    """The weakest classes and, if there are many classes, a histogram of all."""
    scores = class_scores(evaluation, evaluated)
    recall = recall_metric(evaluation)
    recalls = scores[recall].to_numpy()
    num_perfect, num_weak = (recalls == 1).sum(), (recalls < 0.5).sum()
    text = f"{recall} of {len(scores):,} classes: {num_perfect:,} are at 100 %, {num_weak:,} below 50 %."
    chart = _histogram(recalls, recall, text) if len(scores) >= MIN_CLASSES else None
    lead = "How well the queries of each class find others of it; the weakest class first."
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
