"""From embeddings to a table of results: choose the protocol, evaluate, tabulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation import (
    Evaluation,
    Resampling,
    ResultsTable,
    average_runs,
    cluster,
    compare_models,
    compare_reranking,
    count_query_classes,
    evaluate,
    evaluate_identification,
    evaluate_listed_positives,
    evaluate_met,
    evaluate_revisited_table,
    evaluate_vehicle_id,
    tabulate,
)
from vicinal.evaluation.model_costs import ModelCost, cost_frame
from vicinal.evaluation.resampling import MIN_CLASSES
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.reranking.base import Reranking
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.launch import check_launch
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.settings import REVISITED, VEHICLE_ID, EvaluationSettings

MAX_DIFFERENCE = timedelta(days=7)  # timeout of the first process waiting for the last; a dead one is noticed

MakeReranking = Callable[[str, EmbeddedTable], Reranking]
"""Makes the re-ranking or refinement of the embeddings of a source."""
Combine = Literal["compare", "average"]


@dataclass(frozen=True)
class EvaluatedSource:
    """The evaluations of one source of embeddings.

    Attributes:
        name: of the source.
        table: the evaluated images.
        plain: without re-ranking; None if only the re-ranked evaluation was asked for.
        reranked: with re-ranking or refinement; None without.
        cost: the costs of the model, if known.
    """

    name: str
    table: Table
    plain: Evaluation | None
    reranked: Evaluation | None = None
    cost: ModelCost | None = None

    @property
    def final(self) -> Evaluation:
        """The evaluation after re-ranking and refinement, if there were any."""
        evaluation = self.plain if self.reranked is None else self.reranked
        assert evaluation is not None
        return evaluation


def evaluate_sources(
    sources: Mapping[str, EmbeddedTable],
    settings: EvaluationSettings,
    make_reranking: MakeReranking | None = None,
    combine: Combine | None = None,
    divided: bool = False,
    calibrations: Mapping[str, Calibration] | None = None,
) -> list[EvaluatedSource]:
    """Evaluate every source by its protocol.

    Args:
        sources: name -> embeddings.
        settings: the metrics and their protocol.
        make_reranking: makes the re-ranking or refinement by which every source is evaluated too.
        combine: how the evaluations will be combined by :func:`tabulate_sources`. Sources that are to be combined are
            only evaluated with re-ranking if there is one, and their images are compared.
        divided: whether the processes of `torch.distributed`, which all call this function, divide the rankings.
        calibrations: name -> the calibration of each source, for `open_set`.

    Raises:
        InputError: the images to be compared differ, or a result cannot be computed with these embeddings.
    """
    _check_combined_images(sources, combine)
    evaluated = []
    for name, embedded in sources.items():
        evaluate_by_protocol = _protocol(settings, name, make_reranking is not None, divided)
        before = after = None
        if combine is None or make_reranking is None:
            before = evaluate_by_protocol(embedded.vectors, embedded.table)
            if settings.clusters:
                clustering = cluster(embedded.vectors, embedded.table, seed=settings.seed)
                before = replace(before, metrics=before.metrics | clustering.metrics)
            if settings.open_set and calibrations is not None:
                before = _with_identification(before, embedded, settings, calibrations[name])
        if make_reranking is not None:
            after = evaluate_by_protocol(embedded.vectors, embedded.table, rerank=make_reranking(name, embedded))
        evaluated.append(EvaluatedSource(name, embedded.table, before, after, embedded.cost))
    return evaluated


def _with_identification(
    evaluation: Evaluation, embedded: EmbeddedTable, settings: EvaluationSettings, calibration: Calibration
) -> Evaluation:
    found = evaluate_identification(
        embedded.vectors, embedded.table, calibration, settings.known_fraction, settings.seed, settings.confidence_level
    )
    means = {name: float(np.nanmean(values)) for name, values in found.per_query.items()}
    of_queries = {name: values[evaluation.query_indices] for name, values in found.per_query.items()}
    return replace(
        evaluation,
        metrics=evaluation.metrics | means | found.set_metrics,
        per_query=evaluation.per_query | of_queries,
        set_intervals=found.set_intervals,
    )


def tabulate_sources(
    evaluated: Sequence[EvaluatedSource], settings: EvaluationSettings, combine: Combine | None = None
) -> ResultsTable:
    """Put the evaluations of sources in one table.

    Args:
        evaluated: as :func:`evaluate_sources` returns them.
        settings: which confidence intervals and groups of queries are asked for.
        combine: `compare` the sources with the first one on the same queries, or `average` them as runs of one recipe;
            None: each source stands for itself, with its results before and after re-ranking if there is one. Unless
            they are averaged, the table says what the models of several sources cost.

    Raises:
        InputError: a requested result cannot be computed with these evaluations.
    """
    finals, first = {each.name: each.final for each in evaluated}, evaluated[0]
    if combine == "average":
        return average_runs(finals, settings.confidence_level)
    if combine == "compare":
        results = compare_models(finals, first.table, resampling_of(first, settings))
        return replace(results, costs=costs_of(evaluated))
    tables = []
    for each in evaluated:
        resampling = None if settings.intervals is None else resampling_of(each, settings)
        if each.plain is None or each.reranked is None:
            results = tabulate(
                each.final, each.table, model=each.name, resampling=resampling, group_by=settings.group_by
            )
        else:
            results = compare_reranking(each.plain, each.reranked, each.table, model=each.name, resampling=resampling)
        tables.append(results)
    return replace(ResultsTable.concat(tables), costs=costs_of(evaluated))


def costs_of(evaluated: Sequence[EvaluatedSource]) -> pd.DataFrame | None:
    """The costs of the models of several sources; None if all are unknown."""
    costs = {each.name: each.cost for each in evaluated if each.cost is not None}
    is_known = any(cost.num_parameters is not None for cost in costs.values())
    return cost_frame(costs) if is_known and len(evaluated) > 1 else None


def resampling_of(evaluated: EvaluatedSource, settings: EvaluationSettings) -> Resampling:
    """The resampling for intervals of a source, by default of its classes, if any; logs if they are too narrow."""
    resample_by = settings.intervals or ("classes" if evaluated.table.has("label") else "queries")
    if resample_by == "classes":
        num_classes = count_query_classes(evaluated.final, evaluated.table)
        if num_classes < MIN_CLASSES:
            log(f"confidence intervals from {num_classes} classes are too narrow; about {MIN_CLASSES} are needed")
    return Resampling(resample_by, settings.confidence_level, settings.num_resamples, settings.seed)


def _protocol(settings: EvaluationSettings, source: str, is_reranked: bool, divided: bool) -> Callable[..., Evaluation]:
    """The function that evaluates embeddings and their table by the protocol of a source."""
    protocol = settings.protocol_of(source)
    if protocol == "standard":
        measured = {name: getattr(settings, name) for name in ("recall_at", "metrics", "hierarchy")}
        return partial(evaluate, **measured, divided=divided)
    for option, is_given in {
        "--metrics": bool(settings.metrics),
        "--hierarchy": settings.hierarchy,
        "--clusters": settings.clusters,
        "--open_set": settings.open_set,
        "--rerank and --refiner": is_reranked,
        "--devices": divided,
        "--recall_at": settings.recall_at is not None and protocol != VEHICLE_ID,
    }.items():
        if is_given:
            raise InputError(f"{option} cannot be combined with the protocol of {protocol}; leave it out")
    if protocol == VEHICLE_ID:
        return partial(evaluate_vehicle_id, recall_at=settings.recall_at, seed=settings.seed)
    if protocol not in REVISITED:
        return evaluate_met if protocol == "met" else evaluate_listed_positives
    from vicinal.data.benchmarks.revisited import revisited_ground_truth

    return partial(evaluate_revisited_table, ground_truth=revisited_ground_truth(protocol, settings.root))


def _check_combined_images(sources: Mapping[str, EmbeddedTable], combine: Combine | None) -> None:
    """Refuse to compare sources with different images; if they are averaged, only log the difference."""
    (baseline, first), *others = sources.items()
    for name, embedded in others if combine is not None else []:
        try:
            check_same_images(first.table, embedded.table, f"{name} against {baseline}")
        except InputError as error:
            if combine == "compare":
                raise
            log(f"the average is over different test sets, as in cross-validation: {str(error).partition(';')[0]}")


def check_same_images(first: Table, second: Table, what: str) -> None:
    """Check that two tables hold the same images, by labels and file names row by row; `what` begins the message."""
    if len(first) != len(second):
        raise InputError(f"{what}: {len(second):,} images and {len(first):,}; a comparison needs the same images")
    for column, text in (("label", str), ("path", lambda path: Path(str(path)).name)):
        if first.has(column) and second.has(column):
            ours, theirs = (np.array(list(map(text, table.frame[column]))) for table in (first, second))
            other = np.flatnonzero(ours != theirs)
            if len(other):
                raise InputError(f"{what}: row {other[0]} has another {column}; a comparison needs the same images")


def per_query_frame(evaluation: Evaluation, table: Table) -> pd.DataFrame:
    """The scores of every query: one row per query, the columns of the table and then the metrics, NaN without a score.

    A column of the table that has the name of a metric is renamed to `mAP_of_table` and the like.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> per_query_frame(evaluate(np.eye(2)[[0, 0, 1]], table, recall_at=[1]), table)[["label", "recall@1"]]
          label  recall@1
        0   cat       1.0
        1   cat       1.0
        2   dog       NaN
    """
    columns = table.frame.iloc[evaluation.query_indices].reset_index(drop=True)
    columns = columns.rename(columns={name: f"{name}_of_table" for name in evaluation.per_query})
    return pd.concat([columns, pd.DataFrame(evaluation.per_query)], axis=1)


def join_processes(devices: int | None) -> None:
    """Let the processes that torchrun or SLURM started, `devices` per machine, talk by `torch.distributed`."""
    launch = check_launch(devices, None)
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    from vicinal.training import engine

    fabric = Fabric(
        accelerator="cpu",
        devices=launch.processes_per_node,
        num_nodes=launch.num_nodes,
        strategy=DDPStrategy(timeout=MAX_DIFFERENCE),
        plugins=[engine.cluster_environment(launch)],
    )
    engine.join_processes(fabric)
