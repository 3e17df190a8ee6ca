"""Embedding sources: a run, a file of embeddings, an index, or images and a model become embeddings and their table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from vicinal.data.benchmarks import BENCHMARKS
from vicinal.data.columns import COLUMN_FLAGS, named_columns
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.export.exported_embedder import ExportedEmbedder, engine_name
from vicinal.models.execution import usable_device
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.embedded_table import EmbeddedTable, map_rows
from vicinal.workflows.models import EmbeddingOptions, load_model
from vicinal.workflows.source import Source, columns_of_run, data_settings_of_run, selected_rows

if TYPE_CHECKING:
    from torch import Tensor

    from vicinal.data.batches.image_dataset import ImageDataset
    from vicinal.data.containers.listing import ListedImages
    from vicinal.models import Embedder

OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class EmbeddingReader(EmbeddingOptions):
    """Reads embedding sources.

    Args:
        query_gallery_only: whether to leave out rows that are neither query nor gallery, in tables with the columns
            `is_query` and `is_gallery`.
        folder_on_error: `on_error` for a folder of images, if that is None.
        default_split: the split whose rows are used where no split is named, if the table has it.
        measure: whether to measure the costs of the models, see :class:`~vicinal.evaluation.ModelCost`.
        remembered_columns: `path_column` and `label_column` that an index was made with; they are taken where none are
            given and a table has them.
        mapped: whether stored embeddings are mapped into memory, see :func:`~vicinal.data.load_embeddings`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from vicinal.data import save_embeddings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/v.parquet", np.eye(2), Table(pd.DataFrame({"label": ["cat", "dog"]})))
        ...     embedded = EmbeddingReader().embed(f"{folder}/v.parquet")
        >>> embedded.vectors.shape, embedded.table.classes
        ((2, 2), ['cat', 'dog'])
    """

    query_gallery_only: bool = False
    folder_on_error: OnError = "skip"
    default_split: str | None = None
    measure: bool = False
    remembered_columns: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False

    def embed(self, source: str, split: str | None = None) -> EmbeddedTable:
        """Return the embeddings of a source.

        Args:
            source: a run folder, a file of embeddings (.parquet, or .npy with its .table.csv), a folder of shards of
                embeddings, the folder of an index, or images: a file, a folder, a table or a benchmark.
            split: use only the rows of this split; "all" uses all rows, whatever `default_split` says.

        Raises:
            InputError: the source or the model cannot be read, or the split is empty.
        """
        given = self.source(source)
        if given.is_stored:
            return self._stored(given, split)
        if given.kind == "embedder":
            raise InputError(f"{source} is a model and holds no images: evaluate it with --images, else give --model")
        table, model = self.read_table(source, split), self._model_of(source)
        return self._embed(table, model, self._on_error(source), loaded_from=self.model or source)

    def source(self, name: str) -> Source:
        """A source of this name, read by the options."""
        columns = {flag: getattr(self, flag) for flag in COLUMN_FLAGS}
        return Source(name, self.root, **columns, labels=self.labels, remembered=self._columns_of_model)

    def read_table(self, source: str, split: str | None = None) -> Table:
        """Return the selected rows of the table of a source of images, which are files.

        Raises:
            InputError: as :meth:`embed`.
        """
        images = self.list_images(source, split)
        images.write(images.table.paths if images.table.has("path") else ())
        return images.table

    def list_images(self, source: str, split: str | None = None) -> ListedImages:
        """Return the selected rows of a source of images; images of a container are not files until they are written.

        Raises:
            InputError: as :meth:`embed`.
        """
        images = self.source(source).images
        table = images.table
        selected = table.take(self._rows(table, split, source, columns_of_run(source)))
        selected.other_files, selected.unlisted = table.other_files, table.unlisted
        return replace(images, table=selected)

    def embed_function(self, source: str) -> Callable[[Table], EmbeddedTable]:
        """Return the function that embeds rows of the table of a source, by the model of the options or the source."""
        return partial(self._embed, model=self._model_of(source), on_error=self._on_error(source))

    def batch_embedder(self, source: str, num_images: int = 0) -> BatchEmbedder:
        """Return the embedder of batches of a source's images, by the model of the options or the source.

        Args:
            source: the source.
            num_images: number of images to embed, by which the engine is chosen.

        Raises:
            InputError: the model cannot be read, or the options do not fit it.
        """
        model = self._model_of(source)
        self.postprocessing.check_model(model)
        return BatchEmbedder(model, self, num_images)

    def check_model(self, source: str) -> None:
        """Load the model that will embed a source, if there is one, and release it.

        Raises:
            InputError: it cannot be loaded, or the training costs of its run cannot be read, if they are asked for.
        """
        if not Source(source).has_images:
            return
        model = self._model_of(source)
        if self.measure:
            from vicinal.workflows.model_costs import model_cost

            model_cost(model, self.model or source, model.dim, images_per_second=None)

    def embed_table(self, table: Table) -> EmbeddedTable:
        """Return the embeddings of a table's images by the model of the options."""
        return self._embed(table, self.loaded_model, "raise")

    def embed_sources(self, sources: Sequence[str]) -> Iterator[EmbeddedTable]:
        """Yield the embeddings of several sources in order; consecutive single images are embedded together."""
        for is_single, group in itertools.groupby(sources, lambda source: Source(source).kind == "image"):
            if is_single:
                paths = list(group)
                self.source(paths[0]).check_labels()
                yield self._embed(Table(pd.DataFrame({"path": paths})), self._model_of(paths[0]), "raise")
            else:
                yield from map(self.embed, group)

    def _model_of(self, source: str) -> Embedder | ExportedEmbedder:
        if self.model is not None:
            return self.loaded_model
        if Source(source).kind != "run":
            raise InputError(f"{source} holds images; say which model embeds them with --model")
        return load_model(source, self.pooling, self.allow_import or (), self.weights)

    def _on_error(self, source: str) -> OnError:
        if self.on_error is not None:
            return self.on_error
        if Source(source).kind == "run":
            return "skip" if data_settings_of_run(RunFolder(Path(source))).get("on_error") == "skip" else "raise"
        return self.folder_on_error if Path(source).is_dir() and source not in BENCHMARKS else "raise"

    def _embed(
        self, table: Table, model: Embedder | ExportedEmbedder, on_error: OnError, loaded_from: str | None = None
    ) -> EmbeddedTable:
        """Embed the images of a table. The costs of the model are measured only if `loaded_from` is given."""
        from vicinal.data.batches.image_dataset import ImageDataset

        is_measured, on_error = self.measure and loaded_from is not None, self.on_error or on_error
        engine = self.with_engine(model, len(table))
        images = ImageDataset(table, self.transform_for(engine))
        vectors, seconds = self._vectors_of(images, engine, is_measured, on_error)
        embedded = self.postprocessing.apply_to(
            EmbeddedTable(
                vectors,
                images.table,
                model,
                self.image_steps,
                backbone=model.config["backbone"],
                num_left_out=len(images.skipped) + sum(table.other_files.values()),
                engine=engine_name(engine),
            ),
            self.mapped,
        )
        if loaded_from is None or seconds is None:
            return embedded
        from vicinal.workflows.model_costs import model_cost

        speed = len(images) / max(seconds, 1e-9)
        return replace(embedded, cost=model_cost(model, loaded_from, embedded.vectors.shape[1], speed))

    def _vectors_of(
        self, images: ImageDataset, model: Embedder | ExportedEmbedder, is_measured: bool, on_error: OnError
    ) -> tuple[Floats, float | None]:
        from vicinal.data.batches.image_dataset import UnreadableImageError
        from vicinal.models import embed_multi_scale

        embed: Callable[..., Floats] = model.embed
        if self.scales is not None and not isinstance(model, ExportedEmbedder):
            embed = partial(embed_multi_scale, model, scales=self.scales, max_size=self.max_size)
        self.postprocessing.check_model(model)
        if self.precision != self.used_precision != "32":
            log(f"precision = {self.used_precision}: embedding in bfloat16 on this GPU; --precision 32 uses float32")
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "precision": self.used_precision,
            "device": usable_device(self.device),
            "on_error": on_error,
        }
        try:
            if not is_measured:
                return embed(images, **options), None
            from vicinal.workflows.model_costs import timed

            return timed(embed, images, **options)
        except UnreadableImageError as error:
            raise InputError(f"{error}; --on_error skip leaves out such images") from None

    def _stored(self, source: Source, split: str | None) -> EmbeddedTable:
        """The selected rows of stored embeddings, after the steps of the options."""
        for option in ("model", "weights", "pooling", "scales"):
            if getattr(self, option) is not None:
                raise InputError(f"{source.name} already holds embeddings; leave out --{option}, or name the images")
        embedded, name = source.stored(self.mapped), self.labels or source.name
        columns: Mapping[str, str] = getattr(embedded.origin, "made_with", {})  # of an index
        rows = self._rows(embedded.table, split, name, columns)
        if len(rows) < len(embedded.table):
            vectors = map_rows(embedded.vectors, rows, name) if self.mapped else embedded.vectors[rows]
            embedded = replace(embedded, vectors=vectors, table=embedded.table.take(rows))
        embedded = self.postprocessing.apply_to(embedded, self.mapped)
        if not self.measure:
            return embedded
        from vicinal.evaluation.model_costs import ModelCost

        kind: Any = source.kind
        return replace(embedded, cost=ModelCost(kind, embedded.vectors.shape[1]))

    def _rows(self, table: Table, split: str | None, source: str, columns: Mapping[str, str]) -> Integers:
        """The selected rows; `columns` are the names that the source gives the columns of paths and labels."""
        if split is None and self.default_split in table.splits:
            split = self.default_split
        named = {} if self.where is None else {**columns, **self._columns_of_model, **named_columns(vars(self))}
        return selected_rows(table, source, split, self.query_gallery_only, self.where, named)

    @cached_property
    def _columns_of_model(self) -> dict[str, str]:
        """The names of columns that the run of the model, or the index, was made with."""
        return columns_of_run(self.model) | dict(self.remembered_columns)


@dataclass(frozen=True)
class BatchEmbedder:
    """Embeds batches of pixels by a model and the steps after it, as :class:`EmbeddingReader` embeds a table.

    The model is moved to its device with the first batch.

    Args:
        model: The model.
        reader: The options, and the steps after the model.
        num_images: Number of images to embed, by which the engine is chosen; None: many.

    Raises:
        InputError: The options do not fit the model.

    Example:
        >>> import torch
        >>> from vicinal.models import Embedder
        >>> from vicinal.workflows import EmbeddingReader
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32))
        >>> BatchEmbedder(model, EmbeddingReader())(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        (2, 8)
    """

    model: Embedder | ExportedEmbedder
    reader: EmbeddingReader
    num_images: int | None = 0

    def __post_init__(self) -> None:
        if self.reader.scales is not None and not isinstance(self.model, ExportedEmbedder):
            from vicinal.models.multi_scale import check_scales  # loads timm

            check_scales(self.model, self.reader.scales, self.reader.max_size)

    @cached_property
    def transform(self) -> ImageTransform:
        """The transform of the images."""
        return self.reader.transform_for(self.model)

    @property
    def batch_size(self) -> int:
        """The number of images of a batch; one if they are whole, since their sizes differ."""
        return self.reader.batch_size if self.transform.longest is None else 1

    @cached_property
    def device(self) -> str:
        """The device of the model, to which it is moved."""
        if isinstance(self.model, ExportedEmbedder):
            return self.model.device
        device = usable_device(self.reader.device)
        self.model.to(device)
        return device

    @cached_property
    def engine(self) -> Embedder | ExportedEmbedder:
        """The model that embeds the batches, or its export for another engine."""
        return self.reader.with_engine(self.model, self.num_images)

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may embed at once."""
        return self.reader.scales is None and self.engine.is_thread_safe

    def __call__(self, pixels: Tensor) -> Floats:
        """Embed pixels, uint8 [b, channels, height, width]: float32 [b, dim], or [0, 0] of an empty batch."""
        from vicinal.data.images.image_ops import Normalize  # loads torchvision

        if not len(pixels):
            return np.empty((0, 0), np.float32)
        pixels, engine = pixels.to(self.device, non_blocking=True), self.engine
        precision, scales = self.reader.used_precision, self.reader.scales
        if isinstance(engine, ExportedEmbedder):
            with engine.embedding_function(self.reader.precision) as embed_batch:
                vectors = embed_batch(pixels)
        elif scales is None:
            images = Normalize(self.transform)(pixels)
            vectors = engine.embed(images, len(pixels), precision=precision, progress=False)
        else:
            from vicinal.models.multi_scale import embed_multi_scale

            images = Normalize(self.transform)(pixels)
            vectors = embed_multi_scale(
                engine, images, scales, batch_size=len(pixels), precision=precision, progress=False
            )
        return self.reader.postprocessing.apply(vectors)


def embed_several(
    reader: EmbeddingReader,
    sources: Sequence[str],
    split: str | None = None,
    *,
    images: str | None = None,
    keep_models: bool = False,
) -> Iterator[tuple[str, EmbeddedTable]]:
    """Yield the name and the embeddings of several sources in order.

    All models are loaded once before the first image is read, so that one that cannot be loaded is reported at once.
    Each is released before the next is loaded.

    Args:
        reader: how sources are read.
        sources: the sources; with `images`, models that embed these.
        split: use only the images of this split.
        images: as a source of :meth:`EmbeddingReader.embed`.
        keep_models: whether the embeddings keep the models that made them, for their fingerprints.

    Raises:
        InputError: a model cannot be loaded, or as :meth:`EmbeddingReader.embed`.
    """
    if len(sources) > 1:
        for name in sources:
            _reader(reader, name, images).check_model(images or name)
    for name in sources:
        yield name, _embed(_reader(reader, name, images), name, images or name, split, keep_models)


def _embed(reader: EmbeddingReader, name: str, source: str, split: str | None, keep_model: bool) -> EmbeddedTable:
    """A function of its own, so that no variable of the generator holds the last model while the next is loaded."""
    embedded = reader.embed(source, split)
    return embedded if keep_model or isinstance(embedded.origin, str) else replace(embedded, origin=name)


def _reader(reader: EmbeddingReader, name: str, images: str | None) -> EmbeddingReader:
    """A reader of its own for each model, which does not outlive it."""
    return reader if images is None else replace(reader, model=name)
