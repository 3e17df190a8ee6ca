"""Looking for all possible problems of a set of images."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.analysis import Findings, ImageFacts, find_problems, image_facts
from vicinal.data.cleaning_decisions import common_folder
from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.settings import CleanSettings
from vicinal.workflows.source import Source

DEFAULT_MODEL = "timm/vit_small_patch14_dinov2.lvd142m"
MIN_IMAGES = 2
MIN_AGREEMENT = 0.6
"""The precision at 1 below which labels cannot be judged, unless very many of them are wrong."""


def find_problems_of_source(
    reader: EmbeddingReader, source: str, settings: CleanSettings | None = None, split: str | None = None
) -> Findings:
    """Read the image files of a source, embed the readable ones, and look for possible problems.

    Args:
        reader: reads the source. If it has no model and the source holds images, they are embedded by DINOv2 with a
            ViT-S/14, without training.
        source: a run folder, a file of embeddings, the folder of an index, or images.
        settings: the thresholds of findings.
        split: check the rows of this split only.

    Raises:
        InputError: the source or the model cannot be read, or fewer than two images can be.
    """
    findings = _find(reader, source, asdict(settings or CleanSettings()), split)
    if len(findings.label_errors):
        agreement = findings.neighbors.with_positives().same_class[:, 0].mean()
        if agreement < MIN_AGREEMENT:
            log(f"only {agreement:.0%} of the images have a nearest neighbor of their class: either very many labels "
                "are wrong, or the model does not separate the classes and most findings are false; try another "
                "--model")  # fmt: skip
    return findings


def _find(reader: EmbeddingReader, source: str, options: dict[str, Any], split: str | None) -> Findings:
    kind = Source(source).kind
    if kind in ("embeddings", "index"):
        embedded = reader.embed(source, split)
        if not embedded.table.has("path") and (split not in (None, "all") or reader.where is not None):
            log("no paths: rows are numbered within this selection; decisions apply only to a table of these rows")
        return find_problems(embedded.vectors, embedded.table, _facts(embedded.table), **options)
    if kind != "run" and reader.model is None:
        log(f"embedding with {DEFAULT_MODEL}, which was not trained on these images; --model selects another")
        reader = replace(reader, model=DEFAULT_MODEL)
    table = reader.read_table(source, split)
    reader.check_model(source)  # before all images are read
    facts = image_facts(table)
    rows = np.flatnonzero((facts.frame["error"] == "").to_numpy())
    if len(rows) < MIN_IMAGES:
        first = f"; {facts.broken['error'][0]}" if len(facts.broken) else ""
        raise InputError(f"{source}: {len(rows)} of {len(facts.frame)} images can be read; two are needed{first}")
    vectors = reader.embed_function(source)(table.take(rows)).vectors
    return find_problems(vectors, table, facts, embedded_rows=rows, **options)


def num_decisions(path: str | Path) -> int:
    """The number of lines with a decision in a .csv or .parquet file; 0 for a file without decisions."""
    import pandas as pd

    try:
        frame = read_csv(Path(path)) if str(path).lower().endswith(".csv") else pd.read_parquet(path)
    except (InputError, OSError, ValueError):
        return 0
    return int(frame["decision"].astype(bool).sum()) if "decision" in frame else 0


def images_folder(reader: EmbeddingReader, source: str, split: str | None = None) -> str | None:
    """The folder of all images of a source, including those that are not selected; None if all are selected.

    Paths below it distinguish images of the same name in different splits.
    """
    if split in (None, "all") and reader.where is None:
        return None
    whole = replace(reader, where=None, whitening=None)
    is_stored = Source(source).is_stored
    with warnings.catch_warnings():  # they were shown when the selected rows were read
        warnings.simplefilter("ignore")
        table = whole.embed(source, "all").table if is_stored else whole.read_table(source, "all")
    return common_folder(table.paths) if table.has("path") else None


def _facts(table: Table) -> ImageFacts | None:
    """Facts about the image files of embeddings; None if these do not exist."""
    if not table.has("path") or not any(map(os.path.isfile, table.paths)):
        log("no image files: pixels are not checked, and near duplicates are found by embeddings alone")
        return None
    return image_facts(table)
