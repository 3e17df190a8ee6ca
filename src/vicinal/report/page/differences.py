"""Metrics of several sets side by side, and by how much they differ from the first set's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath

import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.paired import common_metrics
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.resampling import count_query_classes
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.evaluated import EvaluatedEmbeddings
from vicinal.report.page.markup import Markup, Section, element, fold, joined, note, section, table
from vicinal.report.page.metrics import bounds, few_classes, headlines, level_text, named, value_with_interval
from vicinal.utils.arrays import Integers

BEST = "★"
MAX_UNBROKEN = 22  # characters of a name that is kept in one line


def differences_section(sets: Mapping[str, EvaluatedEmbeddings], results: ResultsTable) -> Section:
    """Every metric that all sets have; below each value its interval.

    Sets that were not evaluated on what the first one was have no differences to it, and then no value is the best.

    Args:
        sets: name -> what is compared.
        results: the metrics of all sets, with intervals of values and differences where they are known.
    """
    first, *others = sets
    reasons = {name: apart(sets[first], sets[name]) for name in others}
    alike = [name for name in others if reasons[name] is None]
    starred = alike == others
    rows = {name: results.overall(name) for name in sets}
    heads = [joined([_unbroken(name), " ", _unbroken(f"− {first}")]) for name in alike]
    columns = ["metric", *heads, *map(_unbroken, sets)]
    lines = {
        metric: [
            named(metric),
            *(_difference(rows[first].loc[metric], rows[name].loc[metric]) for name in alike),
            *_values([each.loc[metric] for each in rows.values()], starred),
        ]
        for metric in common_metrics(*(each.evaluation for each in sets.values()))
    }
    shown = headlines(lines)
    further = [line for metric, line in lines.items() if metric not in shown]
    numbers = range(1, len(columns))
    main = table("The metrics that are read first", columns, [lines[metric] for metric in shown], numbers)
    remarks = [f"No difference of {name} to {first}: {reason}." for name, reason in reasons.items() if reason]
    has_intervals = any(each["low"].notna().any() for each in rows.values())
    has_tested = any(rows[name]["difference_low"].notna().any() for name in alike)
    if has_intervals or has_tested:
        remarks += _few_classes(sets)
    lead = "In percentage points, beside the means over the queries" if alike else "Means over the queries"
    lead += f"; {BEST} marks the best of each line." if starred else "."
    if has_intervals or has_tested:
        remarks.insert(0, _intervals_remark(results, has_tested, rows.values()))
    rest = fold("Further metrics", table("Further metrics", columns, further, numbers)) if further else None
    main = element("div", main, class_="headlines")
    return section("metrics", "Differences", lead, main, *map(note, remarks), rest)


def _intervals_remark(results: ResultsTable, has_tested: bool, rows: Iterable[pd.DataFrame]) -> str:
    text = f"Small numbers are {level_text(results)}"
    text += "; where that of a difference holds 0, chance may explain it." if has_tested else "."
    if any(each["p_value"].notna().any() for each in rows):
        text += " p: how often chance alone gives so large a difference (permutation test)."
    return text


def apart(first: EvaluatedEmbeddings, other: EvaluatedEmbeddings) -> str | None:
    """Why metrics of two sets cannot be compared; None where protocol, queries and gallery are the same.

    Images are the same if the names of their files are, as in a set that was moved, and their labels.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.data import Table
        >>> from vicinal.evaluation import evaluate
        >>> tables = [Table(pd.DataFrame({"label": ["cat"] * images})) for images in (3, 4)]
        >>> vectors = [np.eye(4)[:3], np.eye(4)]
        >>> apart(*(EvaluatedEmbeddings(*each, evaluate(*each)) for each in zip(vectors, tables)))
        '4 queries against 3'
    """
    before, after = first.evaluation, other.evaluation
    if before.protocol != after.protocol:
        return f"its protocol is {after.protocol}, not {before.protocol}"
    by_name = first.table.has("path") and other.table.has("path")
    sides = {
        "queries": (before.query_indices, after.query_indices),
        "gallery images": (query_gallery_rows(first.table)[1], query_gallery_rows(other.table)[1]),
    }
    for what, (ours, theirs) in sides.items():
        if len(ours) != len(theirs):
            return f"{len(theirs):,} {what} against {len(ours):,}"
        if _images(first.table, ours, by_name) != _images(other.table, theirs, by_name):
            return f"its {what} are others, or have other labels"
    return None


def _images(images: Table, rows: Integers, by_name: bool) -> list[tuple[str, str]]:
    """What makes images the same: names and labels, in an order of their own."""
    labels = images.frame["label"].astype(str).tolist()
    names = [PurePath(path).name for path in images.paths] if by_name else [str(row) for row in range(len(images))]
    return sorted((names[row], labels[row]) for row in rows.tolist())


def _few_classes(sets: Mapping[str, EvaluatedEmbeddings]) -> list[str]:
    fewest = min(count_query_classes(each.evaluation, each.table) for each in sets.values())
    return [remark] if (remark := few_classes(fewest)) else []


def _values(rows: list[pd.Series], starred: bool) -> list[Markup]:
    values = [row.value for row in rows]
    highest = max(values) if starred and len(set(values)) > 1 else None
    return [_value(row, row.value == highest) for row in rows]


def _unbroken(name: str) -> Markup:
    """A name in one line, if it is short."""
    return element("span", name, class_="unbroken" if len(name) <= MAX_UNBROKEN else None)


def _value(row: pd.Series, best: bool) -> Markup:
    return element("span", f"{BEST} " if best else "", value_with_interval(row), class_="best" if best else None)


def _difference(first: pd.Series, other: pd.Series) -> Markup:
    change = f"{100 * (other.value - first.value):+.2f}"
    ends = bounds(other, "difference_")
    if ends is None:
        return element("span", change)
    low, high = (100 * end for end in ends)
    text = f"{low:+.2f} to {high:+.2f}"
    word, kind = ("▲ better", "better") if low > 0 else ("▼ worse", "worse") if high < 0 else ("not clear", "open")
    verdict = element("span", word, class_=f"verdict {kind}")
    p_value = "" if pd.isna(other.p_value) else f" · p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{other.p_value:.2g}"
    return element("span", f"{change} ", verdict, element("br"), element("small", text, p_value, class_="ends"))
