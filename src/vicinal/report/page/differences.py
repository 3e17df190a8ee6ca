"""Metrics of several sets side by side, and by how much they differ from the first set's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.evaluation.result import common_metrics
from vicinal.evaluation.uncertainty import query_classes
from vicinal.report.page.evaluated import EvaluatedSet
from vicinal.report.page.markup import Markup, Section, element, note, percent, section, table
from vicinal.report.page.metrics import Intervals, few_classes, interval_text, named
from vicinal.report.page.search import gallery_rows

BEST = "★"

Differences = Mapping[str, Intervals]


def differences_section(sets: Mapping[str, EvaluatedSet], differences: Differences, level: float) -> Section:
    """Every metric that all sets have; below each value its interval.

    Sets that were not evaluated on what the first one was have no differences to it, and then no value is the best.
    """
    first, *others = sets
    reasons = {name: apart(sets[first], sets[name]) for name in others}
    alike = [name for name in others if reasons[name] is None]
    columns = ["metric", *sets, *(f"{name} − {first}" for name in alike)]
    lines = [
        [
            named(metric),
            *_values(sets, metric, starred=alike == others),
            *(_difference(sets, first, name, metric, differences) for name in alike),
        ]
        for metric in common_metrics(each.evaluation for each in sets.values())
    ]
    whole = table("Every metric", columns, lines, range(1, len(columns)))
    remarks = [f"No difference of {name} to {first}: {reason}." for name, reason in reasons.items() if reason]
    if any(each.intervals for each in sets.values()) or any(differences.get(name) for name in alike):
        remarks += _few_classes(sets)
    lead = _lead(sets, {name: differences.get(name, {}) for name in alike}, level, starred=alike == others)
    return section("metrics", "Differences", lead, *map(note, remarks), whole)


def apart(first: EvaluatedSet, other: EvaluatedSet) -> str | None:
    """Why metrics of two sets cannot be compared; None where protocol, queries and gallery are the same.

    Images are the same if the names of their files are, as in a set that was moved, and their labels.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.data import Table
        >>> from vicinal.evaluation import evaluate
        >>> tables = [Table(pd.DataFrame({"label": ["cat"] * images})) for images in (3, 4)]
        >>> vectors = [np.eye(4)[:3], np.eye(4)]
        >>> apart(*(EvaluatedSet(*each, evaluate(*each)) for each in zip(vectors, tables)))
        '4 queries against 3'
    """
    before, after = first.evaluation, other.evaluation
    if before.protocol != after.protocol:
        return f"its protocol is {after.protocol}, not {before.protocol}"
    by_name = first.table.has("path") and other.table.has("path")
    sides = {
        "queries": (before.query_rows, after.query_rows),
        "gallery images": (gallery_rows(first.table, before), gallery_rows(other.table, after)),
    }
    for what, (ours, theirs) in sides.items():
        if len(ours) != len(theirs):
            return f"{len(theirs):,} {what} against {len(ours):,}"
        if _images(first.table, ours, by_name) != _images(other.table, theirs, by_name):
            return f"its {what} are others, or have other labels"
    return None


def _images(images: Table, rows: npt.NDArray[np.int64], by_name: bool) -> list[tuple[str, str]]:
    """What makes images the same: names and labels, in an order of their own."""
    labels = images.frame["label"].astype(str).tolist()
    names = [PurePath(path).name for path in images.paths] if by_name else [str(row) for row in range(len(images))]
    return sorted((names[row], labels[row]) for row in rows.tolist())


def _lead(sets: Mapping[str, EvaluatedSet], differences: Differences, level: float, starred: bool) -> str:
    lead = "Means over the queries" + (f", {BEST} at the best of each line" if starred else "")
    lead += f", and differences to {next(iter(sets))} in percentage points. " if differences else ". "
    if not any(differences.values()) and not any(each.intervals for each in sets.values()):
        return lead
    lead += f"Small numbers are {100 * level:g} % intervals"
    return lead + ("; where that of a difference holds 0, chance may explain it." if any(differences.values()) else ".")


def _few_classes(sets: Mapping[str, EvaluatedSet]) -> list[str]:
    least = min(query_classes(each.table, each.evaluation) for each in sets.values())
    return [remark] if (remark := few_classes(least)) else []


def _values(sets: Mapping[str, EvaluatedSet], metric: str, starred: bool) -> list[Markup]:
    values = [each.evaluation.metrics[metric] for each in sets.values()]
    highest = max(values) if starred and len(set(values)) > 1 else None
    ends = [(each.intervals or {}).get(metric) for each in sets.values()]
    return [_value(value, each, value == highest) for value, each in zip(values, ends, strict=True)]


def _value(value: float, ends: tuple[float, float] | None, best: bool) -> Markup:
    small = [] if ends is None else [element("br"), element("small", interval_text(ends))]
    return element("span", f"{BEST} " if best else "", percent(value), *small, class_="best" if best else None)


def _difference(
    sets: Mapping[str, EvaluatedSet], first: str, name: str, metric: str, differences: Differences
) -> Markup:
    change = 100 * (sets[name].evaluation.metrics[metric] - sets[first].evaluation.metrics[metric])
    ends = differences.get(name, {}).get(metric)
    if ends is None:
        return element("span", f"{change:+.2f}")
    low, high = (100 * end for end in ends)
    text = f"{low:+.2f} to {high:+.2f}"
    word, kind = ("▲ better", "right") if low > 0 else ("▼ worse", "wrong") if high < 0 else ("not clear", "open")
    verdict = element("span", word, class_=f"verdict {kind}")
    return element("span", f"{change:+.2f} ", verdict, element("br"), element("small", text))
