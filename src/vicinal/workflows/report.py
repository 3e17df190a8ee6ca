"""Writing the page about one or several sets of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vicinal.evaluation import ResultsTable, confidence_intervals, paired_differences
from vicinal.report.page import EvaluatedEmbeddings, write_comparison_page, write_page, write_unlabeled_page
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.evaluate import (
    EvaluatedSource,
    MakeReranking,
    check_same_images,
    costs_of,
    evaluate_sources,
    resampling_of,
)
from vicinal.workflows.settings import EvaluationSettings
from vicinal.workflows.source import Source

PAGE = "report.html"


def default_page(sources: Sequence[str]) -> Path:
    """The default path of the page: in the run, if a single run is given, otherwise in the current folder."""
    return Path(sources[0], PAGE) if len(sources) == 1 and Source(sources[0]).kind == "run" else Path(PAGE)


def write_report(
    out: str | Path,
    sources: Mapping[str, EmbeddedTable],
    settings: EvaluationSettings,
    title: str | None = None,
    map_images: int | None = None,
    make_reranking: MakeReranking | None = None,
) -> None:
    """Evaluate and write the page of one source, or of several compared with the first one.

    Args:
        out: the page; it is replaced as a whole.
        sources: name -> embeddings. If a name is a run folder, its recipe and curves are shown too. A single one may
            have no labels; its page has the sections that need none.
        settings: what to evaluate. Intervals that cannot be computed, as those of a single class, are left out with a
            message.
        title: of the page; by default made of the names.
        map_images: the number of images on the map; by default that of the page.
        make_reranking: makes the re-ranking of a single source.

    Raises:
        InputError: a requested result cannot be computed with these embeddings.
        OSError: the page cannot be written.
    """
    unlabeled = [name for name, embedded in sources.items() if not embedded.table.has("label")]
    rerank = None if make_reranking is None else make_reranking(*next(iter(sources.items())))
    more: dict[str, Any] = {"rerank": rerank, "seed": settings.seed}
    if map_images is not None:
        more["map_images"] = map_images
    if unlabeled and len(sources) == 1:
        return _write_unlabeled(out, *next(iter(sources.items())), settings, title, more)
    if unlabeled:
        raise InputError(f"{unlabeled[0]} has no labels, which a comparison needs; give one source for a page about it")
    evaluated = evaluate_sources(
        sources, replace(settings, protocol="standard"), None if rerank is None else lambda *_: rerank
    )
    results = ResultsTable.concat(_results(each, evaluated[0], settings) for each in evaluated)
    results = replace(results, costs=costs_of(evaluated))
    sets = {each.name: _evaluated_embeddings(each, sources[each.name]) for each in evaluated}
    if len(sets) == 1:
        ((name, only),) = sets.items()
        write_page(
            out, only.vectors, only.table, only.evaluation, title=title or _short(name), run=only.run,
            backbone=only.backbone, num_left_out=only.num_left_out, results=results, **more,
        )  # fmt: skip
    else:
        write_comparison_page(
            out, sets, title=title or " and ".join(map(_short, sets)), results=results, seed=settings.seed
        )


def _write_unlabeled(
    out: str | Path,
    name: str,
    embedded: EmbeddedTable,
    settings: EvaluationSettings,
    title: str | None,
    more: Mapping[str, Any],
) -> None:
    for flag in ("recall_at", "metrics", "hierarchy"):
        if getattr(settings, flag):
            raise InputError(f"--{flag} needs labels, which {name} does not have")
    log(f"{name} has no labels: the page has neighbors, map, hubs and duplicates, but no scores")
    write_unlabeled_page(
        out, embedded.vectors, embedded.table, title=title or _short(name), backbone=embedded.backbone,
        num_left_out=embedded.num_left_out, **more,
    )  # fmt: skip


def _evaluated_embeddings(evaluated: EvaluatedSource, embedded: EmbeddedTable) -> EvaluatedEmbeddings:
    name = evaluated.name
    return EvaluatedEmbeddings(
        embedded.vectors,
        evaluated.table,
        evaluated.final,
        run=name if Source(name).kind == "run" else None,
        backbone=embedded.backbone,
        num_left_out=embedded.num_left_out,
    )


def _results(evaluated: EvaluatedSource, baseline: EvaluatedSource, settings: EvaluationSettings) -> ResultsTable:
    """The results of one source, with all intervals and differences that can be computed; logs why others cannot."""
    name, table = evaluated.name, evaluated.table
    if settings.intervals is None:
        return evaluated.final.to_results(name)
    resampling = resampling_of(evaluated, settings)
    intervals = differences = None
    try:
        intervals = confidence_intervals(evaluated.final, table, resampling)
    except InputError as error:
        log(f"{name}: no intervals: {error}")
    try:
        if evaluated is not baseline:
            check_same_images(baseline.table, table, f"{name} against {baseline.name}")
            differences = paired_differences(baseline.final, evaluated.final, table, resampling)
    except InputError as error:
        log(f"no intervals of differences: {error}")
    results = evaluated.final.to_results(name, intervals=intervals, differences=differences)
    return replace(results, confidence_level=resampling.confidence_level, resample_by=resampling.resample_by)


def _short(name: str) -> str:
    return Path(name).name or name
