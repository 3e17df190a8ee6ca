"""A page of several evaluated sets side by side: what is different first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.protocol import Evaluation
from vicinal.files import write_bytes
from vicinal.report.page.cells import Cells, cell_list, entry, rows
from vicinal.report.page.findings import score_name
from vicinal.report.page.markup import Markup, Section, element, joined, page, percent, section, table
from vicinal.report.page.pairs import pair_similarities
from vicinal.report.page.pictures import Pictures
from vicinal.report.page.run import Run, read_run, settings
from vicinal.report.page.search import Neighborhood, neighborhood
from vicinal.report.page.sections import (
    Intervals,
    curves_section,
    interval_text,
    similarities_section,
    statistics_table,
    unreadable_note,
)
from vicinal.report.page.single import THUMBNAIL_BYTES, summary
from vicinal.retrieval.scores import Array

BEST = "★"
MOST_CHANGES = 10  # queries that got better, and as many that got worse

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class EvaluatedSet(NamedTuple):
    """What is compared.

    Attributes:
        vectors: float [rows, dim].
        table: one row a vector, with labels.
        evaluation: of both.
        run: the folder of the run they come from, if they do.
        intervals: metric -> its confidence interval, from 0 to 1.
    """

    vectors: Array
    table: Table
    evaluation: Evaluation
    run: str | Path | None = None
    intervals: Intervals | None = None


class Changes(NamedTuple):
    """Queries that two sets share, and how their scores differ.

    Attributes:
        metric: by which they are compared.
        before: int64 [n], which of the first evaluation's queries.
        after: int64 [n], which of the second's.
        difference: float64 [n], second less first; all have a score in both.
    """

    metric: str
    before: Integers
    after: Integers
    difference: Floats


def write_comparison_page(
    path: str | Path,
    sets: Mapping[str, EvaluatedSet],
    *,
    title: str = "Comparison",
    differences: Mapping[str, Intervals] | None = None,
    seed: int = 0,
) -> None:
    """Write a page, as :func:`~vicinal.report.page.write_page` does, of several sets: the others against the first.

    It has the metrics side by side, the queries that got better and worse with their neighbours in both, settings that
    differ, learning curves on common axes, similarities of pairs, and the data.

    Args:
        path: of the file; replaced as a whole.
        sets: name -> what is compared, two or more. Queries are the same if their paths are; without paths, if they are
            the same rows of tables with the same labels.
        title: of the page.
        differences: name of a set -> metric -> the confidence interval of its difference to the first set.
        seed: of the pairs drawn.

    Raises:
        InputError: fewer than two sets, a difference of an unknown set, or as `write_page`.
        OSError: the file cannot be written.
    """
    _check(sets, differences or {})
    pictures = Pictures()
    runs = {name: Run() if each.run is None else read_run(each.run) for name, each in sets.items()}
    found = {name: neighborhood(each.vectors, each.table, each.evaluation) for name, each in sets.items()}
    cells = {name: Cells(pictures, each.table) for name, each in sets.items()}
    sections = [
        comparison_section(sets, differences or {}),
        changes_section(sets, found, cells),
        settings_section(runs),
        curves_section(runs),
        _similarities_section(sets, found, seed),
        _data_section(sets),
    ]
    data = {"map": None, "images": pictures.encoded(THUMBNAIL_BYTES)}
    there = [part for part in sections if part is not None]
    there[-1] = there[-1].extended(unreadable_note(pictures))
    write_bytes(path, page(title, " against ".join(reversed(list(sets))), there, data))


def _check(sets: Mapping[str, EvaluatedSet], differences: Mapping[str, Intervals]) -> None:
    if len(sets) < 2:
        raise InputError(f"{len(sets)} evaluated sets; a comparison needs two or more")
    for name in differences:
        if name not in sets:
            raise InputError(f"differences of {name!r}, which is not compared; the sets are {', '.join(sets)}")


def comparison_section(sets: Mapping[str, EvaluatedSet], differences: Mapping[str, Intervals]) -> Section:
    """Metrics side by side, and by how much they differ from the first set's."""
    first, *others = sets
    columns = ["metric", *sets, *(f"{name} − {first}" for name in others)]
    lines = [
        [metric, *_values(sets, metric), *(_difference(sets, first, name, metric, differences) for name in others)]
        for metric in common_metrics(sets)
    ]
    caption = f"Means over the queries; {BEST} the best. Differences are in percentage points."
    return section("metrics", "Differences", table(caption, columns, lines, range(1, len(columns))))


def common_metrics(sets: Mapping[str, EvaluatedSet]) -> list[str]:
    """Those that all sets have, in the first one's order."""
    first, *others = (each.evaluation.metrics for each in sets.values())
    return [metric for metric in first if all(metric in other for other in others)]


def _values(sets: Mapping[str, EvaluatedSet], metric: str) -> list[Markup]:
    values = [each.evaluation.metrics[metric] for each in sets.values()]
    highest = max(values) if len(set(values)) > 1 else None
    cells = []
    for value, each in zip(values, sets.values(), strict=True):
        text = percent(value) + (f" {BEST}" if value == highest else "")
        ends = (each.intervals or {}).get(metric)
        small = [element("br"), element("small", interval_text(ends))] if ends is not None else []
        cells.append(element("span", text, *small, class_="best" if value == highest else None))
    return cells


def _difference(
    sets: Mapping[str, EvaluatedSet], first: str, name: str, metric: str, differences: Mapping[str, Intervals]
) -> Markup:
    change = 100 * (sets[name].evaluation.metrics[metric] - sets[first].evaluation.metrics[metric])
    ends = differences.get(name, {}).get(metric)
    if ends is None:
        return element("span", f"{change:+.2f}")
    text = f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
    return element("span", f"{change:+.2f}", element("br"), element("small", text))


def changes(before: EvaluatedSet, after: EvaluatedSet) -> Changes:
    """The queries that both have, with how much better the second finds what they look for.

    Example:
        >>> import pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1, 1]}))
        >>> good, bad = np.eye(2)[[0, 0, 1, 1]], np.array([[1.0, 0.0], [0.9, 0.1], [0.95, 0.05], [0.0, 1.0]])
        >>> sets = [EvaluatedSet(each, table, evaluate(each, table, recall_at=[1])) for each in (bad, good)]
        >>> changes(*sets).difference.tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    name = score_name(before.evaluation)
    if name not in after.evaluation.per_query:
        return Changes(name, *(np.empty(0, dtype=np.int64),) * 2, np.empty(0))
    places = {key: place for place, key in reversed(list(enumerate(_keys(after))))}
    pairs = [(place, places[key]) for place, key in enumerate(_keys(before)) if key in places]
    at, then = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    difference = after.evaluation.per_query[name][then] - before.evaluation.per_query[name][at]
    counts = ~np.isnan(difference)
    return Changes(name, at[counts], then[counts], difference[counts])


def _keys(each: EvaluatedSet) -> list[object]:
    """What makes each query the same as one of another set."""
    queries = each.evaluation.query_rows.tolist()
    if each.table.has("path"):
        return [each.table.paths[query] for query in queries]
    names = each.table.frame["label"].tolist()
    return [(query, str(names[query])) for query in queries]


def changes_section(
    sets: Mapping[str, EvaluatedSet], found: Mapping[str, Neighborhood], cells: Mapping[str, Cells]
) -> Section:
    """Queries that got better and worse, each with its neighbours in the first set and in the other."""
    first, *others = sets
    parts: list[Markup] = [
        element("p", "Green frames and ✓: of the query's class. Red, dashed frames and ✗: of another.", class_="note")
    ]
    for name in others:
        changed = changes(sets[first], sets[name])
        parts += [element("h3", f"{name} against {first}"), element("p", _changes_text(changed))]
        for word, places in (("better", _largest(changed.difference)), ("worse", _largest(-changed.difference))):
            entries = [_change(changed, int(place), first, name, found, cells) for place in places]
            parts += [element("h4", f"Queries that got {word}"), rows(entries)] if entries else []
    return section("changes", "Queries that got better and worse", *parts)


def _changes_text(changed: Changes) -> str:
    total = len(changed.difference)
    if not total:
        return "The sets share no queries."
    better, worse = (int((sign * changed.difference > 0).sum()) for sign in (1, -1))
    same = total - better - worse
    return f"By {changed.metric}, {better:,} of {total:,} queries got better, {worse:,} worse; {same:,} are the same."


def _largest(values: Floats) -> Integers:
    """Places of the largest values above 0, largest first."""
    order = np.argsort(-values, kind="stable")[:MOST_CHANGES]
    return order[values[order] > 0]


def _change(
    changed: Changes,
    place: int,
    first: str,
    name: str,
    found: Mapping[str, Neighborhood],
    cells: Mapping[str, Cells],
) -> Markup:
    lists: list[Markup] = []
    for each, at in ((first, changed.before[place]), (name, changed.after[place])):
        position = int(np.flatnonzero(found[each].positions == at)[0])
        lists += [element("p", each), cell_list(cells[each].ranking(found[each], position))]
    query = int(found[name].queries[np.flatnonzero(found[name].positions == changed.after[place])[0]])
    text = f"{cells[name].names[query]}: {changed.metric} {100 * changed.difference[place]:+.1f}"
    return entry(text, joined(lists))


def settings_section(runs: Mapping[str, Run]) -> Section | None:
    """Settings that are not the same in all recipes."""
    read = {name: settings(run.recipe) for name, run in runs.items()}
    if sum(map(bool, read.values())) < 2:
        return None
    names = dict.fromkeys(key for each in read.values() for key in each)
    values = {key: [each.get(key, "–") for each in read.values()] for key in names}
    lines = [[key, *of_runs] for key, of_runs in values.items() if len(set(of_runs)) > 1]
    if not lines:
        return section("recipe", "Recipes", element("p", "All settings are the same."))
    caption = f"{len(lines)} of {len(values)} settings differ"
    return section("recipe", "Recipes", table(caption, ["setting", *read], lines))


def _similarities_section(
    sets: Mapping[str, EvaluatedSet], found: Mapping[str, Neighborhood], seed: int
) -> Section | None:
    parts: list[Markup] = []
    for name, each in sets.items():
        pairs = pair_similarities(each.vectors, each.table, found[name].queries, found[name].gallery, seed=seed)
        drawn = similarities_section(pairs)
        if drawn is not None:
            parts.append(element("div", element("h3", name), drawn.content))
    return section("similarities", "Similarities", element("div", *parts, class_="charts")) if parts else None


def _data_section(sets: Mapping[str, EvaluatedSet]) -> Section:
    parts = [
        element("div", element("h3", name), element("p", summary(each.evaluation)), _statistics(name, each))
        for name, each in sets.items()
    ]
    return section("data", "Data", *parts)


def _statistics(name: str, each: EvaluatedSet) -> Markup:
    return statistics_table(f"Images of {name}", each.table.statistics())
