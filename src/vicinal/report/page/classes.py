"""How well each class is found, the weakest first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.protocol import Evaluation
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.markup import Markup, Section, figure, percent, section, table, tall
from vicinal.report.page.metrics import bar
from vicinal.report.page.scores import recall_name, score_name

MOST_CLASSES = 200  # in the table
FEWEST_CLASSES, SHARE_BINS = 20, 20  # for a histogram, and in it

Integers = npt.NDArray[np.int64]


class ClassScore(NamedTuple):
    """How well one class is found: its code, its queries that count, and the means of two metrics over them."""

    label: int
    queries: int
    recall: float
    score: float


def class_scores(labels: Integers, evaluation: Evaluation) -> list[ClassScore]:
    """Every class that has a query that counts, the weakest first.

    Args:
        labels: int64 [rows], codes of the table's classes.
        evaluation: whose queries are rows of it.

    Example:
        >>> from vicinal.evaluation import evaluate_arrays
        >>> found = evaluate_arrays(np.eye(2)[[0, 1, 1]], [0, 0, 1], np.eye(2), [0, 1], recall_at=[1])
        >>> [(each.label, each.recall) for each in class_scores(np.array([0, 0, 1]), found)]
        [(0, 0.5), (1, 1.0)]
    """
    frame = pd.DataFrame(
        {
            "label": labels[evaluation.query_rows],
            "recall": evaluation.per_query[recall_name(evaluation)],
            "score": evaluation.per_query[score_name(evaluation)],
        }
    ).dropna()
    grouped = frame.groupby("label").agg(queries=("recall", "size"), recall=("recall", "mean"), score=("score", "mean"))
    ordered = grouped.sort_values(["recall", "score", "queries"], ascending=[True, True, False], kind="stable")
    columns = (ordered.index, ordered["queries"], ordered["recall"], ordered["score"])
    return [ClassScore(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def classes_section(evaluated: Table, evaluation: Evaluation) -> Section:
    """The weakest classes and, of many, a histogram of all."""
    recall = recall_name(evaluation)
    scores = class_scores(evaluated.labels, evaluation)
    perfect, weak = sum(each.recall == 1 for each in scores), sum(each.recall < 0.5 for each in scores)
    text = f"{recall} of {len(scores):,} classes: {perfect:,} are at 100 %, {weak:,} below 50 %."
    drawn = _histogram(scores, recall, text) if len(scores) >= FEWEST_CLASSES else None
    lead = "How well the queries of each class find others of it; the weakest class first."
    return section(
        "classes",
        "Recall per class",
        lead if drawn else f"{lead} {text}",
        drawn,
        _weakest(scores, evaluated, evaluation),
    )


def _histogram(scores: list[ClassScore], recall: str, text: str) -> Markup:
    edges = np.linspace(0, 100, SHARE_BINS + 1)
    heights = np.histogram([100 * each.recall for each in scores], edges)[0].astype(np.float64)
    name, groups = f"{recall} of a class, %", {"classes": heights}
    chart = histogram_chart(edges, groups, name, "classes", text)
    return figure(chart, text, bins_table(f"Classes by {recall}", name, edges, groups, ".0f"))


def _weakest(scores: list[ClassScore], evaluated: Table, evaluation: Evaluation) -> Markup:
    recall, score = recall_name(evaluation), score_name(evaluation)
    shown = scores[:MOST_CLASSES]
    lines = [
        [
            evaluated.classes[each.label],
            f"{each.queries:,}",
            percent(each.recall),
            bar(each.recall),
            percent(each.score),
        ]
        for each in shown
    ]
    part = f"The {len(shown):,} weakest of {len(scores):,} classes" if len(shown) < len(scores) else "All classes"
    columns = ("class", "queries", recall, f"{recall}, from 0 to 100 %", score)
    return tall(table(part, columns, lines, (1, 2, 4)))
