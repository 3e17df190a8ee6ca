"""Queries that are in several sets: which got better and which got worse, with their neighbors in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from vicinal.analysis import QueryNeighbors, query_changes
from vicinal.analysis.scores import query_metric
from vicinal.report.page.evaluated import EvaluatedEmbeddings
from vicinal.report.page.frames import ImageFrames, entry, entry_list, key
from vicinal.report.page.markup import Markup, Section, element, joined, percent, section

LEAD = "Largest changes first."
MAX_CHANGES = 10  # queries that got better, and as many that got worse


def changes_section(
    sets: Mapping[str, EvaluatedEmbeddings], neighbors: Mapping[str, QueryNeighbors], frames: Mapping[str, ImageFrames]
) -> Section:
    """Queries that got better or worse than in the first set, each with its neighbors in both sets."""
    metric = query_metric(next(iter(sets.values())).evaluation)
    before, *others = (_Side(name, each, metric, neighbors[name], frames[name]) for name, each in sets.items())
    changes = [_changes(before, after) for after in others]
    if len(others) == 1:
        lead, parts = f"{_text(changes[0], metric)} {LEAD}", _lists(changes[0], before, others[0], "h3")
    else:
        lead, parts = LEAD, []
        for after, each in zip(others, changes, strict=True):
            parts += [element("h3", f"{after.name} against {before.name}"), element("p", _text(each, metric))]
            parts += _lists(each, before, after, "h4")
    return section("changes", "Queries that got better and worse", lead, key(), *parts)


class _Side(NamedTuple):
    """One of the two sets."""

    name: str
    evaluated: EvaluatedEmbeddings
    metric: str
    neighbors: QueryNeighbors
    frames: ImageFrames

    def ranking(self, row: int, score: float) -> Markup:
        """A query's score in this set, and its nearest images."""
        text = f"{self.name} · {self.metric} {percent(score)}"
        return joined([element("p", text, class_="of"), self.frames.ranking(self.neighbors, row)])


def _changes(before: _Side, after: _Side) -> pd.DataFrame:
    first, second = before.evaluated, after.evaluated
    return query_changes(first.evaluation, first.table, second.evaluation, second.table)


def _lists(changes: pd.DataFrame, before: _Side, after: _Side, heading: str) -> list[Markup]:
    """The queries that got better, and those that got worse, each list under a heading."""
    parts = []
    for word, sign in (("better", 1), ("worse", -1)):
        improved = changes[sign * changes["difference"] > 0]
        largest = improved.sort_values("difference", ascending=sign < 0, kind="stable").head(MAX_CHANGES)
        entries = [_entry(each, before, after) for each in largest.itertuples()]
        parts += [element(heading, f"Queries that got {word}"), entry_list(entries)] if entries else []
    return parts


def _entry(change: Any, before: _Side, after: _Side) -> Markup:
    return entry(
        f"{after.frames.labels[change.row_after]} · {before.metric} {100 * change.difference:+.1f}",
        before.ranking(change.row_before, change.score_before),
        after.ranking(change.row_after, change.score_after),
    )


def _text(changes: pd.DataFrame, metric: str) -> str:
    total = len(changes)
    if not total:
        return "The sets share no queries."
    better, worse = int((changes["difference"] > 0).sum()), int((changes["difference"] < 0).sum())
    same = total - better - worse
    return f"By {metric}, {better:,} of {total:,} queries got better, {worse:,} worse; {same:,} are the same."
