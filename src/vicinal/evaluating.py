"""From embeddings to what is measured on them: one source, several side by side, or several runs averaged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.console import log
from vicinal.data import Table, revisited_truth
from vicinal.data.table_files import write_table
from vicinal.errors import InputError
from vicinal.evaluation import (
    Comparison,
    Difference,
    Evaluation,
    Interval,
    ModelsCompared,
    RunsAveraged,
    Scorecard,
    all_difficulties,
    average_runs,
    cluster,
    compare_models,
    evaluate,
    evaluate_revisited,
    evaluate_vehicle_id,
    interval,
    metric_of,
    metrics_by,
    paired,
)
from vicinal.evaluation.uncertainty import FEW_CLASSES, By, check_sampling, query_classes
from vicinal.retrieval import Reranking
from vicinal.sources import Embedded

REVISITED, VEHICLE_ID = ("roxford", "rparis"), "vehicle_id"
VEHICLE_IDS = (VEHICLE_ID, "vehicle_id_medium", "vehicle_id_small")
PROTOCOLS = ("standard", *REVISITED, VEHICLE_ID)

Method = Callable[[Embedded], Reranking]
"""Makes the re-ranking or refinement of some embeddings."""


@dataclass(frozen=True)
class Measuring:
    """What is measured, and by which protocol.

    Args:
        recall_at: the k of each recall@k; None: as many as there are images for.
        metrics: more metrics, by name.
        hierarchy: whether coarse labels are scored too.
        clusters: whether k-means clusters are compared with the classes too: NMI, AMI and F1.
        protocol: one of :data:`PROTOCOLS`; None: that of the benchmark of the source's name, else `standard`.
        root: folder that keeps the ground truth of `roxford` and `rparis`.
        intervals: what is drawn for confidence intervals, `classes` or `queries`; None: there are none.
        level: of confidence.
        draws: samples of a bootstrap.
        by: a column of the table: metrics are given for each group of queries too.
        seed: of everything drawn by chance.
    """

    recall_at: list[int] | None = None
    metrics: tuple[str, ...] = ()
    hierarchy: bool = False
    clusters: bool = False
    protocol: str | None = None
    root: str | None = None
    intervals: By | None = None
    level: float = 0.95
    draws: int = 2000
    by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Find impossible wishes before anything is computed."""
        check_sampling(self.level, self.draws, self.seed)
        for name in self.metrics:
            metric_of(name, sys.maxsize)

    def one(
        self, name: str, embedded: Embedded, method: Method | None = None
    ) -> Scorecard | Comparison | ModelsCompared:
        """Measure one source.

        Args:
            name: of the source.
            embedded: its embeddings.
            method: of re-ranking or refinement: metrics are given before and after.

        Returns:
            A scorecard; with a method a comparison, which has differences and p-values if intervals were asked for.

        Raises:
            InputError: something that is asked for is impossible with these embeddings.
        """
        evaluation = self.evaluation(name, embedded)
        if method is None:
            groups = None if self.by is None else metrics_by(evaluation, embedded.table, self.by)
            drawn = self.intervals or "classes"
            return Scorecard(name, evaluation, self.confidence(evaluation, embedded.table), groups, drawn, self.level)
        reranking = method(embedded)
        after = self.evaluation(name, embedded, reranking)
        if self.intervals is None:
            return Comparison(evaluation, after, reranking)
        return self._compared({"plain": evaluation, reranking.outcome: after}, embedded.table)

    def compared(self, sources: Mapping[str, Embedded], method: Method | None = None) -> ModelsCompared:
        """Hold models against the first one, on the same queries.

        Args:
            sources: name -> embeddings of the same images, two or more.
            method: of re-ranking or refinement, which all of them go through first.

        Raises:
            InputError: fewer than two, other images, or something that is asked for is impossible.
        """
        first = next(iter(sources))
        for name, embedded in sources.items():
            check_same_images(sources[first].table, embedded.table, f"{name} against {first}")
        return self._compared(self._all(sources, method), sources[first].table)

    def averaged(self, sources: Mapping[str, Embedded], method: Method | None = None) -> RunsAveraged:
        """Summarise runs of one recipe, such as of several seeds; that they are of other images is said.

        Raises:
            InputError: fewer than two, or something that is asked for is impossible.
        """
        first = next(iter(sources))
        for name, embedded in sources.items():
            try:
                check_same_images(sources[first].table, embedded.table, f"{name} against {first}")
            except InputError as error:
                log(f"an average over other test sets, as of cross-validation: {str(error).partition(';')[0]}")
        return average_runs(self._all(sources, method), self.level)

    def evaluation(self, name: str, embedded: Embedded, rerank: Reranking | None = None) -> Evaluation:
        """The metrics of one source, by its protocol."""
        protocol = self.protocol or protocol_of(name)
        if protocol != "standard":
            self._check_free(protocol, rerank)
        if protocol in REVISITED:
            return self._revisited(embedded, protocol)
        if protocol == VEHICLE_ID:
            cuts = self.recall_at or (1, 5)
            repeated = evaluate_vehicle_id(embedded.vectors, embedded.table, seed=self.seed, recall_at=cuts)
            apart = ", ".join(f"{metric} {100 * value:.2f} %" for metric, value in repeated.deviations.items())
            log(f"{name}: standard deviation over {len(repeated.repetitions)} galleries: {apart}")
            return repeated.averaged()
        found = evaluate(
            embedded.vectors, embedded.table, self.recall_at, None, rerank, metrics=self.metrics,
            hierarchy=self.hierarchy,
        )  # fmt: skip
        return self._with_clusters(found, embedded) if self.clusters else found

    def confidence(self, evaluation: Evaluation, table: Table) -> dict[str, Interval]:
        """The intervals that were asked for, none if none were."""
        if self.intervals is None:
            return {}
        self._tell_of_few(evaluation, table)
        return interval(evaluation, table, self.intervals, self.level, self.draws, self.seed)

    def difference(self, first: Evaluation, second: Evaluation, table: Table) -> dict[str, Difference]:
        """What one model has over another on the same queries, metric by metric."""
        return paired(first, second, table, self._drawn(table), self.level, self.draws, self.seed)

    def _all(self, sources: Mapping[str, Embedded], method: Method | None) -> dict[str, Evaluation]:
        return {
            name: self.evaluation(name, embedded, None if method is None else method(embedded))
            for name, embedded in sources.items()
        }

    def _compared(self, evaluations: Mapping[str, Evaluation], table: Table) -> ModelsCompared:
        self._tell_of_few(next(iter(evaluations.values())), table)
        return compare_models(evaluations, table, self._drawn(table), self.level, self.draws, self.seed)

    def _tell_of_few(self, evaluation: Evaluation, table: Table) -> None:
        if self._drawn(table) == "classes":
            classes = query_classes(table, evaluation)
            if classes < FEW_CLASSES:
                log(f"{classes} classes are few: intervals are too narrow below about {FEW_CLASSES}")

    def _drawn(self, table: Table) -> By:
        return self.intervals or ("classes" if table.has("label") else "queries")

    def _check_free(self, protocol: str, rerank: Reranking | None) -> None:
        """Refuse what a fixed protocol has no place for."""
        asked = {
            "--metrics": bool(self.metrics), "--hierarchy": self.hierarchy, "--clusters": self.clusters,
            "--rerank and --refiner": rerank is not None,
            "--recall-at": self.recall_at is not None and protocol in REVISITED,
        }  # fmt: skip
        for option, given in asked.items():
            if given:
                raise InputError(f"{option}: the protocol of {protocol} has no place for it; leave it out")

    def _revisited(self, embedded: Embedded, name: str) -> Evaluation:
        """The three difficulties as one evaluation, of a table with the gallery first, as the benchmark gives it."""
        truth = revisited_truth(name, self.root)
        images, queries = len(truth.images), len(truth.queries)
        if len(embedded.vectors) != images + queries:
            raise InputError(
                f"{len(embedded.vectors)} embeddings; {name} has {images} gallery images and then {queries} queries"
            )
        found = evaluate_revisited(embedded.vectors[images:], embedded.vectors[:images], truth)
        return replace(all_difficulties(found), query_rows=images + np.arange(queries))

    def _with_clusters(self, evaluation: Evaluation, embedded: Embedded) -> Evaluation:
        found = cluster(embedded.vectors, embedded.table, seed=self.seed)
        return replace(evaluation, metrics={**evaluation.metrics, **found.metrics})


def protocol_of(source: str) -> str:
    """The protocol of a source: that of the benchmark it names, else `standard`."""
    if source in REVISITED:
        return source
    return VEHICLE_ID if source in VEHICLE_IDS else "standard"


def check_same_images(first: Table, second: Table, what: str) -> None:
    """Refuse to compare models on other images: labels and the files' names must be the same, row by row.

    Raises:
        InputError: another number of rows, or the first row that differs.
    """
    if len(first) != len(second):
        raise InputError(f"{what}: {len(second):,} images and {len(first):,}; a comparison needs the same ones")
    for column, values in (("label", _texts), ("path", _names)):
        if first.has(column) and second.has(column):
            other = np.flatnonzero(values(first.frame[column]) != values(second.frame[column]))
            if len(other):
                raise InputError(f"{what}: row {other[0]} has another {column}; a comparison needs the same images")


def _texts(column: pd.Series) -> np.ndarray:
    return column.astype(str).to_numpy()


def _names(column: pd.Series) -> np.ndarray:
    return np.array([Path(str(path)).name for path in column])


def write_per_query(path: str | Path, evaluation: Evaluation, table: Table) -> None:
    """Write :func:`per_query_frame` to a .csv or .parquet file, as a whole.

    Raises:
        InputError: another ending.
        OSError: it cannot be written.
    """
    write_table(Path(path), per_query_frame(evaluation, table))


def per_query_frame(evaluation: Evaluation, table: Table) -> pd.DataFrame:
    """Every query with its scores: a row a query, the table's columns and then the metrics; NaN where none counts.

    A column of the table that has a metric's name is called `mAP_of_table` and the like.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> per_query_frame(evaluate(np.eye(2)[[0, 0, 1]], table, recall_at=[1]), table)[["label", "recall@1"]]
          label  recall@1
        0   cat       1.0
        1   cat       1.0
        2   dog       NaN
    """
    facts = table.frame.iloc[evaluation.query_rows].reset_index(drop=True)
    facts = facts.rename(columns={name: f"{name}_of_table" for name in evaluation.per_query})
    return pd.concat([facts, pd.DataFrame(evaluation.per_query)], axis=1)
