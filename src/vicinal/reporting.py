"""From embeddings to a page about them, or about several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vicinal.console import log
from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.evaluating import Measuring, check_same_images
from vicinal.evaluation import Evaluation, Interval
from vicinal.report.page import EvaluatedSet, write_comparison_page, write_page
from vicinal.sources import Embedded, is_run

PAGE = "report.html"


def default_page(sources: Sequence[str]) -> Path:
    """Where the page goes by default: into the run, if there is one and it is alone, else into this folder."""
    return Path(sources[0], PAGE) if len(sources) == 1 and is_run(sources[0]) else Path(PAGE)


def write_report(
    out: str | Path,
    sources: Mapping[str, Embedded],
    measuring: Measuring,
    title: str | None = None,
    map_images: int | None = None,
) -> None:
    """Measure and write the page: of one source, or of several against the first one.

    Args:
        out: the page, replaced as a whole.
        sources: name -> embeddings; the recipe and curves of those that are run folders are shown too.
        measuring: what is measured. Intervals that cannot be had, of one class alone, are left out and that is said.
        title: of the page; None: made of the names.
        map_images: at most so many images are on the map; None: the page's default.

    Raises:
        InputError: something that is asked for is impossible with these embeddings.
        OSError: the page cannot be written.
    """
    sets = {name: _evaluated(name, embedded, measuring) for name, embedded in sources.items()}
    if len(sets) == 1:
        ((name, only),) = sets.items()
        more: dict[str, Any] = {} if map_images is None else {"map_images": map_images}
        write_page(
            out, only.vectors, only.table, only.evaluation, title=title or _short(name), run=only.run,
            intervals=only.intervals, level=measuring.level, seed=measuring.seed, **more,
        )  # fmt: skip
    else:
        differences = _differences(sets, measuring)
        write_comparison_page(
            out,
            sets,
            title=title or " and ".join(map(_short, sets)),
            differences=differences,
            level=measuring.level,
            seed=measuring.seed,
        )


def _evaluated(name: str, embedded: Embedded, measuring: Measuring) -> EvaluatedSet:
    if not embedded.table.has("label"):
        raise InputError(f"{name} has no classes, and a page is about classes; vicinal evaluate measures it")
    evaluation = replace(measuring, protocol="standard").evaluation(name, embedded)
    run = name if is_run(name) else None
    return EvaluatedSet(
        embedded.vectors, embedded.table, evaluation, run, _intervals(name, evaluation, embedded.table, measuring)
    )


def _intervals(name: str, evaluation: Evaluation, table: Table, measuring: Measuring) -> dict[str, Interval]:
    try:
        return measuring.confidence(evaluation, table)
    except InputError as error:
        log(f"{name}: no intervals: {error}")
        return {}


def _differences(sets: Mapping[str, EvaluatedSet], measuring: Measuring) -> dict[str, dict[str, Interval]]:
    """The intervals of the differences to the first set, of those sets that are of the same images."""
    if measuring.intervals is None:
        return {}
    (first, baseline), *others = sets.items()
    found = {}
    for name, each in others:
        try:
            check_same_images(baseline.table, each.table, f"{name} against {first}")
            apart = measuring.difference(baseline.evaluation, each.evaluation, each.table)
        except InputError as error:
            log(f"no intervals of differences: {error}")
        else:
            found[name] = {metric: difference.interval for metric, difference in apart.items()}
    return found


def _short(name: str) -> str:
    return Path(name).name or name
