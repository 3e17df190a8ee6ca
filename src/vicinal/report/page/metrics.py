"""Every metric with its interval, its meaning, and a bar between 0 and 100 %."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from vicinal.evaluation.resampling import MIN_CLASSES
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.markup import Markup, Section, element, fold, joined, note, percent, section, table
from vicinal.utils.console import counted

HEADLINES = ("recall@1", "R-precision", "mAP@R", "mAP")
MEANINGS = {
    "recall@": "queries with an image of their class among the first {}",
    "precision@": "of the first {} images, those of the query's class",
    "positives_recall@": "of the images of the query's class, those among the first {}",
    "mAP@": "average precision of the first {} images",
    "recall@1": "queries whose nearest image is of their class",
    "mAP@R": "R-precision in which hits at earlier ranks count more",
    "R-precision": "of the first R images, those of the query's class, which has R images to find",
    "mAP": "average precision of the whole ranking: precision at each image of the class, averaged",
    "MRR": "mean of 1 / rank of the first image of the query's class",
    "mP@": "of the first {} images (or of those up to the last relevant one), those that are relevant",
    "NMI": "of all images, not of queries: mutual information of k-means clusters and classes",
    "AMI": "of all images, not of queries: NMI, adjusted for chance",
    "F1": "of all images, not of queries: pairs that are together in k-means clusters and classes, F-score",
}
DIFFICULTIES = {  # of the revisited Oxford and Paris, whose queries have no classes
    "easy": "easy images are relevant",
    "medium": "easy and hard images are relevant",
    "hard": "hard images are relevant",
}
RELEVANT = {"mAP": "average precision of the whole ranking: precision at each relevant image, averaged"}


def metrics_section(results: ResultsTable, num_classes: int, method: str | None = None) -> Section:
    """The headlines as cards, then every metric; `method` is the re-ranking, if there was one."""
    rows = results.overall()
    names = headlines(rows.index)
    has_intervals = bool(rows["low"].notna().any())
    level = level_text(results)
    cards = [_card(name, row) for name, row in zip(names, rows.loc[names].itertuples(), strict=True)]
    columns = ["metric", f"value, {level}" if has_intervals else "value", "from 0 to 100 %"]
    lines = map(_line, rows.itertuples())
    remark = few_classes(num_classes) if has_intervals else "No confidence intervals were given."
    lead = "Means over all queries with positives" + (f", with {level}." if has_intervals else ".")
    lead += f" Rankings are re-ranked by {method}." if method else ""
    return section(
        "metrics",
        "Metrics",
        lead,
        element("ul", *cards, class_="cards"),
        note(remark) if remark else None,
        fold("Every metric and what it measures", table("Every metric", columns, lines, (1,))),
    )


def headlines(names: Iterable[str]) -> list[str]:
    """The metrics that are read first, those of the papers or else the first four."""
    given = list(names)
    return [name for name in HEADLINES if name in given] or given[:4]


def level_text(results: ResultsTable) -> str:
    """A name of the intervals, such as `95 % intervals`."""
    return f"{100 * (results.confidence_level or 0):g}\N{NO-BREAK SPACE}% intervals"


def few_classes(classes: int) -> str | None:
    """A remark on intervals of few classes; None if there are enough."""
    if classes >= MIN_CLASSES:
        return None
    number = counted(classes, "class", "classes")
    return f"The queries are of {number}; with fewer than {MIN_CLASSES} the intervals are too narrow."


def meaning(name: str) -> str:
    """The meaning of a metric in plain words; an empty text for an unknown one."""
    level, _, metric = name.rpartition("/")
    kind, at, cut = metric.partition("@")
    if level in DIFFICULTIES:
        text = RELEVANT.get(metric) or MEANINGS.get(kind + at, "").format(cut)
        return f"{text}; {DIFFICULTIES[level]}" if text else ""
    text = MEANINGS.get(metric) or MEANINGS.get(kind + at, "").format(cut)
    return text.replace("class", f"{level} class") if level else text


def named(name: str) -> Markup:
    """A metric's name with its meaning below."""
    return joined([element("span", name, class_="unbroken"), element("small", meaning(name), class_="meaning")])


def bounds(row: Any, name: str = "") -> tuple[float, float] | None:
    """The confidence interval in a row of results, or that of its difference; None where there is none."""
    low, high = getattr(row, f"{name}low"), getattr(row, f"{name}high")
    return None if pd.isna(low) else (low, high)


def interval_text(ends: tuple[float, float]) -> str:
    """Both ends in percent."""
    return f"{100 * ends[0]:.2f} to {percent(ends[1])}"


def value_with_interval(row: Any) -> Markup:
    """The value in a row of results in percent, and below it its confidence interval if there is one."""
    ends = bounds(row)
    small = [] if ends is None else [element("br"), element("small", interval_text(ends), class_="ends")]
    return joined([percent(row.value), *small])


def bar(value: float, ends: tuple[float, float] | None = None) -> Markup:
    """A value between 0 and 1 as a bar, its interval as a line over the bar's end; for the eye alone."""
    part, (low, high) = _clipped_percent(value), map(_clipped_percent, ends or (0.0, 0.0))
    parts = [element("span", class_="part", style=f"width:{part:.1f}%")]
    if ends is not None:
        parts.append(element("span", class_="interval", style=f"left:{low:.1f}%;width:{high - low:.1f}%"))
    return element("span", *parts, class_="bar-chart", aria_hidden="true")


def _clipped_percent(fraction: float) -> float:
    return 100 * min(max(fraction, 0.0), 1.0) if fraction == fraction else 0.0


def _card(name: str, row: Any) -> Markup:
    ends = bounds(row)
    interval = None if ends is None else element("span", interval_text(ends), class_="ends")
    return element(
        "li", element("span", name, class_="name"), element("strong", percent(row.value)), interval, class_="card"
    )


def _line(row: Any) -> list[Markup]:
    return [named(str(row.Index)), value_with_interval(row), bar(row.value, bounds(row))]
