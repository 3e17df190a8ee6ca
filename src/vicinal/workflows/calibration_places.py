"""Where calibrations are kept: in an index, the folder of a model, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.models.model_folder import CALIBRATION
from vicinal.retrieval.calibration import Calibration
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.source import Source

if TYPE_CHECKING:
    from vicinal.retrieval import ImageIndex
    from vicinal.workflows.embedded_table import EmbeddedTable

LARGER = 2  # times as many gallery images make false accepts more frequent than was asked for


def keep_calibration(
    calibration: Calibration, index: Path | str | None = None, model: Path | None = None, file: Path | None = None
) -> list[str]:
    """Write a calibration to all given places, and name them.

    Args:
        calibration: what to write.
        index: the folder of an index, or its URL.
        model: the folder of a model; an index that is built later with the model takes the calibration from there.
        file: a .json file.

    Raises:
        InputError: the index has embeddings of another model, or cannot be read.
        OSError: a file cannot be written.
    """
    if index is not None:
        from vicinal.retrieval import Index

        with Index.open(index) as opened:
            opened.calibration = calibration
            warn_of_larger_gallery(index, opened)
    files = [None if model is None else model / CALIBRATION, file]
    for path in filter(None, files):
        calibration.save(path)
    return [str(path) for path in (index, *files) if path is not None]


def warn_of_larger_gallery(folder: str | Path, index: ImageIndex) -> None:
    """Log that an index has more than twice as many images as the gallery that it was calibrated with."""
    calibration = index.calibration
    if calibration is None:
        return
    if index.count(at_most=LARGER * calibration.num_gallery + 1) > LARGER * calibration.num_gallery:
        log(
            f"{folder} has {len(index):,} images, the calibration {calibration.num_gallery:,}: in a larger gallery "
            "unknown images find more similar ones, so more are accepted than requested; vicinal calibrate --gallery "
            f"{folder} compares with all of them"
        )


def model_folder(name: str) -> Path | None:
    """The folder of a saved model, by its own path or that of its run; None for other sources and names."""
    run = RunFolder(Path(name))
    kind = Source(name).kind
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


def calibration_of(source: str, embedded: EmbeddedTable, model: str | None, file: str | None) -> Calibration:
    """The calibration of embeddings: that of a file, or else that of their index, their model or their run."""
    from vicinal.retrieval import ImageIndex

    if file is not None:
        found: Calibration | None = Calibration.load(file)
    elif isinstance(embedded.origin, ImageIndex):
        found = embedded.origin.calibration
    else:
        found = stored_calibration(model or source, embedded.fingerprint)
    if found is None:
        raise InputError(f"{source} has no calibration, which --open_set needs; make one: vicinal calibrate, and give "
                         "--calibration FILE if it is not stored with the model")  # fmt: skip
    found.check_model(embedded.fingerprint)
    return found
