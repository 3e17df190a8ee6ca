"""Metrics of several sets side by side, and by how much they differ from the first set's."""

from __future__ import annotations

from collections.abc import Mapping

from vicinal.report.page.evaluated import EvaluatedSet
from vicinal.report.page.markup import Markup, Section, element, percent, section, table
from vicinal.report.page.metrics import Intervals, interval_text, named

BEST = "★"

Differences = Mapping[str, Intervals]


def differences_section(sets: Mapping[str, EvaluatedSet], differences: Differences, level: float) -> Section:
    """Every metric that all sets have; below each value its interval."""
    first, *others = sets
    columns = ["metric", *sets, *(f"{name} − {first}" for name in others)]
    lines = [
        [
            named(metric),
            *_values(sets, metric),
            *(_difference(sets, first, name, metric, differences) for name in others),
        ]
        for metric in common_metrics(sets)
    ]
    lead = (
        f"Means over the queries, {BEST} at the best of each line, and differences to {first} in percentage points. "
        f"Small numbers are {100 * level:g} % intervals; where that of a difference holds 0, chance may explain it."
    )
    return section("metrics", "Differences", lead, table("Every metric", columns, lines, range(1, len(columns))))


def common_metrics(sets: Mapping[str, EvaluatedSet]) -> list[str]:
    """Those that all sets have, in the first one's order."""
    first, *others = (each.evaluation.metrics for each in sets.values())
    return [metric for metric in first if all(metric in other for other in others)]


def _values(sets: Mapping[str, EvaluatedSet], metric: str) -> list[Markup]:
    values = [each.evaluation.metrics[metric] for each in sets.values()]
    highest = max(values) if len(set(values)) > 1 else None
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
