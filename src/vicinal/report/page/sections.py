"""The sections of a page of one evaluated set, each from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.statistics import Statistics
from vicinal.data.table import Table
from vicinal.evaluation.protocol import Evaluation
from vicinal.report.page.cells import Cells, row, rows
from vicinal.report.page.charts import Line, histogram_chart, line_chart
from vicinal.report.page.findings import (
    DUPLICATE,
    FEWEST_VOTES,
    VOTES,
    chosen_queries,
    class_scores,
    confusions,
    duplicates,
    hubs,
    label_errors,
    one_a_class,
    recall_name,
    score_name,
)
from vicinal.report.page.map import SIDE, Map
from vicinal.report.page.markup import Markup, Section, element, figure, joined, percent, section, table
from vicinal.report.page.pairs import Histogram, PairSimilarities, histogram
from vicinal.report.page.pictures import SMALL, Pictures
from vicinal.report.page.run import Run, numbers
from vicinal.report.page.search import Neighborhood

MOST_CLASSES, MOST_CONFUSIONS, MOST_HUBS, MOST_PAIRS, MOST_ERRORS, MOST_QUERIES = 200, 30, 12, 24, 24, 12
SHARE_BINS = 20

Intervals = Mapping[str, tuple[float, float]]
Integers = npt.NDArray[np.int64]


def data_section(evaluated: Table, evaluation: Evaluation, run: Run) -> Section:
    """Images and classes of what was evaluated and, of a run, of every split."""
    facts = [
        ("protocol", evaluation.protocol),
        ("queries", f"{evaluation.queries:,}"),
        ("gallery images", f"{evaluation.gallery:,}"),
        ("queries without anything to be found, which do not count", f"{evaluation.without_positive:,}"),
    ]
    parts: list[object] = [
        table("What was evaluated", ("", ""), facts),
        statistics_table("Its images", evaluated.statistics()),
    ]
    if run.table is not None:
        parts.append(statistics_table("All images of the run", run.table.statistics()))
    return section("data", "Data", *parts, sizes_figure(evaluated.class_counts))


def statistics_table(caption: str, statistics: Statistics) -> Markup:
    """A line a split, and one for all."""
    extra = [*statistics.coarse, *statistics.noise]
    columns = [
        "",
        "images",
        "classes",
        "smallest class",
        "median",
        "largest",
        *(name.replace("_", " ") for name in extra),
    ]
    lines = [_statistics_row(name, part) for name, part in [*statistics.splits.items(), ("all", statistics)]]
    return table(caption, columns, lines, range(1, len(columns)))


def _statistics_row(name: str, part: Statistics) -> list[str]:
    sizes = (
        [f"{part.classes:,}", f"{part.smallest:,}", f"{part.median:g}", f"{part.largest:,}"]
        if part.classes
        else ["–"] * 4
    )
    coarse = [f"{number:,}" for number in part.coarse.values()]
    return [name, f"{part.images:,}", *sizes, *coarse, *map(percent, part.noise.values())]


def sizes_figure(counts: Integers) -> Markup:
    """How many classes there are of each size."""
    edges = np.unique(np.linspace(counts.min(), counts.max() + 1, min(40, int(np.ptp(counts)) + 2)).round())
    heights = np.histogram(counts, edges)[0].astype(np.float64)
    text = (
        f"{len(counts):,} classes of {counts.min():,} to {counts.max():,} images, {np.median(counts):g} in the middle."
    )
    return figure(histogram_chart(edges, {"classes": heights}, "images of a class", "classes", text), text)


def recipe_section(run: Run) -> Section | None:
    if run.recipe is None:
        return None
    text = element("pre", element("code", run.recipe), tabindex="0", role="group", aria_label="The recipe, as YAML")
    return section("recipe", "Recipe", text)


def curves_section(runs: Mapping[str, Run]) -> Section | None:
    """Loss, learning rates and validation metrics over the steps; of several runs, on common axes."""
    charts = [_loss_chart(runs), _metrics_chart(runs)]
    if len(runs) == 1:
        charts.append(_rates_chart(next(iter(runs.values()))))
    there = [chart for chart in charts if chart is not None]
    if not there:
        return None
    return section("curves", "Learning curves", element("div", *there, class_="charts"))


def _loss_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines: list[Line] = []
    for name, run in runs.items():
        if run.log is not None and "loss" in run.log:
            step, loss = numbers(run.log, "step"), numbers(run.log, "loss")
            smooth = pd.Series(loss).rolling(max(len(loss) // 20, 1), center=True, min_periods=1).mean().to_numpy()
            lines += [Line(name, step, loss, faint=True), Line(name, step, smooth)]
    text = "Training loss" + (", and its running mean." if len(runs) == 1 else ": the running means, and each step.")
    return _curve(lines, "loss", text)


def _metrics_chart(runs: Mapping[str, Run]) -> Markup | None:
    lines = []
    for name, run in runs.items():
        if run.metrics is not None:
            chosen = [column for column in run.metrics.columns if column not in ("step", "epoch")]
            for column in chosen if len(runs) == 1 else chosen[:1]:
                label = str(column) if len(runs) == 1 else f"{name}: {column}"
                lines.append(Line(label, numbers(run.metrics, "step"), 100 * numbers(run.metrics, str(column))))
    return _curve(lines, "%", "Metrics on the validation split.")


def _rates_chart(run: Run) -> Markup | None:
    if run.log is None:
        return None
    names = [str(column) for column in run.log.columns if str(column).startswith("lr")]
    lines = [Line(name, numbers(run.log, "step"), numbers(run.log, name)) for name in names]
    return _curve(lines, "learning rate", "Learning rates.")


def _curve(lines: Sequence[Line], y_name: str, text: str) -> Markup | None:
    chart = line_chart(lines, "step", y_name, f"{text} {_ends(lines)}") if lines else None
    return None if chart is None else figure(chart, text)


def _ends(lines: Sequence[Line]) -> str:
    """Where each line begins and ends, in words."""
    ends = [(line.name, line.y[np.isfinite(line.y)]) for line in lines if not line.faint]
    return " ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}." for name, values in ends if len(values))


def metrics_section(evaluation: Evaluation, intervals: Intervals | None) -> Section:
    """Every metric, with its interval where there is one."""
    columns = ["metric", "value", *(["interval"] if intervals else [])]
    lines = [
        [name, percent(value), *([interval_text(intervals.get(name))] if intervals else [])]
        for name, value in evaluation.metrics.items()
    ]
    return section("metrics", "Metrics", table("Means over the queries", columns, lines, (1, 2)))


def interval_text(ends: tuple[float, float] | None) -> str:
    """Both ends in percent; a dash for none."""
    return "–" if ends is None else f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %"


def similarities_section(similarities: PairSimilarities) -> Section | None:
    """Histograms of pairs of one class and of two."""
    if not len(similarities.positive) or not len(similarities.negative):
        return None
    counted = histogram(similarities)
    return section("similarities", "Similarities", figure(_pairs_chart(counted), _pairs_text(similarities, counted)))


def _pairs_chart(counted: Histogram) -> Markup:
    groups = {"of one class": 100 * counted.positive, "of two classes": 100 * counted.negative}
    text = f"Similarities of pairs of one class and of two; the histograms overlap by {percent(counted.overlap)}"
    return histogram_chart(counted.edges, groups, "cosine similarity", "% of the pairs", text)


def _pairs_text(similarities: PairSimilarities, counted: Histogram) -> str:
    positive, negative = similarities
    return (
        f"{len(positive):,} pairs of one class (mean {positive.mean():.3f}) and {len(negative):,} of two "
        f"(mean {negative.mean():.3f}), drawn by chance. The histograms overlap by {percent(counted.overlap)}."
    )


def classes_section(evaluated: Table, evaluation: Evaluation) -> Section:
    """How well each class is found."""
    scores = class_scores(evaluated.labels, evaluation)
    recall, score = recall_name(evaluation), score_name(evaluation)
    edges = np.linspace(0, 100, SHARE_BINS + 1)
    heights = np.histogram([100 * each.recall for each in scores], edges)[0].astype(np.float64)
    perfect = sum(each.recall == 1 for each in scores)
    weak = sum(each.recall < 0.5 for each in scores)
    text = f"{recall} of {len(scores):,} classes: {perfect:,} are at 100 %, {weak:,} below 50 %."
    chart = histogram_chart(edges, {"classes": heights}, f"{recall} of a class, %", "classes", text)
    lines = [
        (evaluated.classes[each.label], f"{each.queries:,}", percent(each.recall), percent(each.score))
        for each in scores[:MOST_CLASSES]
    ]
    shown = (
        f"The {len(lines):,} weakest of {len(scores):,} classes"
        if len(lines) < len(scores)
        else "All classes, the weakest first"
    )
    weakest = table(shown, ("class", "queries", recall, score), lines, (1, 2, 3))
    return section("classes", "Recall per class", figure(chart, text), element("div", weakest, class_="tall"))


def confusions_section(cells: Cells, found: Neighborhood) -> Section:
    """Which class is found in the place of which."""
    classes, labels = cells.table.classes, cells.table.labels
    top, pairs = confusions(found, labels, MOST_CONFUSIONS)
    if not top:
        return section("confusions", "Confusions", element("p", "Every query's nearest image is of its class."))
    wrong = int((~found.right[:, 0]).sum())
    text = (
        f"The nearest image of {wrong:,} of {len(found.queries):,} queries is of another class, "
        f"in {pairs:,} pairs of classes."
    )
    lines = [(classes[each.label], classes[each.found], f"{each.queries:,}", percent(each.share)) for each in top]
    columns = ("class of the query", "class of its nearest image", "queries", "of the class")
    examples = [
        row(
            f"{classes[each.label]} → {classes[each.found]}, {each.queries:,} of its queries",
            [cells.image(each.query, "query", "query", "query"), _first(cells, found, each.query, each.neighbor)],
        )
        for each in top[:MOST_QUERIES]
    ]
    caption = f"The {len(top)} most frequent"
    return section(
        "confusions",
        "Confusions between classes",
        element("p", text),
        element("div", table(caption, columns, lines, (2, 3)), class_="tall"),
        element("h3", "Most similar wrong pairs of these"),
        rows(examples),
    )


def _first(cells: Cells, found: Neighborhood, query: int, neighbor: int) -> Markup:
    place = int(np.flatnonzero(found.queries == query)[0])
    return cells.neighbor(query, neighbor, 1, float(found.scores[place, 0]))


def queries_section(cells: Cells, found: Neighborhood, evaluation: Evaluation, seed: int) -> Section:
    """The worst queries, the best, and some drawn by chance, with their neighbours."""
    labels = cells.table.labels
    best, worst = chosen_queries(found, evaluation, labels, MOST_QUERIES)
    mixed = np.random.default_rng(seed).permutation(len(found.queries))
    some = one_a_class(mixed, labels[found.queries], MOST_QUERIES)
    key = element("p", "Green frames and ✓: of the query's class. Red, dashed frames and ✗: of another.", class_="note")
    parts: list[Markup] = [key]
    for title, places in (("Worst", worst), ("Best", best), ("Drawn by chance", some)):
        parts += [element("h3", title), rows(_query_row(cells, found, evaluation, int(place)) for place in places)]
    return section("queries", "Queries and their neighbours", *parts)


def _query_row(cells: Cells, found: Neighborhood, evaluation: Evaluation, place: int) -> Markup:
    name = score_name(evaluation)
    score = float(evaluation.per_query[name][found.positions[place]])
    return row(f"{cells.names[found.queries[place]]}: {name} {percent(score)}", cells.ranking(found, place))


def map_section(drawn: Map | None, cells: Cells, images: int) -> Section:
    """The map's canvas and what moves it; its data are :func:`map_data`."""
    if drawn is None:
        return section(
            "map", "Map", element("p", "There are too few images for a map, or all are the same.", class_="note")
        )
    names, counts = np.unique([cells.names[at] for at in drawn.rows], return_counts=True)
    options = [element("option", f"all {len(names):,} classes", value=-1)]
    options += [
        element("option", f"{name} ({count})", value=at)
        for at, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    controls = [
        element("label", "Class ", element("select", *options, id="map-class")),
        *(element("button", text, type="button", id=f"map-{name}") for name, text in _MAP_BUTTONS.items()),
    ]
    tip = element(
        "div",
        element("img", id="map-tip-image", alt=""),
        element("strong", id="map-tip-label"),
        element("span", id="map-tip-note"),
        id="map-tip",
        aria_hidden="true",
        hidden=True,
    )
    label = f"Map of {len(drawn.rows):,} embeddings; arrow keys go from image to image"
    canvas = element(
        "canvas", id="map-canvas", tabindex="0", role="application", aria_label=label, aria_describedby="map-help"
    )
    return section(
        "map",
        "Map",
        element("p", _map_text(len(drawn.rows), images), class_="note", id="map-help"),
        element("div", *controls, class_="controls"),
        element("div", canvas, tip, class_="plane"),
        element("p", id="map-said", class_="note", aria_live="polite"),
        element("ul", id="map-legend", class_="legend"),
    )


_MAP_BUTTONS = {"in": "Zoom in", "out": "Zoom out", "reset": "Whole map"}


def _map_text(shown: int, images: int) -> str:
    part = (
        f"{shown:,} of {images:,} images, drawn by chance, class by class"
        if shown < images
        else f"All {images:,} images"
    )
    return (
        f"t-SNE: {part}. Colours are classes; rings are queries whose nearest image is of another class. "
        "Drag to move; zoom with the buttons, or with the wheel once the map has the focus. "
        "Keys: arrows go from image to image, + and − zoom, 0 shows all, Enter enlarges, Escape lets go."
    )


def map_data(drawn: Map, cells: Cells, pictures: Pictures, found: Neighborhood) -> dict[str, Any]:
    """What the script needs to draw the map."""
    names = np.array([cells.names[at] for at in drawn.rows])
    classes, labels = np.unique(names, return_inverse=True)
    right = np.full(len(cells.table), -1)
    right[found.queries] = found.right[:, 0]
    return {
        "side": SIDE,
        "classes": classes.tolist(),
        "x": drawn.places[:, 0].tolist(),
        "y": drawn.places[:, 1].tolist(),
        "label": labels.tolist(),
        "image": [pictures.number(cells.table, int(at), SMALL) for at in drawn.rows],
        "right": right[drawn.rows].tolist(),
    }


def hubs_section(cells: Cells, found: Neighborhood) -> Section:
    """Images that are neighbours of very many."""
    result = hubs(found, MOST_HUBS)
    text = (
        f"A gallery image is in {result.expected:.1f} of the queries' lists of {found.k} on average; "
        f"{result.never:,} are in none. The skewness of these numbers is {result.skewness:.2f}; "
        "the larger it is, the more a few images crowd into all lists."
    )
    entries = [
        cells.image(
            each.row, "plain", f"{each.lists:,} lists", f"in {each.lists:,} lists, of its class {percent(each.right)}"
        )
        for each in result.top
    ]
    return section("hubs", "Hubs", element("p", text), rows([row("In most lists", entries)]) if entries else None)


def duplicates_section(cells: Cells, found: Neighborhood) -> Section:
    """Images that are nearly the same; those with two labels first."""
    pairs = duplicates(found)
    if not pairs:
        return section(
            "duplicates", "Duplicates", element("p", f"No two neighbours are more similar than {DUPLICATE}.")
        )
    other = [pair for pair in pairs if cells.names[pair.first] != cells.names[pair.second]]
    same = [pair for pair in pairs if cells.names[pair.first] == cells.names[pair.second]]
    shown = [*other, *same][:MOST_PAIRS]
    text = (
        f"{len(pairs):,} pairs among the {found.k} nearest are more similar than {DUPLICATE}, "
        f"{len(other):,} of them with two labels. {len(shown)} are shown, those with two labels first."
    )
    entries = [
        row(
            f"similarity {pair.score:.5f}",
            [
                cells.image(pair.first, "query", "first", "first of two"),
                cells.neighbor(pair.first, pair.second, 1, pair.score),
            ],
        )
        for pair in shown
    ]
    return section("duplicates", "Duplicates", element("p", text), rows(entries))


def label_errors_section(cells: Cells, found: Neighborhood) -> Section:
    """Images whose neighbours agree on another class."""
    errors = label_errors(found, cells.table.labels)
    rule = (
        f"Of {len(errors):,} queries the {VOTES} nearest images are all of one other class "
        f"(or as many as that class has, but at least {FEWEST_VOTES})."
    )
    shown = errors[:MOST_ERRORS]
    entries = []
    for error in shown:
        place = int(np.flatnonzero(found.queries == error.row)[0])
        text = f"labelled {cells.names[error.row]}; its neighbours say {cells.names[error.votes[0]]}"
        entries.append(row(text, cells.ranking(found, place, shown=len(error.votes))))
    more = f" The {len(shown)} with the most similar neighbours are shown." if len(shown) < len(errors) else ""
    return section(
        "label-errors", "Probable label errors", element("p", rule + more), rows(entries) if entries else None
    )


def unreadable_note(pictures: Pictures) -> Markup:
    """Says how many images could not be read; nothing if all could."""
    count = pictures.unreadable
    return element("p", f"{count:,} images could not be read.", class_="note", role="status") if count else joined([])
