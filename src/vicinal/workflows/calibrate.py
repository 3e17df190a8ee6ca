"""Calibration of a source's scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.calibration import RATES, calibrate, operating_points
from vicinal.evaluation.open_set import ood_scores, open_set_scores
from vicinal.evaluation.resampling import Resampling
from vicinal.evaluation.thresholds import classes_needed
from vicinal.retrieval.calibration import Calibration
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.settings import CalibrationSettings

WEAK = 0.5  # fraction of the queries of known classes that are rejected; above it, a decision is worth little
NO_GROUP = "(none)"  # of gallery images, where groups are text


@dataclass(frozen=True)
class CalibratedSource:
    """A calibration of the rate that was asked for, and the results for other rates."""

    calibration: Calibration
    points: pd.DataFrame

    def __str__(self) -> str:
        names = {
            "false_accept_rate": "false accepts",
            "threshold": "threshold",
            "held_out_false_accept_rate": "on classes held out",
            "false_reject_rate": "own rejected",
            "ood_accepted": "out-of-distribution accepted",
        }
        cells = {
            names[str(column)]: [
                f"{value:.4f}" if column == "threshold" else f"{100 * value:.1f} %" for value in values
            ]
            for column, values in self.points.to_dict("list").items()
        }
        return f"{self.calibration}\n\n{pd.DataFrame(cells).to_string(index=False)}"

    def describe(self) -> dict[str, Any]:
        """Its content, ready for JSON, without the curve of probabilities."""
        return {**self.calibration.describe(), "operating_points": self.points.to_dict("records")}


def calibrate_source(
    embedded: EmbeddedTable,
    settings: CalibrationSettings,
    gallery: EmbeddedTable | None = None,
    ood: EmbeddedTable | None = None,
) -> CalibratedSource:
    """Calibrate the scores of searches among embeddings; logs doubts about the result.

    Args:
        embedded: the embeddings, with labels, of classes that the model was not trained on.
        settings: the rate, and the kind of score.
        gallery: further images that they are compared with, with labels; their classes may be any.
        ood: out-of-distribution images, of other kinds of things, of which at most the rate is accepted too.

    Raises:
        InputError: as :func:`vicinal.evaluation.calibrate`; or the gallery has no labels, or is of another model.
    """
    searched = embedded if gallery is None else with_gallery(embedded, gallery)
    scores = open_set_scores(searched.vectors, searched.table, settings.score, settings.identity_pooling)
    found = None
    if ood is not None:
        found = ood_scores(ood.vectors, searched.vectors, searched.table, settings.score, settings.identity_pooling)
    calibration = calibrate(
        searched.vectors,
        searched.table,
        settings.false_accept_rate,
        score=settings.score,
        unknown_fraction=settings.unknown_fraction,
        threshold_by=settings.threshold_by,
        resampling=Resampling("classes", settings.confidence_level, settings.num_resamples, settings.seed),
        fingerprint=embedded.fingerprint,
        scores=scores,
        ood=found,
        pooling=settings.identity_pooling,
    )
    _log_doubts(calibration, embedded.table)
    rates = tuple(sorted({*RATES, settings.false_accept_rate}))
    return CalibratedSource(calibration, operating_points(scores, rates, found))


def with_gallery(queries: EmbeddedTable, gallery: EmbeddedTable) -> EmbeddedTable:
    """Queries that search among themselves and among further images; of an image that is in both, one is kept."""
    if not gallery.table.has("label"):
        raise InputError("the images of the gallery have no labels, which a calibration needs")
    fingerprints = {queries.fingerprint, gallery.fingerprint} - {None}
    if gallery.vectors.shape[1] != queries.vectors.shape[1] or len(fingerprints) > 1:
        raise InputError(
            f"the gallery holds embeddings of the model {gallery.fingerprint} in {gallery.vectors.shape[1]} "
            f"dimensions, not of {queries.fingerprint} in {queries.vectors.shape[1]}; embed both with one model"
        )
    is_new = np.ones(len(gallery.table), dtype=bool)
    if queries.table.has("path") and gallery.table.has("path"):
        is_new = ~pd.Series(gallery.table.image_keys).isin(queries.table.image_keys).to_numpy()
    frame = _joined(queries.table.frame, gallery.table.frame[is_new])
    return replace(queries, vectors=np.concatenate([queries.vectors, gallery.vectors[is_new]]), table=Table(frame))


def _joined(queries: pd.DataFrame, gallery: pd.DataFrame) -> pd.DataFrame:
    """The rows of both, with the columns by which images are compared."""
    columns = [column for column in ("label", "group") if column in queries]
    first, second = queries[columns].copy(), gallery.reindex(columns=columns)
    for column in columns:
        if first[column].dtype != second[column].dtype and column in gallery:
            first[column], second[column] = first[column].astype(str), second[column].astype(str)
    if "group" in columns and "group" not in gallery:
        second["group"] = NO_GROUP if pd.api.types.is_string_dtype(first["group"]) else -1
    first["is_query"], second["is_query"] = queries.get("is_query", True), False
    first["is_gallery"], second["is_gallery"] = queries.get("is_gallery", True), True
    if "path" in queries and "path" in gallery:
        first["path"], second["path"] = queries["path"], gallery["path"]
    return pd.concat([first, second], ignore_index=True)


def _log_doubts(calibration: Calibration, table: Table) -> None:
    rate, level = calibration.false_accept_rate, calibration.confidence_level
    if "train" in table.splits:
        log("some of these are training images, whose classes are easier than others, so the threshold does not suit "
            "other classes; --split val uses only unseen ones")  # fmt: skip
    if table.has("coarse") and table.frame["coarse"].nunique() == 1:
        log(f"all classes have one coarse label, {table.frame['coarse'].iloc[0]}; they say little about others")
    if calibration.false_reject_rate > WEAK:
        log(
            f"warning: the model is too weak to decide at {100 * rate:g} %: of the images of known classes "
            f"{100 * calibration.false_reject_rate:.0f} % are rejected; use a higher rate, or train on such classes"
        )
    needed = classes_needed(rate, level)
    if calibration.num_classes < needed:
        log(
            f"{calibration.num_classes:,} classes are too few for a reliable rate of {100 * rate:g} %, for which "
            f"{needed:,} are needed: of other classes up to {100 * calibration.false_accept_rate_bound:.1f} % of the "
            f"queries may be accepted (with {100 * level:g} % confidence), and intervals are too narrow"
        )
    if calibration.num_queries * rate < 1:
        log(
            f"a false-accept rate of {rate:g} is less than one in {calibration.num_queries:,} queries: the threshold "
            "is above all scores; use more images or a higher rate"
        )
