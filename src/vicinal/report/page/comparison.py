"""The page of several evaluated sets side by side, differences first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vicinal.analysis import pair_similarities, query_neighbors
from vicinal.analysis.neighbors import check_evaluation
from vicinal.evaluation.model_costs import HEADS, cost_cells
from vicinal.evaluation.results_table import ResultsTable
from vicinal.report.page.changes import changes_section
from vicinal.report.page.data import evaluated_images, statistics_table, summary
from vicinal.report.page.differences import differences_section
from vicinal.report.page.document import document
from vicinal.report.page.evaluated import EvaluatedEmbeddings
from vicinal.report.page.frames import ImageFrames
from vicinal.report.page.header import header_line, left_out_text, model_text, splits_text
from vicinal.report.page.markup import Markup, Section, element, joined, section, table
from vicinal.report.page.paths import short_names, without_home
from vicinal.report.page.run import Run, read_run, settings
from vicinal.report.page.similarities import LEAD, similarities_figure
from vicinal.report.page.thumbnails import Thumbnails
from vicinal.report.page.training import curves_section
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes


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
    worse with their neighbors in both sets, similarities of pairs, what the models cost, settings that differ, learning
    curves on common axes, and the data. Paths are shown without the folder that all of them are in. For a set that was
    not evaluated on the queries and gallery of the first one there are no differences, and the page says why.

    Args:
        path: the file; it is replaced as a whole.
        sets: name -> what is compared, two or more. Queries are the same if their paths are; without paths, if their
            rows and labels are.
        title: of the page.
        results: the metrics of all sets, whose names are the models, with confidence intervals of values and of
            differences to the first set, as :func:`~vicinal.evaluation.compare_models` returns them; None: without.
        seed: of the pairs drawn.

    Raises:
        InputError: fewer than two sets, results without one of them, or as `write_page`.
        OSError: the file cannot be written.
    """
    results, title, sources = _checked(sets, results), without_home(title), short_names(list(sets))
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
    """What is compared; what the sets have in common is said once."""
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
    """What the models cost; None if that is not known."""
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
    lead = "What was set differently; all other settings are the same."
    return section("recipe", "Recipes", lead, table(caption, ["setting", *read], lines))


def _checked(sets: Mapping[str, EvaluatedEmbeddings], results: ResultsTable | None) -> ResultsTable:
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
    return section("similarities", "Similarities", LEAD, element("div", *parts, class_="charts"))


def _data_section(sets: Mapping[str, EvaluatedEmbeddings], sources: Mapping[str, str]) -> Section:
    parts = (_data(name, source, sets[name]) for source, name in sources.items())
    return section("data", "Data", "What each set was evaluated on.", *parts)


def _data(name: str, source: str, each: EvaluatedEmbeddings) -> Markup:
    counts = statistics_table(f"Images of {name}", evaluated_images(each.table).statistics())
    line = header_line(without_home(source) if source != name else None, summary(each.evaluation))
    return joined([element("h3", name), element("p", line), counts])
