"""Embedding sources: a run, a file of embeddings, an index, or images and a model become embeddings and their table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from vicinal.data.embeddings import load_embeddings, load_labels, load_vectors, read_fingerprint
from vicinal.data.loading import load_run_table, load_table
from vicinal.data.table import Table
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.embedding_options import EmbeddingOptions
from vicinal.workflows.models import check_not_refiner_run, load_model, usable_device
from vicinal.workflows.source_kind import source_kind

if TYPE_CHECKING:
    from vicinal.models import Embedder
    from vicinal.retrieval import Index


@dataclass(frozen=True)
class EmbeddedTable:
    """Embeddings, the table of their images, and where they come from.

    Args:
        vectors: float32 [n, d].
        table: n rows.
        origin: the model that made the vectors, or the index or the path of the file that they were read from.
        postprocessing: names of the steps after the model; different steps have different names.
    """

    vectors: Floats
    table: Table
    origin: Embedder | Index | str
    postprocessing: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model, if it is known, and the steps after it.

        It is computed when it is asked for, because it reads all weights of a model.
        """
        model = read_fingerprint(self.origin) if isinstance(self.origin, str) else self.origin.fingerprint()
        return None if model is None else "+".join([model, *self.postprocessing])


@dataclass(frozen=True)
class EmbeddingReader(EmbeddingOptions):
    """Reads embedding sources.

    Args:
        query_gallery_only: whether to leave out rows that are neither query nor gallery, in tables with the columns
            `is_query` and `is_gallery`.

    Example:
        >>> import tempfile
        >>> from vicinal.data import save_embeddings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/v.parquet", np.eye(2), Table(pd.DataFrame({"label": ["cat", "dog"]})))
        ...     embedded = EmbeddingReader().embed(f"{folder}/v.parquet")
        >>> embedded.vectors.shape, embedded.table.classes
        ((2, 2), ['cat', 'dog'])
    """

    query_gallery_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._pca_whitening  # an unreadable file is reported before anything is embedded

    def embed(self, source: str, split: str | None = None) -> EmbeddedTable:
        """Return the embeddings of a source.

        Args:
            source: a run folder, a file of embeddings (.parquet, or .npy with its .table.csv), the folder of an index,
                or images: a file, a folder, a table or a benchmark.
            split: use only the rows of this split.

        Raises:
            InputError: the source or the model cannot be read, or the split is empty.
        """
        kind = source_kind(source)
        if kind in ("embeddings", "index"):
            self._refuse_image_options(source)
            return self._select(_load_stored(source, is_index=kind == "index"), split, source)
        if kind == "embedder":
            raise InputError(f"{source} is a model and holds no images: evaluate it with --images, else give --model")
        table = load_images(source, self.root)
        model = self._model_of(source)
        return self._embed(table.take(self._rows(table, split, source)), model)

    def embed_with_labels(self, embeddings: str, labels: str, split: str | None = None) -> EmbeddedTable:
        """Return embeddings from one file with labels from another.

        Args:
            embeddings: a .npy or .parquet file of embeddings; its own table is not used.
            labels: a .csv or .parquet table with a column `label` and any others, or a .npy file of labels: one row per
                embedding.
            split: use only the rows of this split.

        Raises:
            InputError: one of the files cannot be read, they have different numbers of rows, or the split is empty.
        """
        self._refuse_image_options(embeddings)
        vectors, table = load_vectors(embeddings), load_labels(labels)
        if len(table) != len(vectors):
            raise InputError(
                f"{labels} has {len(table)} rows, {embeddings} {len(vectors)} embeddings; there must be one row each"
            )
        return self._select(EmbeddedTable(vectors, table, embeddings), split, labels)

    def embed_table(self, table: Table) -> EmbeddedTable:
        """Return the embeddings of a table's images by the model of the options."""
        return self._embed(table, self._model)

    def embed_sources(self, sources: Sequence[str]) -> Iterator[EmbeddedTable]:
        """Yield the embeddings of several sources in order; consecutive single images are embedded together."""
        for is_single, group in itertools.groupby(sources, lambda source: source_kind(source) == "image"):
            if is_single:
                paths = list(group)
                yield self._embed(Table(pd.DataFrame({"path": paths})), self._model_of(paths[0]))
            else:
                yield from map(self.embed, group)

    def _model_of(self, source: str) -> Embedder:
        """Return the model of the options, or else that of the source."""
        if self.model is not None:
            return self._model
        if source_kind(source) != "run":
            raise InputError(f"{source} holds images; say which model embeds them with --model")
        return load_model(source)

    @cached_property
    def _model(self) -> Embedder:
        return load_model(str(self.model))

    @cached_property
    def _pca_whitening(self) -> PCAWhitening | None:
        return None if self.whitening is None else PCAWhitening.load(self.whitening)

    def _embed(self, table: Table, model: Embedder) -> EmbeddedTable:
        from vicinal.data import ImageDataset
        from vicinal.models import embed_multi_scale

        images = ImageDataset(table, model.transform, on_error=self.on_error)
        embed: Callable[..., Floats] = model.embed
        steps: tuple[str, ...] = ()
        if self.scales is not None:
            embed = partial(embed_multi_scale, model, scales=self.scales, max_size=self.max_size)
            steps = (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)
        vectors = embed(
            images,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            precision=self.precision,
            device=usable_device(self.device),
        )
        return self._whiten(EmbeddedTable(vectors, images.table, model, steps))

    def _refuse_image_options(self, source: str) -> None:
        """Refuse options about images where the source holds embeddings already."""
        for option, value in (("--model", self.model), ("--scales", self.scales)):
            if value is not None:
                raise InputError(f"{source} holds embeddings already; leave out {option}, or name the images")

    def _select(self, embedded: EmbeddedTable, split: str | None, source: str) -> EmbeddedTable:
        """Return the selected rows, whitened."""
        rows = self._rows(embedded.table, split, source)
        if len(rows) < len(embedded.table):
            embedded = replace(embedded, vectors=embedded.vectors[rows], table=embedded.table.take(rows))
        return self._whiten(embedded)

    def _rows(self, table: Table, split: str | None, source: str) -> Integers:
        """Return the selected rows: those of the split, and with `query_gallery_only` those of queries and gallery."""
        is_selected = np.ones(len(table), dtype=bool)
        if split is not None:
            splits = table.splits if table.has("split") else []
            if split not in splits:
                raise InputError(
                    f"{source} has no rows in the split {split}; its splits: {', '.join(splits) or 'none'}"
                )
            is_selected = (table.frame["split"] == split).to_numpy(dtype=bool)
        if self.query_gallery_only and table.has("is_query") and table.has("is_gallery"):
            is_selected = is_selected & (table.frame["is_query"] | table.frame["is_gallery"]).to_numpy(dtype=bool)
        return np.flatnonzero(is_selected)

    def _whiten(self, embedded: EmbeddedTable) -> EmbeddedTable:
        whitening = self._pca_whitening
        if whitening is None:
            return embedded
        steps = (*embedded.postprocessing, whitening.fingerprint())
        return replace(embedded, vectors=whitening.apply(embedded.vectors), postprocessing=steps)


def _load_stored(source: str, is_index: bool) -> EmbeddedTable:
    if not is_index:
        return EmbeddedTable(*load_embeddings(source), source)
    from vicinal.retrieval import Index

    index = Index.load(source)
    return EmbeddedTable(index.vectors(), Table(index.metadata.frame), index)


def load_images(source: str, root: str | None = None) -> Table:
    """Return the table of a run, an image file, a folder, a table file or a benchmark.

    Raises:
        InputError: it cannot be read.
    """
    check_not_refiner_run(source)
    kind = source_kind(source)
    if kind == "run":
        return load_run_table(RunFolder(Path(source)).table)
    if kind == "image":
        return Table(pd.DataFrame({"path": [source]}))
    return load_table(source, root=root, label_column=None)
