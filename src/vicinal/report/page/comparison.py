"""The page that compares evaluations: metrics and their differences, and the queries that changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pandas as pd

from vicinal.analysis import QueryNeighbors, pair_similarities, query_changes, query_neighbors
from vicinal.analysis.neighbors import check_evaluation
from vicinal.analysis.scores import query_metric
from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import common_metrics
from vicinal.evaluation.model_costs import HEADS, cost_cells
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.resampling import count_query_classes
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.common import (
    SIMILARITIES_LEAD,
    evaluated_images,
    similarities_figure,
    statistics_table,
    summary,
)
from vicinal.report.page.frames import ImageFrames, Thumbnails, entry, entry_list, key
from vicinal.report.page.markup import (
    Markup,
    Section,
    document,
    element,
    fold,
    header_line,
    joined,
    left_out_text,
    model_text,
    note,
    percent,
    section,
    short_names,
    splits_text,
    table,
    without_home,
)
from vicinal.report.page.metrics import bounds, few_classes, headlines, level_text, named, value_with_interval
from vicinal.report.page.run import Run, curves_section, read_run, settings
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes

BEST = "★"
MAX_UNBROKEN = 22  # characters of a name that is kept in one line
CHANGES_LEAD = "Largest changes first."
MAX_CHANGES = 10  # queries that got better, and as many that got worse


def write_comparison_page(
    path: str | Path,
    sets: Mapping[str, EvaluatedEmbeddings],
    *,
    title: str = "Comparison",
    results: ResultsTable | None = None,
    seed: int = 0,
) -> None:
    """Write a page, as :func:`~vicinal.report.page.write_page` does, that compares several sets with the first one.

    The page has the differences of the metrics with their intervals and p-values, the queries that got better and
    worse with their neighbors in both sets, similarities of pairs, costs of the models, settings that differ, learning
    curves on common axes, and the data. Paths are shown without the folder that all of them are in. A set that was
    evaluated on other queries or another gallery than the first one has no differences, and the page says why.

    Args:
        path: the file; it is replaced as a whole.
        sets: name -> set to compare, two or more. Queries are the same if their paths are; without paths, if their
            rows and labels are.
        title: of the page.
        results: the metrics of all sets, whose names are the models, with confidence intervals of values and of
            differences to the first set, as :func:`~vicinal.evaluation.compare_models` returns them; None: without.
        seed: of the pairs drawn.

    Raises:
        InputError: fewer than two sets, results without one of them, or as `write_page`.
        OSError: the file cannot be written.
    """
    results, title, sources = _require_results(sets, results), without_home(title), short_names(list(sets))
    results = results.rename_models(lambda name: sources[name])
    sets = {sources[name]: each for name, each in sets.items()}
    thumbnails = Thumbnails()
    runs = {name: Run() if each.run is None else read_run(each.run) for name, each in sets.items()}
    neighbors = {name: query_neighbors(each.vectors, each.table) for name, each in sets.items()}
    for each in sets.values():
        check_evaluation(each.evaluation, each.table)
    frames = {name: ImageFrames(thumbnails, each.table) for name, each in sets.items()}
    groups: dict[str, list[Section | None]] = {
        "Results": [
            differences_section(sets, results),
            changes_section(sets, neighbors, frames),
            _similarities_section(sets, seed),
            costs_section(results),
        ],
        "Data and training": [settings_section(runs), curves_section(runs), _data_section(sets, sources)],
    }
    images = thumbnails.encoded()
    line = header_line(_header(sets, runs), *thumbnails.notes())
    write_bytes(path, document(title, line, groups, {"map": None, "images": images}))


def _header(sets: Mapping[str, EvaluatedEmbeddings], runs: Mapping[str, Run]) -> str:
    first, *others = sets
    facts = {
        name: (
            splits_text(each.table),
            model_text(each.backbone or settings(runs[name].recipe).get("model.backbone"), each.vectors.shape[1]),
            left_out_text(each.num_left_out),
        )
        for name, each in sets.items()
    }
    parts = [f"{', '.join(others)} against {first}"]
    for values in zip(*facts.values(), strict=True):
        if len(set(values)) == 1:
            parts.append(values[0])
        else:
            parts += [f"{name}: {value}" for name, value in zip(sets, values, strict=True) if value]
    return header_line(*parts)


def costs_section(results: ResultsTable) -> Section | None:
    """The costs of the models; None if they are unknown."""
    if results.costs is None:
        return None
    lead = (
        "Size and speed beside the scores. Images per second are from files to embeddings, on the machine that wrote "
        "this page; the time of a training is that of the machine where it ran."
    )
    lines = [[row.model, *cost_cells(row)] for row in results.costs.itertuples()]
    costs = table("Every model", ["model", *HEADS], lines, range(2, 1 + len(HEADS)))
    return section("costs", "Costs", lead, costs)


def settings_section(runs: Mapping[str, Run]) -> Section | None:
    """Settings in which the known recipes differ; None if fewer than two recipes are known."""
    read = {name: known for name, run in runs.items() if (known := settings(run.recipe))}
    if len(read) < 2:
        return None
    names = dict.fromkeys(key for each in read.values() for key in each)
    values = {key: [each.get(key, "–") for each in read.values()] for key in names}
    lines = [[key, *of_runs] for key, of_runs in values.items() if len(set(of_runs)) > 1]
    if not lines:
        return section("recipe", "Recipes", f"All settings of {', '.join(read)} are the same.")
    caption = f"{len(lines)} of {len(values)} settings differ"
    lead = "Settings that differ; all others are the same."
    return section("recipe", "Recipes", lead, table(caption, ["setting", *read], lines))


def _require_results(sets: Mapping[str, EvaluatedEmbeddings], results: ResultsTable | None) -> ResultsTable:
    if len(sets) < 2:
        raise InputError(f"{len(sets)} evaluated sets; a comparison needs two or more")
    if results is None:
        return ResultsTable.concat(each.evaluation.to_results(name) for name, each in sets.items())
    for name in {*sets} ^ {*results.models}:
        raise InputError(f"{name!r} is not both in the sets and in the results; a page needs results of every set")
    return results


def _similarities_section(sets: Mapping[str, EvaluatedEmbeddings], seed: int) -> Section | None:
    parts: list[Markup] = []
    for name, each in sets.items():
        drawn = similarities_figure(pair_similarities(each.vectors, each.table, seed=seed))
        if drawn is not None:
            parts.append(element("div", element("h3", name), drawn))
    if not parts:
        return None
    return section("similarities", "Similarities", SIMILARITIES_LEAD, element("div", *parts, class_="charts"))


def _data_section(sets: Mapping[str, EvaluatedEmbeddings], sources: Mapping[str, str]) -> Section:
    parts = (_data(name, source, sets[name]) for source, name in sources.items())
    return section("data", "Data", "What each set was evaluated on.", *parts)


def _data(name: str, source: str, each: EvaluatedEmbeddings) -> Markup:
    counts = statistics_table(f"Images of {name}", evaluated_images(each.table).statistics())
    line = header_line(without_home(source) if source != name else None, summary(each.evaluation))
    return joined([element("h3", name), element("p", line), counts])


class EvaluatedEmbeddings(NamedTuple):
    """Embeddings with their table and evaluation.

    Attributes:
        vectors: float [rows, dim].
        table: one row per embedding, with labels.
        evaluation: of both.
        run: the folder of the run that they come from, if there is one.
        backbone: the name of the model's backbone, if it is known.
        num_left_out: the number of files that were left out.
    """

    vectors: Array
    table: Table
    evaluation: Evaluation
    run: str | Path | None = None
    backbone: str | None = None
    num_left_out: int = 0


def differences_section(sets: Mapping[str, EvaluatedEmbeddings], results: ResultsTable) -> Section:
    """Every metric that all sets have; below each value its interval.

    Sets with other queries or another gallery than the first have no differences to it, and then no value is the best.
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
        fewest = min(count_query_classes(each.evaluation, each.table) for each in sets.values())
        remarks = [_intervals_remark(results, has_tested, rows.values()), *remarks, few_classes(fewest) or ""]
    lead = "In percentage points, beside the means over the queries" if alike else "Means over the queries"
    lead += f"; {BEST} marks the best of each line." if starred else "."
    rest = fold("Further metrics", table("Further metrics", columns, further, numbers)) if further else None
    main = element("div", main, class_="headlines")
    return section("metrics", "Differences", lead, main, *map(note, filter(None, remarks)), rest)


def _intervals_remark(results: ResultsTable, has_tested: bool, rows: Iterable[pd.DataFrame]) -> str:
    text = f"Small numbers are {level_text(results)}"
    text += "; where that of a difference holds 0, chance may explain it." if has_tested else "."
    if any(each["p_value"].notna().any() for each in rows):
        text += " p: how often chance alone gives so large a difference (permutation test)."
    return text


def apart(first: EvaluatedEmbeddings, other: EvaluatedEmbeddings) -> str | None:
    """Why metrics of two sets cannot be compared; None where protocol, queries and gallery are the same.

    Images are the same if the names of their files are, as in a set that was moved, and their labels.
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
    """Names and labels of images, sorted: equal for the same images."""
    labels = images.frame["label"].astype(str).tolist()
    names = [PurePath(path).name for path in images.paths] if by_name else [str(row) for row in range(len(images))]
    return sorted((names[row], labels[row]) for row in rows.tolist())


def _values(rows: list[pd.Series], starred: bool) -> list[Markup]:
    values = [row.value for row in rows]
    highest = max(values) if starred and len(set(values)) > 1 else None
    return [_value(row, row.value == highest) for row in rows]


def _unbroken(name: str) -> Markup:
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


def changes_section(
    sets: Mapping[str, EvaluatedEmbeddings], neighbors: Mapping[str, QueryNeighbors], frames: Mapping[str, ImageFrames]
) -> Section:
    """Queries that got better or worse than in the first set, each with its neighbors in both sets."""
    metric = query_metric(next(iter(sets.values())).evaluation)
    before, *others = (_ComparedSet(name, each, metric, neighbors[name], frames[name]) for name, each in sets.items())
    changes = [
        query_changes(before.evaluated.evaluation, before.evaluated.table, after.evaluated.evaluation,
                      after.evaluated.table)
        for after in others
    ]  # fmt: skip
    if len(others) == 1:
        lead, parts = f"{_changes_text(changes[0], metric)} {CHANGES_LEAD}", _lists(changes[0], before, others[0], "h3")
    else:
        lead, parts = CHANGES_LEAD, []
        for after, each in zip(others, changes, strict=True):
            parts += [element("h3", f"{after.name} against {before.name}"), element("p", _changes_text(each, metric))]
            parts += _lists(each, before, after, "h4")
    return section("changes", "Queries that got better and worse", lead, key(), *parts)


class _ComparedSet(NamedTuple):
    name: str
    evaluated: EvaluatedEmbeddings
    metric: str
    neighbors: QueryNeighbors
    frames: ImageFrames

    def ranking(self, row: int, score: float) -> Markup:
        """A query's score in this set, and its nearest images."""
        text = f"{self.name} · {self.metric} {percent(score)}"
        return joined([element("p", text, class_="of"), self.frames.ranking(self.neighbors, row)])


def _lists(changes: pd.DataFrame, before: _ComparedSet, after: _ComparedSet, heading: str) -> list[Markup]:
    parts = []
    for word, sign in (("better", 1), ("worse", -1)):
        improved = changes[sign * changes["difference"] > 0]
        largest = improved.sort_values("difference", ascending=sign < 0, kind="stable").head(MAX_CHANGES)
        entries = [_change_entry(each, before, after) for each in largest.itertuples()]
        parts += [element(heading, f"Queries that got {word}"), entry_list(entries)] if entries else []
    return parts


def _change_entry(change: Any, before: _ComparedSet, after: _ComparedSet) -> Markup:
    return entry(
        f"{after.frames.labels[change.row_after]} · {before.metric} {100 * change.difference:+.1f}",
        before.ranking(change.row_before, change.score_before),
        after.ranking(change.row_after, change.score_after),
    )


def _changes_text(changes: pd.DataFrame, metric: str) -> str:
    total = len(changes)
    if not total:
        return "The sets have no queries in common."
    better, worse = int((changes["difference"] > 0).sum()), int((changes["difference"] < 0).sum())
    same = total - better - worse
    return f"By {metric}, {better:,} of {total:,} queries got better, {worse:,} worse; {same:,} are the same."
