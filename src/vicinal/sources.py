"""Where embeddings and their table come from: a run, a file of embeddings, an index, or images and a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet
import torch

from vicinal.data import ImageDataset, Table, fingerprint_of, is_image_file, load_embeddings, load_labels, load_vectors
from vicinal.errors import InputError
from vicinal.models import ContextRefiner, Embedder, multi_scale
from vicinal.models.model_folder import CONFIG
from vicinal.models.model_format import EMBEDDER
from vicinal.retrieval import Index, PCAWhitening
from vicinal.retrieval.storage import FORMAT as INDEX
from vicinal.training import RunFolder


@dataclass(frozen=True)
class Embedded:
    """Embeddings and what is known of them.

    Args:
        vectors: float32 [n, d].
        table: n rows.
        source: what made the vectors, or what they come from: the index or the file.
        after: what was done beyond the model, each a short name that no other way of doing it has.
    """

    vectors: npt.NDArray[np.float32]
    table: Table
    source: Embedder | Index | str
    after: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str | None:
        """Of the model, if it is known, and of what was done after it.

        It reads all of a model's weights, so only those who compare models ask.
        """
        made_by = fingerprint_of(self.source) if isinstance(self.source, str) else self.source.fingerprint()
        return None if made_by is None else "+".join([made_by, *self.after])

    def whitened(self, whitening: PCAWhitening) -> Embedded:
        """The same after whitening."""
        return replace(self, vectors=whitening.apply(self.vectors), after=(*self.after, whitening.fingerprint()))


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
        scales: sizes at which each image is embedded, and the mean taken; None: its own only.
        longest: with scales, the whole image is embedded, made smaller to so many pixels; None: the model's own square.
        whitening: a file of PCA whitening that all embeddings go through.
        only_evaluated: leave out rows that are neither query nor gallery, of tables that say which are.
    """

    model: str | None = None
    root: str | None = None
    batch: int = 64
    workers: int = 0
    precision: Literal["32", "bf16", "16"] = "32"
    device: str | None = None
    on_error: Literal["raise", "skip"] = "raise"
    scales: tuple[float, ...] | None = None
    longest: int | None = None
    whitening: str | None = None
    only_evaluated: bool = False

    def __post_init__(self) -> None:
        if self.longest is not None and self.scales is None:
            raise InputError("longest is about embedding at several scales; give --scales too, such as --scales 1")
        _ = self._known_whitening  # a file that cannot be read is told of before anything is embedded

    def embed(self, source: str, split: str | None = None) -> Embedded:
        """The embeddings of a source.

        Args:
            source: a run folder, a file of embeddings (.parquet, or .npy with its .table.csv), the folder of an index,
                or images: a file, a folder, a table or a benchmark.
            split: use the rows of this split only.

        Raises:
            InputError: the source or the model cannot be read, or nothing is in the split.
        """
        if is_embeddings(source) or _format(source) == INDEX:
            self._refuse_images(source)
            return self._finished(self._part(_stored(source), split, source))
        if _format(source) == EMBEDDER.name:
            raise InputError(f"{source} is a model and holds no images: evaluate it with --images, else give --model")
        table = load_images(source, self.root)
        model = self._model_of(source)
        return self._embed(table.take(self._rows_of(table, split, source)), model)

    def label(self, embeddings: str, labels: str, split: str | None = None) -> Embedded:
        """Embeddings from one file, and their labels from another.

        Args:
            embeddings: a .npy or .parquet file of embeddings; a table that it has does not count.
            labels: a .csv or .parquet table with a column `label` and any others, or a .npy file of labels: one row an
                embedding.
            split: use the rows of this split only.

        Raises:
            InputError: one of the files cannot be read, they do not have the same number of rows, or a split is empty.
        """
        self._refuse_images(embeddings)
        vectors, table = load_vectors(embeddings), load_labels(labels)
        if len(table) != len(vectors):
            raise InputError(
                f"{labels} has {len(table)} rows, {embeddings} {len(vectors)} embeddings; there must be one row each"
            )
        return self._finished(self._part(Embedded(vectors, table, embeddings), split, labels))

    def embed_table(self, table: Table) -> Embedded:
        """The embeddings of a table's images by the model that was given."""
        return self._embed(table, self._given_model)

    def embed_each(self, sources: Sequence[str]) -> Iterator[Embedded]:
        """The embeddings of several sources in turn; single images that follow each other are taken together."""
        for single, group in itertools.groupby(sources, is_image):
            if single:
                paths = list(group)
                yield self._embed(Table(pd.DataFrame({"path": paths})), self._model_of(paths[0]))
            else:
                yield from map(self.embed, group)

    def _model_of(self, source: str) -> Embedder:
        if self.model is not None:
            return self._given_model
        if _run(source) is None:
            raise InputError(f"{source} holds images; say which model embeds them with --model")
        return load_model(source)

    @cached_property
    def _given_model(self) -> Embedder:
        return load_model(str(self.model))

    def _embed(self, table: Table, model: Embedder) -> Embedded:
        images = ImageDataset(table, model.transform, on_error=self.on_error)
        how = (self.batch, self.workers, self.precision, usable_device(self.device))
        if self.scales is None:
            return self._finished(Embedded(model.embed(images, *how), images.table, model))
        vectors = multi_scale(model, images, self.scales, self.longest, *how)
        sizes = f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, longest {self.longest}"
        return self._finished(Embedded(vectors, images.table, model, (sizes,)))

    def _refuse_images(self, source: str) -> None:
        """Refuse what is about images where there are embeddings already."""
        for option, given in (("--model", self.model), ("--scales", self.scales)):
            if given is not None:
                raise InputError(f"{source} holds embeddings already; leave out {option}, or name the images")

    def _part(self, embedded: Embedded, split: str | None, source: str) -> Embedded:
        rows = self._rows_of(embedded.table, split, source)
        if len(rows) == len(embedded.table):
            return embedded
        return replace(embedded, vectors=embedded.vectors[rows], table=embedded.table.take(rows))

    def _rows_of(self, table: Table, split: str | None, source: str) -> npt.NDArray[np.intp]:
        rows = _rows_of(table, split, source)
        if self.only_evaluated and table.has("is_query") and table.has("is_gallery"):
            has_side = (table.frame["is_query"] | table.frame["is_gallery"]).to_numpy(dtype=bool)
            rows = rows[has_side[rows]]
        return rows

    def _finished(self, embedded: Embedded) -> Embedded:
        return embedded if self._known_whitening is None else embedded.whitened(self._known_whitening)

    @cached_property
    def _known_whitening(self) -> PCAWhitening | None:
        return None if self.whitening is None else PCAWhitening.load(self.whitening)


def usable_device(name: str | None) -> str:
    """The device, if this machine has it; None is a GPU where there is one, else the CPU.

    Raises:
        InputError: this machine has no such device.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return name


def load_model(path: str) -> Embedder:
    """Load a model folder, the model of a run folder, or a model of the Hugging Face Hub.

    Raises:
        InputError: there is no such model, or it is damaged.
    """
    run = _run(path)
    if run is None:
        return Embedder.from_pretrained(path)
    _refuse_refiner(run)
    if not run.model.is_dir():
        raise InputError(f"{path} has no finished model; continue the run with: vicinal train --out {path} --resume")
    return Embedder.from_pretrained(run.model)


def load_refiner(path: str) -> ContextRefiner:
    """Load a context refiner's model folder, that of the run folder it was trained in, or one of the Hugging Face Hub.

    Raises:
        InputError: there is no such refiner, it is damaged, or it is another kind of model.
    """
    run = RunFolder(Path(path))
    if run.model.is_dir():
        return ContextRefiner.from_pretrained(run.model)
    if run.recipe.is_file():
        go_on = f"vicinal refine --out {path} --resume"
        raise InputError(f"{path} has no finished refiner: the run did not help, or goes on with: {go_on}")
    return ContextRefiner.from_pretrained(path)


def load_images(source: str, root: str | None = None) -> Table:
    """The table of a run, one image, a folder, a table file or a benchmark.

    Raises:
        InputError: it cannot be read.
    """
    run = _run(source)
    if run is not None:
        _refuse_refiner(run)
        return Table.from_parquet(run.table)
    if is_image(source):
        return Table(pd.DataFrame({"path": [source]}))
    return Table.load(source, root=root, label_column=None)


def is_run(path: str) -> bool:
    """Whether the path is the folder of a run."""
    return _run(path) is not None


def is_image(path: str) -> bool:
    """Whether the path is a single image."""
    return is_image_file(path) and Path(path).is_file()


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


def _stored(source: str) -> Embedded:
    if is_embeddings(source):
        return Embedded(*load_embeddings(source), source)
    index = Index.load(source)
    return Embedded(index.vectors(), Table(index.items), index)


def _format(folder: str) -> object:
    """What a folder of ours says it is; None for any other."""
    try:
        config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.get("format") if isinstance(config, dict) else None


def _run(path: str) -> RunFolder | None:
    run = RunFolder(Path(path))
    return run if run.recipe.is_file() else None


def _refuse_refiner(run: RunFolder) -> None:
    if run.embeddings.is_file():
        raise InputError(f"{run.path} is the run of a refiner; give it with --refiner")


def _rows_of(table: Table, split: str | None, source: str) -> npt.NDArray[np.intp]:
    if split is None:
        return np.arange(len(table))
    splits = table.splits if table.has("split") else []
    if split not in splits:
        raise InputError(f"{source} has no rows in the split {split}; its splits: {', '.join(splits) or 'none'}")
    return np.flatnonzero((table.frame["split"] == split).to_numpy())
