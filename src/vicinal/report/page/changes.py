"""Queries that several sets share: which got better and which got worse, with their neighbours in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.report.page.cells import KEY, Cells, cell_list, entry, rows
from vicinal.report.page.evaluated import EvaluatedSet
from vicinal.report.page.markup import Markup, Section, element, joined, note, percent, section
from vicinal.report.page.scores import score_name
from vicinal.report.page.search import Neighborhood

LEAD = "The same queries in two sets, each with its nearest images in both; the largest changes first."
MOST_CHANGES = 10  # queries that got better, and as many that got worse

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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


def changes(before: EvaluatedSet, after: EvaluatedSet) -> Changes:
    """The queries that both have, with how much better the second finds what they look for.

    Example:
        >>> import pandas as pd
        >>> from vicinal.data import Table
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


def changes_section(
    sets: Mapping[str, EvaluatedSet], found: Mapping[str, Neighborhood], cells: Mapping[str, Cells]
) -> Section:
    """Queries that got better and worse, each with its neighbours in the first set and in the other."""
    before, *others = (_Side(name, each, found[name], cells[name]) for name, each in sets.items())
    parts = [part for after in others for part in _against(before, after)]
    return section("changes", "Queries that got better and worse", LEAD, note(KEY), *parts)


class _Side(NamedTuple):
    """One of two sets, with its neighbours and frames."""

    name: str
    evaluated: EvaluatedSet
    found: Neighborhood
    cells: Cells

    def list(self, query: int, metric: str) -> Markup:
        """A query of the evaluation: its score, and its nearest images."""
        score = percent(float(self.evaluated.evaluation.per_query[metric][query]))
        place = int(np.flatnonzero(self.found.positions == query)[0])
        images = cell_list(self.cells.ranking(self.found, place))
        return joined([element("p", f"{self.name} · {metric} {score}", class_="of"), images])


def _against(before: _Side, after: _Side) -> list[Markup]:
    """What changed from one set to the other, under a heading."""
    changed = changes(before.evaluated, after.evaluated)
    parts = [element("h3", f"{after.name} against {before.name}"), element("p", _text(changed))]
    for word, places in (("better", _largest(changed.difference)), ("worse", _largest(-changed.difference))):
        entries = [_change(changed, int(place), before, after) for place in places]
        parts += [element("h4", f"Queries that got {word}"), rows(entries)] if entries else []
    return parts


def _change(changed: Changes, place: int, before: _Side, after: _Side) -> Markup:
    first, second = int(changed.before[place]), int(changed.after[place])
    query = int(after.evaluated.evaluation.query_rows[second])
    text = f"{after.cells.names[query]} · {changed.metric} {100 * changed.difference[place]:+.1f}"
    return entry(text, joined([before.list(first, changed.metric), after.list(second, changed.metric)]))


def _keys(each: EvaluatedSet) -> list[object]:
    """What makes each query the same as one of another set."""
    queries = each.evaluation.query_rows.tolist()
    if each.table.has("path"):
        return [each.table.paths[query] for query in queries]
    names = each.table.frame["label"].tolist()
    return [(query, str(names[query])) for query in queries]


def _text(changed: Changes) -> str:
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
