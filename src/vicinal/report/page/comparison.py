"""A page of several evaluated sets side by side: what is different first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.report.page.cells import Cells
from vicinal.report.page.changes import changes_section
from vicinal.report.page.data import evaluated_images, statistics_table, summary
from vicinal.report.page.differences import Differences, differences_section
from vicinal.report.page.document import document
from vicinal.report.page.evaluated import EvaluatedSet
from vicinal.report.page.markup import Markup, Section, element, joined, section, table
from vicinal.report.page.pairs import pair_similarities
from vicinal.report.page.paths import without_home
from vicinal.report.page.pictures import Pictures
from vicinal.report.page.run import Run, read_run, settings
from vicinal.report.page.search import Neighborhood, neighborhood
from vicinal.report.page.similarities import LEAD, similarities_figure
from vicinal.report.page.training import curves_section


def write_comparison_page(
    path: str | Path,
    sets: Mapping[str, EvaluatedSet],
    *,
    title: str = "Comparison",
    differences: Differences | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> None:
    """Write a page, as :func:`~vicinal.report.page.write_page` does, of several sets: the others against the first.

    It has the metrics side by side, the queries that got better and worse with their neighbours in both, similarities
    of pairs, settings that differ, learning curves on common axes, and the data. A set that was not evaluated on the
    queries and gallery of the first one has no differences to it, and the page says why.

    Args:
        path: of the file; replaced as a whole.
        sets: name -> what is compared, two or more. Queries are the same if their paths are; without paths, if they are
            the same rows of tables with the same labels.
        title: of the page.
        differences: name of a set -> metric -> the confidence interval of its difference to the first set.
        level: the confidence of all intervals, which the page names.
        seed: of the pairs drawn.

    Raises:
        InputError: fewer than two sets, a difference of an unknown set, or as `write_page`.
        OSError: the file cannot be written.
    """
    _check(sets, differences or {})
    title = without_home(title)
    sets = {without_home(name): each for name, each in sets.items()}
    differences = {without_home(name): each for name, each in (differences or {}).items()}
    pictures = Pictures()
    runs = {name: Run() if each.run is None else read_run(each.run) for name, each in sets.items()}
    found = {name: neighborhood(each.vectors, each.table, each.evaluation) for name, each in sets.items()}
    cells = {name: Cells(pictures, each.table) for name, each in sets.items()}
    groups: dict[str, list[Section | None]] = {
        "Results": [
            differences_section(sets, differences, level),
            changes_section(sets, found, cells),
            _similarities_section(sets, found, seed),
        ],
        "Data and training": [settings_section(runs), curves_section(runs), _data_section(sets)],
    }
    images = pictures.encoded()
    first, *others = sets
    summed = " · ".join([f"{', '.join(others)} against {first}", *pictures.notes()])
    write_bytes(path, document(title, summed, groups, {"map": None, "images": images}))


def settings_section(runs: Mapping[str, Run]) -> Section | None:
    """Settings that are not the same in all recipes that are known; None where fewer than two are."""
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


def _check(sets: Mapping[str, EvaluatedSet], differences: Differences) -> None:
    if len(sets) < 2:
        raise InputError(f"{len(sets)} evaluated sets; a comparison needs two or more")
    for name in differences:
        if name not in sets:
            raise InputError(f"differences of {name!r}, which is not compared; the sets are {', '.join(sets)}")


def _similarities_section(
    sets: Mapping[str, EvaluatedSet], found: Mapping[str, Neighborhood], seed: int
) -> Section | None:
    parts: list[Markup] = []
    for name, each in sets.items():
        pairs = pair_similarities(each.vectors, each.table, found[name].queries, found[name].gallery, seed=seed)
        drawn = similarities_figure(pairs)
        if drawn is not None:
            parts.append(element("div", element("h3", name), drawn))
    if not parts:
        return None
    return section("similarities", "Similarities", LEAD, element("div", *parts, class_="charts"))


def _data_section(sets: Mapping[str, EvaluatedSet]) -> Section:
    return section("data", "Data", "What each set was evaluated on.", *(_data(*each) for each in sets.items()))


def _data(name: str, each: EvaluatedSet) -> Markup:
    counts = statistics_table(f"Images of {name}", evaluated_images(each.table, each.evaluation).statistics())
    return joined([element("h3", name), element("p", summary(each.evaluation)), counts])
