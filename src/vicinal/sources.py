"""Where embeddings and their table come from: a run, a file of embeddings, or images and a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet
import torch

from vicinal.data import ImageDataset, Table, is_image_file, load_embeddings
from vicinal.errors import InputError
from vicinal.models import Embedder
from vicinal.training import RunFolder


class Embedded(NamedTuple):
    """Embeddings and what is known of them.

    Attributes:
        vectors: float32 [n, d].
        table: n rows.
        fingerprint: of the model that made the vectors; None when they come from a file.
    """

    vectors: npt.NDArray[np.float32]
    table: Table
    fingerprint: str | None


@dataclass(frozen=True)
class Reading:
    """How images become embeddings.

    Args:
        model: a model folder, a run folder, or the name of a model on the Hugging Face Hub; None: the source's own.
        root: folder that a table's paths start from, or that holds a benchmark.
        batch: images embedded at a time.
        workers: processes that read images.
        precision: 32, bf16 or 16.
        device: such as cpu or cuda; None: a GPU where there is one.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out.
    """

    model: str | None = None
    root: str | None = None
    batch: int = 64
    workers: int = 0
    precision: Literal["32", "bf16", "16"] = "32"
    device: str | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def embed(self, source: str, split: str | None = None) -> Embedded:
        """The embeddings of a source.

        Args:
            source: a run folder, a file of embeddings (.parquet, or .npy with its .csv), or images: a file, a folder,
                a table or a benchmark.
            split: use the rows of this split only.

        Raises:
            InputError: the source or the model cannot be read, or nothing is in the split.
        """
        if is_embeddings(source):
            vectors, table = load_embeddings(source)
            rows = _rows_of(table, split, source)
            return Embedded(vectors[rows], table.take(rows), None)
        table = load_images(source, self.root)
        model = self.model or (source if _run(source) else None)
        if model is None:
            raise InputError(f"{source} holds images; say which model embeds them with --model")
        return self._embed(table.take(_rows_of(table, split, source)), load_model(model))

    def embed_queries(self, sources: Sequence[str]) -> Embedded:
        """The embeddings of several images, folders of images or tables together, or of one file of embeddings."""
        if len(sources) == 1:
            return self.embed(sources[0])
        for source in sources:
            if is_embeddings(source):
                raise InputError(f"{source} holds embeddings, which are searched for alone; name it without others")
        if self.model is None:
            raise InputError("the queries are images; say which model embeds them with --model")
        frames = [load_images(source, self.root).frame for source in sources]
        return self._embed(Table(pd.concat(frames, ignore_index=True, join="inner")), load_model(self.model))

    def _embed(self, table: Table, model: Embedder) -> Embedded:
        images = ImageDataset(table, model.transform, on_error=self.on_error)
        device = self.device or default_device()
        vectors = model.embed(images, self.batch, self.workers, self.precision, device)
        return Embedded(vectors, images.table, model.fingerprint())


def default_device() -> str:
    """A GPU where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(path: str) -> Embedder:
    """Load a model folder, the model of a run folder, or a model of the Hugging Face Hub.

    Raises:
        InputError: there is no such model, or it is damaged.
    """
    run = _run(path)
    if run is None:
        return Embedder.from_pretrained(path)
    if not run.model.is_dir():
        raise InputError(f"{path} has no finished model; continue the run with: vicinal train --out {path} --resume")
    return Embedder.from_pretrained(run.model)


def load_images(source: str, root: str | None = None) -> Table:
    """The table of a run, one image, a folder, a table file or a benchmark.

    Raises:
        InputError: it cannot be read.
    """
    run = _run(source)
    if run is not None:
        return Table.from_parquet(run.table)
    if is_image_file(source) and Path(source).is_file():
        return Table(pd.DataFrame({"path": [source]}))
    return Table.load(source, root=root, label_column=None)


def is_embeddings(path: str) -> bool:
    """Whether the path is a file of embeddings rather than of images or a table."""
    if path.endswith(".npy"):
        return True
    if not path.endswith(".parquet") or not Path(path).is_file():
        return False
    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except (OSError, ValueError):
        return False  # whoever reads it as a table says what is wrong with it


def _run(path: str) -> RunFolder | None:
    run = RunFolder(Path(path))
    return run if run.recipe.is_file() else None


def _rows_of(table: Table, split: str | None, source: str) -> npt.NDArray[np.intp]:
    if split is None:
        return np.arange(len(table))
    splits = table.splits if table.has("split") else []
    if split not in splits:
        raise InputError(f"{source} has no rows in the split {split}; its splits: {', '.join(splits) or 'none'}")
    return np.flatnonzero((table.frame["split"] == split).to_numpy())
