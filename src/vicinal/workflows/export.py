"""Export of a run or a model, with the images that check and calibrate it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vicinal.data.table import Table
from vicinal.export.settings import ExportSettings
from vicinal.models.saving import check_hub_name, check_same_model
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.models import load_model
from vicinal.workflows.source import Source

if TYPE_CHECKING:
    from vicinal.export.parity import ParityReport
    from vicinal.models.refiner import ContextRefiner
    from vicinal.utils.arrays import Floats


def export_source(
    source: str,
    out: str | Path,
    settings: ExportSettings,
    reader: EmbeddingReader | None = None,
    *,
    check: str | None = None,
    split: str | None = None,
    calibration_images: str | None = None,
    refiner: ContextRefiner | None = None,
    gallery: str | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
) -> ParityReport:
    """Export a run or a model, and compare the result with it; see :func:`vicinal.export.export_model`.

    Args:
        source: as for :func:`~vicinal.workflows.load_model`.
        out: the file of the exported model.
        settings: of the export.
        reader: how tables of images are read, and weights and pooling of backbones.
        check: images with labels, on which the parity is measured; None: the split val of a run, if it has one, and
            else random pixels.
        split: of `check` or of the run; None: all images of `check`.
        calibration_images: images by which int8 is calibrated; None: the split train of a run.
        refiner: becomes part of the exported model.
        gallery: of the refiner: embeddings or an index of the model, or images.
        push_to_hub: name on the Hugging Face Hub under which the model and the exported one are uploaded; see
            :meth:`vicinal.Embedder.push_to_hub`.
        private: whether a new repository there is private.

    Raises:
        InputError: as :func:`vicinal.export.export_model`, or a source cannot be read, or is of another model; or the
            hub refuses the upload, which leaves the exported model.
    """
    if push_to_hub is not None:
        check_hub_name(push_to_hub)
    reader = replace(reader or EmbeddingReader(), model=source)
    model = load_model(source, reader.pooling, reader.allow_import or (), reader.weights)
    if push_to_hub is not None and settings.size not in (None, model.transform.size):
        raise InputError(
            f"size is {settings.size}, but the model that is uploaded takes images of {model.transform.size} px; "
            "leave out size or push_to_hub"
        )
    tables: dict[str, Any] = {
        "check": _table(reader, source, check, split, "val"),
        "calibration": None if settings.precision != "int8" else _table(reader, source, calibration_images, None),
    }
    if tables["check"] is not None:
        tables["check"] = some_classes(tables["check"], settings.max_check_images, settings.seed)
    vectors = None if gallery is None else _gallery(reader, gallery, model.fingerprint())
    if refiner is not None:
        refiner.check_model(model.fingerprint())
    from vicinal.export.exporter import export_model

    report = export_model(model, out, settings, **tables, refiner=refiner, gallery=vectors)
    if push_to_hub is not None:
        log(f"uploaded: {model.push_to_hub(push_to_hub, private, onnx=out)}")
    return report


def _table(
    reader: EmbeddingReader, source: str, given: str | None, split: str | None, default: str = "train"
) -> Table | None:
    """The images of a source that was given, or else those of a split of the run, if there are any."""
    if given is not None:
        table = reader.read_table(given, split)
    elif Source(source).kind == "run":
        table = reader.read_table(source, split or "all")
        if split is None and default not in table.splits:
            return None
        table = table if split else table.subset(default)
    elif split is not None:
        raise InputError(f"split {split} needs check images or a run, and {source} is no run; give check")
    else:
        return None
    if reader.on_error == "skip":
        from vicinal.data.batches.image_dataset import ImageDataset
        from vicinal.data.images.transforms import ImageTransform

        table = ImageDataset(table, ImageTransform(), on_error="skip").table
    return table


def some_classes(table: Table, max_images: int, seed: int) -> Table:
    """The images of random whole classes, as many as fit; random images if no class fits or there are no labels."""
    if len(table) <= max_images:
        return table
    random, fitting, left = np.random.default_rng(seed), [], max_images
    for label in random.permutation(len(table.classes)) if table.has("label") else ():
        if table.class_counts[label] <= left:
            fitting.append(label)
            left -= table.class_counts[label]
    if fitting:
        return table.take(np.flatnonzero(np.isin(table.labels, fitting)))
    return table.take(np.sort(random.permutation(len(table))[:max_images]))


def _gallery(reader: EmbeddingReader, gallery: str, fingerprint: str) -> Floats:
    is_stored = Source(gallery).is_stored
    embedded = (EmbeddingReader() if is_stored else reader).embed(gallery)
    check_same_model(fingerprint, embedded.fingerprint, "the refiner needs", "use embeddings of the exported model")
    return embedded.vectors
