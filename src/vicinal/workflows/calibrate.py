"""Calibration of a source's scores, and where calibrations are kept: in an index, a model's folder or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vicinal.evaluation.calibration import calibrate
from vicinal.evaluation.resampling import MIN_CLASSES, Resampling
from vicinal.models.model_folder import CALIBRATION
from vicinal.retrieval.calibration import Calibration
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.calibration_settings import CalibrationSettings
from vicinal.workflows.source_kind import source_kind
from vicinal.workflows.sources import EmbeddedTable

LARGER = 2  # times as many gallery images make false accepts more frequent than was asked for


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


@dataclass(frozen=True)
class CalibrationPlaces:
    """Where a calibration is kept.

    Args:
        index: the folder of an index.
        model: the folder of a model; an index that is built with the model takes the calibration from there.
        file: a .json file.
    """

    index: Path | None = None
    model: Path | None = None
    file: Path | None = None

    def keep(self, calibration: Calibration) -> list[str]:
        """Write a calibration to all places, and name them.

        Raises:
            InputError: the index has embeddings of another model, or cannot be read.
            OSError: a file cannot be written.
        """
        if self.index is not None:
            _keep_in_index(self.index, calibration)
        files = [None if self.model is None else self.model / CALIBRATION, self.file]
        for path in filter(None, files):
            calibration.save(path)
        return [str(path) for path in (self.index, *files) if path is not None]


def _keep_in_index(folder: Path, calibration: Calibration) -> None:
    from vicinal.retrieval import Index

    with Index.open(folder) as index:
        index.calibration = calibration
        if len(index) > LARGER * calibration.num_gallery:
            log(
                f"{folder} has {len(index):,} images, the calibration {calibration.num_gallery:,}: in a larger gallery "
                "unknown images find more similar ones, so more are accepted than was asked for"
            )


def model_folder(name: str) -> Path | None:
    """The folder of a saved model, by its own path or that of its run; None for other sources and names.

    Example:
        >>> model_folder("timm/resnet50") is None
        True
    """
    run = RunFolder(Path(name))
    kind = source_kind(name)
    if kind == "run" and run.model.is_dir():
        return run.model
    return Path(name) if kind == "embedder" else None


def stored_calibration(model: str, fingerprint: str | None) -> Calibration | None:
    """The calibration in the folder of a model, if there is one and it is for embeddings of this fingerprint.

    Args:
        model: a model folder or a run.
        fingerprint: of the embeddings, with the steps after the model.

    Raises:
        InputError: the file is damaged.
    """
    folder = model_folder(model)
    if folder is None or not (folder / CALIBRATION).exists():
        return None
    calibration = Calibration.load(folder / CALIBRATION)
    try:
        calibration.check_model(fingerprint)
    except InputError as error:
        log(f"{folder / CALIBRATION} is not used: {error}")
        return None
    return calibration
