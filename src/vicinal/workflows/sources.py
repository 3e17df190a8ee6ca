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
from vicinal.data.checks import row_blocks
from vicinal.data.columns import COLUMN_FLAGS, column_aliases, named_columns
from vicinal.data.conditions import matching_rows
from vicinal.data.embeddings import load_labels, load_vectors
from vicinal.data.table import Table
from vicinal.export.exported_embedder import ExportedEmbedder, is_exported, open_exported
from vicinal.models.precision import UsedPrecision, used_precision
from vicinal.models.shortened import check_dim, shortened, trained_dims
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.utils.temporary_maps import temporary_map
from vicinal.workflows.columns import choose_column, columns_of_run, data_settings_of_run
from vicinal.workflows.embedded_table import EmbeddedTable, load_stored, map_rows, with_cost
from vicinal.workflows.embedding_options import EmbeddingOptions
from vicinal.workflows.image_tables import list_images, load_images
from vicinal.workflows.models import load_model, usable_device
from vicinal.workflows.source_kind import source_kind

if TYPE_CHECKING:
    from vicinal.data.containers.listing import ListedImages
    from vicinal.models import Embedder
    from vicinal.workflows.batch_embedder import BatchEmbedder

OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class EmbeddingReader(EmbeddingOptions):
    """Reads embedding sources.

    Args:
        query_gallery_only: whether to leave out rows that are neither query nor gallery, in tables with the columns
            `is_query` and `is_gallery`.
        folder_on_error: `on_error` for a folder of images, if that is None.
        default_split: the split whose rows are used where no split is named, if the table has it.
        measure: whether to measure what the models cost, see :class:`~vicinal.evaluation.ModelCost`.
        remembered_columns: `path_column` and `label_column` that an index was made with; they are taken where none are
            given and a table has them.
        mapped: whether stored embeddings are mapped into memory, see :func:`~vicinal.data.load_embeddings`.

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
    folder_on_error: OnError = "skip"
    default_split: str | None = None
    measure: bool = False
    remembered_columns: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._pca_whitening  # an unreadable file is reported before anything is embedded

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model of the options and the steps after it, before anything is embedded; None without one."""
        steps = [*self._scale_steps, *self._whitening_steps, *self._dim_steps]
        return None if self.model is None else "+".join([self._model.fingerprint(), *steps])

    def embed(self, source: str, split: str | None = None) -> EmbeddedTable:
        """Return the embeddings of a source.

        Args:
            source: a run folder, a file of embeddings (.parquet, or .npy with its .table.csv), a folder of shards of
                embeddings, the folder of an index, or images: a file, a folder, a table or a benchmark.
            split: use only the rows of this split; "all" uses all rows, whatever `default_split` says.

        Raises:
            InputError: the source or the model cannot be read, or the split is empty.
        """
        kind = source_kind(source)
        if kind in ("embeddings", "index"):
            self._refuse_image_options(source)
            stored, columns = load_stored(source, is_index=kind == "index", mapped=self.mapped)
            selected = self._select(stored, split, source, columns)
            return with_cost(selected, kind) if self.measure else selected
        if kind == "embedder":
            raise InputError(f"{source} is a model and holds no images: evaluate it with --images, else give --model")
        table, model = self.read_table(source, split), self._model_of(source)
        return self._embed(table, model, self._on_error(source), loaded_from=self.model or source)

    def read_table(self, source: str, split: str | None = None) -> Table:
        """Return the selected rows of the table of a source of images, by the columns of the options.

        Raises:
            InputError: as :meth:`embed`.
        """
        return self._selected(load_images(source, self.root, **self._columns(source)), source, split)

    def list_images(self, source: str, split: str | None = None) -> ListedImages:
        """Return the table of :meth:`read_table`; images of a container are no files before they are written.

        Raises:
            InputError: as :meth:`embed`.
        """
        listed = list_images(source, self.root, **self._columns(source))
        return replace(listed, table=self._selected(listed.table, source, split))

    def _columns(self, source: str) -> dict[str, str | None]:
        """The columns of paths and labels of a source of images."""
        remembered = self._columns_of_model
        return {flag: choose_column(source, flag, getattr(self, flag), remembered) for flag in COLUMN_FLAGS}

    def _selected(self, table: Table, source: str, split: str | None) -> Table:
        """The selected rows of the table of a source of images."""
        selected = table.take(self._rows(table, split, source, columns_of_run(source)))
        selected.other_files = table.other_files
        return selected

    def embed_function(self, source: str) -> Callable[[Table], EmbeddedTable]:
        """Return the function that embeds rows of the table of a source, by the model of the options or the source."""
        return partial(self._embed, model=self._model_of(source), on_error=self._on_error(source))

    def batch_embedder(self, source: str) -> BatchEmbedder:
        """Return what embeds batches of the images of a source, by the model of the options or the source.

        Raises:
            InputError: the model cannot be read, or the options do not fit it.
        """
        from vicinal.workflows.batch_embedder import BatchEmbedder

        model = self._model_of(source)
        self._check_dim(model)
        return BatchEmbedder(model, self)

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
        vectors, table = load_vectors(embeddings, self.mapped), load_labels(labels)
        if len(table) != len(vectors):
            raise InputError(
                f"{labels} has {len(table)} rows, {embeddings} {len(vectors)} embeddings; there must be one row each"
            )
        return self._select(EmbeddedTable(vectors, table, embeddings), split, labels)

    def check_model(self, source: str) -> None:
        """Load the model that will embed a source, if there is one, and let it go.

        Raises:
            InputError: it cannot be loaded, or what its run says of the training cannot be read, if that is asked for.
        """
        if source_kind(source) in ("embeddings", "index", "embedder"):
            return
        model = self._model_of(source)
        if self.measure:
            from vicinal.workflows.model_costs import model_cost

            model_cost(model, self.model or source, model.dim, images_per_second=None)

    def embed_table(self, table: Table) -> EmbeddedTable:
        """Return the embeddings of a table's images by the model of the options."""
        return self._embed(table, self._model, "raise")

    def embed_sources(self, sources: Sequence[str]) -> Iterator[EmbeddedTable]:
        """Yield the embeddings of several sources in order; consecutive single images are embedded together."""
        for is_single, group in itertools.groupby(sources, lambda source: source_kind(source) == "image"):
            if is_single:
                paths = list(group)
                yield self._embed(Table(pd.DataFrame({"path": paths})), self._model_of(paths[0]), "raise")
            else:
                yield from map(self.embed, group)

    def _model_of(self, source: str) -> Embedder | ExportedEmbedder:
        """Return the model of the options, or else that of the source."""
        if self.model is not None:
            return self._model
        if source_kind(source) != "run":
            raise InputError(f"{source} holds images; say which model embeds them with --model")
        return load_model(source, self.pooling, self.allow_import or ())

    @cached_property
    def _model(self) -> Embedder | ExportedEmbedder:
        if not is_exported(str(self.model)):
            return load_model(str(self.model), self.pooling, self.allow_import or ())
        for option, value in (("--pooling", self.pooling), ("--scales", self.scales), ("--device", self.device)):
            if value is not None:
                raise InputError(f"{self.model} is an exported model, which has its own; leave out {option}")
        return ExportedEmbedder(open_exported(str(self.model)))

    @cached_property
    def _pca_whitening(self) -> PCAWhitening | None:
        return None if self.whitening is None else PCAWhitening.load(self.whitening)

    @property
    def loaded_model(self) -> Embedder | ExportedEmbedder:
        """The model of the options."""
        return self._model

    @property
    def loaded_whitening(self) -> PCAWhitening | None:
        """The whitening of the options, if there is one."""
        return self._pca_whitening

    @property
    def used_precision(self) -> UsedPrecision:
        """The precision of the options, or what `auto` stands for; 32 for an exported model, which has its own."""
        if self.precision == "auto" and self.model is not None and is_exported(self.model):
            return "32"
        return used_precision(self.precision, usable_device(self.device))

    def _on_error(self, source: str) -> OnError:
        """What to do with unreadable images of a source."""
        if self.on_error is not None:
            return self.on_error
        if source_kind(source) == "run":
            return _on_error_of_run(RunFolder(Path(source)))
        return self.folder_on_error if Path(source).is_dir() and source not in BENCHMARKS else "raise"

    def _embed(
        self,
        table: Table,
        model: Embedder | ExportedEmbedder,
        on_error: OnError,
        loaded_from: str | None = None,
    ) -> EmbeddedTable:
        """Embed the images of a table. What the model costs is measured only if `loaded_from` says where it is from."""
        from vicinal.data.images import ImageDataset, UnreadableImageError
        from vicinal.models import embed_multi_scale

        images = ImageDataset(table, model.transform, on_error=self.on_error or on_error)
        embed: Callable[..., Floats] = model.embed
        if self.scales is not None and not isinstance(model, ExportedEmbedder):
            embed = partial(embed_multi_scale, model, scales=self.scales, max_size=self.max_size)
        self._check_dim(model)
        if self.precision != self.used_precision != "32":
            log(f"precision = {self.used_precision}: embedding in bfloat16 on this GPU; --precision 32 takes float32")
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "precision": self.used_precision,
            "device": usable_device(self.device),
        }
        as_table = partial(
            EmbeddedTable,
            table=images.table,
            origin=model,
            postprocessing=self._scale_steps,
            backbone=model.config["backbone"],
            num_left_out=len(images.skipped) + sum(table.other_files.values()),
        )
        try:
            if not self.measure or loaded_from is None:
                return self._whiten(as_table(embed(images, **options)))
            from vicinal.workflows.model_costs import model_cost, timed

            vectors, seconds = timed(embed, images, **options)
        except UnreadableImageError as error:
            raise InputError(f"{error}; --on_error skip leaves out such images") from None
        embedded = self._whiten(as_table(vectors))
        speed = len(images) / max(seconds, 1e-9)
        return replace(embedded, cost=model_cost(model, loaded_from, embedded.vectors.shape[1], speed))

    @property
    def _scale_steps(self) -> tuple[str, ...]:
        """The name of the step of embedding at several scales, if there is one."""
        if self.scales is None:
            return ()
        return (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)

    @cached_property
    def _known_models(self) -> set[int]:
        """The models whose dimensions were compared with `dim`."""
        return set()

    def _refuse_image_options(self, source: str) -> None:
        """Refuse options about images where the source holds embeddings already."""
        for option, value in (("--model", self.model), ("--pooling", self.pooling), ("--scales", self.scales)):
            if value is not None:
                raise InputError(f"{source} holds embeddings already; leave out {option}, or name the images")

    def _select(
        self, embedded: EmbeddedTable, split: str | None, source: str, columns: Mapping[str, str] | None = None
    ) -> EmbeddedTable:
        """Return the selected rows, whitened."""
        rows = self._rows(embedded.table, split, source, columns or {})
        if len(rows) < len(embedded.table):
            vectors = map_rows(embedded.vectors, rows, source) if self.mapped else embedded.vectors[rows]
            embedded = replace(embedded, vectors=vectors, table=embedded.table.take(rows))
        return self._whiten(embedded)

    def _rows(self, table: Table, split: str | None, source: str, columns: Mapping[str, str]) -> Integers:
        """Return the selected rows: those of the split, and with `query_gallery_only` those of queries and gallery.

        Conditions know the columns of paths and labels by the names that source, model or options give them.
        """
        is_selected = np.ones(len(table), dtype=bool)
        if split is None and self.default_split in table.splits:
            split = self.default_split
        if split not in (None, "all"):
            splits = table.splits if table.has("split") else []
            if split not in splits:
                raise InputError(
                    f"{source} has no rows in the split {split}; its splits: {', '.join(splits) or 'none'}"
                )
            is_selected = (table.frame["split"] == split).to_numpy(dtype=bool)
        if self.query_gallery_only and table.has("is_query") and table.has("is_gallery"):
            is_selected = is_selected & (table.frame["is_query"] | table.frame["is_gallery"]).to_numpy(dtype=bool)
        if self.where is not None:
            named = {**columns, **self._columns_of_model, **named_columns(vars(self))}
            is_selected = is_selected & self._fulfill_where(table, source, column_aliases(named))
            if not is_selected.any():
                raise InputError(f"{source}: no row fulfills {self.where}" + (f" in the split {split}" * bool(split)))
        return np.flatnonzero(is_selected)

    def _fulfill_where(self, table: Table, source: str, aliases: Mapping[str, str]) -> Booleans:
        try:
            return matching_rows(table.frame, str(self.where), aliases)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None

    @cached_property
    def _columns_of_model(self) -> dict[str, str]:
        """The names of columns that the run of the model, or the index, was made with."""
        return columns_of_run(self.model) | dict(self.remembered_columns)

    def postprocess(self, vectors: Floats) -> Floats:
        """Apply what comes after the model: whitening, and the cut to the first dimensions."""
        if self._pca_whitening is not None:
            vectors = self._pca_whitening.apply(vectors)
        return vectors if self.dim is None else shortened(vectors, self.dim)

    def _whiten(self, embedded: EmbeddedTable) -> EmbeddedTable:
        """Apply what comes after the model, and name these steps."""
        steps = (*embedded.postprocessing, *self._whitening_steps, *self._dim_steps)
        if len(steps) == len(embedded.postprocessing):
            return embedded
        if not self.mapped:
            return replace(embedded, vectors=self.postprocess(embedded.vectors), postprocessing=steps)
        dim = self.dim if self._pca_whitening is None or self.dim is not None else self._pca_whitening.dim
        blocks = map(self.postprocess, row_blocks(embedded.vectors))
        mapped = temporary_map(blocks, (len(embedded.vectors), int(dim or 0)), "embeddings")
        return replace(embedded, vectors=mapped, postprocessing=steps)

    @property
    def _whitening_steps(self) -> tuple[str, ...]:
        """The name of the step of whitening, if there is one."""
        return () if self._pca_whitening is None else (self._pca_whitening.fingerprint(),)

    @property
    def _dim_steps(self) -> tuple[str, ...]:
        """The name of the step that cuts the embeddings, if there is one."""
        return () if self.dim is None else (f"dim {self.dim}",)

    def _check_dim(self, model: Embedder | ExportedEmbedder) -> None:
        """Check before anything is embedded that there are so many dimensions, and say so if they are not trained."""
        if self.dim is None or self._pca_whitening is not None:
            return
        check_dim(self.dim, model.dim)
        recipe = getattr(model, "recipe", None)  # of an exported model it is not known
        if recipe is None or id(model) in self._known_models:
            return
        self._known_models.add(id(model))
        dims = trained_dims(recipe)
        if self.dim < (dims[0] if dims else model.dim):
            trained = f"with Matryoshka for {dims[0]} dimensions and more" if dims else "without Matryoshka"
            log(
                f"warning: the model was trained {trained}; its first {self.dim} dimensions alone may find much less "
                "than PCA whitening to as many (vicinal whiten --dim)"
            )


def _on_error_of_run(run: RunFolder) -> OnError:
    """What the training of a run did with unreadable images; "raise" if its recipe does not say."""
    return "skip" if data_settings_of_run(run).get("on_error") == "skip" else "raise"
