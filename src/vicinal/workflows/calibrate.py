"""Calibration of a source's scores."""

from __future__ import annotations

from vicinal.evaluation.calibration import calibrate
from vicinal.evaluation.resampling import MIN_CLASSES, Resampling
from vicinal.retrieval.calibration import Calibration
from vicinal.utils.console import log
from vicinal.workflows.calibration_settings import CalibrationSettings
from vicinal.workflows.sources import EmbeddedTable


def calibrate_source(embedded: EmbeddedTable, settings: CalibrationSettings) -> Calibration:
    """Calibrate the scores of searches among embeddings; logs what speaks against the result.

    Args:
        embedded: the embeddings, with labels, of classes that the model was not trained on.
        settings: the rate, and the kind of score.

    Raises:
        InputError: as :func:`vicinal.evaluation.calibrate`.
    """
    resampling = Resampling("classes", settings.confidence_level, settings.num_resamples, settings.seed)
    calibration = calibrate(
        embedded.vectors,
        embedded.table,
        settings.false_accept_rate,
        score=settings.score,
        unknown_fraction=settings.unknown_fraction,
        resampling=resampling,
        fingerprint=embedded.fingerprint,
    )
    if "train" in embedded.table.splits:
        log("training images are among these: their classes are easier than others, so the threshold is too high or "
            "too low for them; --split val takes those of other classes")  # fmt: skip
    if calibration.num_classes < MIN_CLASSES:
        log(f"intervals from {calibration.num_classes} classes are too narrow; about {MIN_CLASSES} are needed")
    if calibration.num_queries * settings.false_accept_rate < 1:
        log(
            f"a false-accept rate of {settings.false_accept_rate:g} is less than one of "
            f"{calibration.num_queries:,} queries: the threshold is above them all; use more images or a higher rate"
        )
    return calibration
