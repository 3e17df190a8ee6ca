"""Embeddings with the table of their images: those stored in files, shards and indexes, and the steps after a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import basename
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vicinal.data import embedding_files
from vicinal.data.checks import row_blocks
from vicinal.data.columns import COLUMN_FLAGS
from vicinal.data.table import Table
from vicinal.models.head import check_dim, shortened
from vicinal.retrieval.scores import BLOCK_ROWS
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.memory import temporary_map

if TYPE_CHECKING:
    from vicinal.evaluation.model_costs import ModelCost
    from vicinal.export.exported_embedder import ExportedEmbedder
    from vicinal.models import Embedder
    from vicinal.retrieval import ImageIndex, PCAWhitening


@dataclass(frozen=True)
class EmbeddedTable:
    """Embeddings, the table of their images, and where they come from.

    Args:
        vectors: float32 [n, d].
        table: n rows.
        origin: the model that made the vectors, or its name where it is not kept; or the index or the path of the file
            that they were read from.
        postprocessing: names of the steps after the model; different steps have different names.
        cost: the costs of the model, if asked for.
        backbone: the name of the model's backbone, if it is known.
        num_left_out: the number of files that were left out: they cannot be read or, in a folder, are not images.
        engine: the engine of the model, if known.
    """

    vectors: Floats
    table: Table
    origin: Embedder | ExportedEmbedder | ImageIndex | str
    postprocessing: tuple[str, ...] = ()
    cost: ModelCost | None = None
    backbone: str | None = None
    num_left_out: int = 0
    engine: str | None = None

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model, if it is known, and the steps after it.

        It is computed when it is asked for, because it reads all weights of a model.
        """
        model = (
            embedding_files.read_fingerprint(self.origin) if isinstance(self.origin, str) else self.origin.fingerprint()
        )
        return None if model is None else "+".join([model, *self.postprocessing])


def load_index(source: str, mapped: bool = False) -> EmbeddedTable:
    """The embeddings of an index, with their table."""
    from vicinal.retrieval import Index

    index: ImageIndex = Index.load(source)
    if mapped and "://" not in source:  # a database may change between its vectors and its rows
        assert isinstance(index, Index)
        with index.reading():  # other processes may change it
            frame = index.searched_rows()
            ids = frame["id"].to_numpy()
            blocks = (index.vectors_of(ids[start : start + BLOCK_ROWS]) for start in range(0, len(ids), BLOCK_ROWS))
            vectors = temporary_map(blocks, (len(ids), index.dim), source)
    else:
        vectors, frame = index.contents()
    return EmbeddedTable(vectors, Table(frame), index)


def load_file(
    source: str, mapped: bool = False, columns: Mapping[str, str] | None = None, labels: str | None = None
) -> EmbeddedTable:
    """Embeddings of a file or a folder of shards, with their own table or that of a file of labels.

    A table of labels without paths gets those of the table of the source. `columns` names the columns by flag.
    """
    columns = columns or {}
    if labels is None:
        vectors, table = embedding_files.load_embeddings(source, mapped)
        return EmbeddedTable(vectors, with_named_columns(table, source, columns), source)
    vectors, table = embedding_files.load_vectors(source, mapped), embedding_files.load_labels(labels, **columns)
    if len(table) != len(vectors):
        raise InputError(
            f"{labels} has {len(table)} rows, {source} {len(vectors)} embeddings; give one row per embedding"
        )
    return EmbeddedTable(vectors, _with_own_images(table, labels, source), source)


def _with_own_images(table: Table, labels: str, source: str) -> Table:
    """A table of labels with the paths that the file of embeddings knows, if the labels have none of their own."""
    own = embedding_files.read_own_images(source)
    if "path" not in own or len(own) != len(table):
        return table
    if not table.has("path"):
        unknown = own.drop(columns=table.frame.columns, errors="ignore")
        return Table(pd.concat([table.frame, unknown], axis=1), Path(source).parent)
    for row, (path, embedded) in enumerate(zip(table.paths, own["path"], strict=True)):
        if basename(path) != basename(embedded):
            raise InputError(
                f"{labels}: row {row} is {basename(path)}, but its embedding in {source} is of {basename(embedded)}; "
                "put the rows in the order of the embeddings"
            )
    return table


def with_named_columns(table: Table, source: str, columns: Mapping[str, str]) -> Table:
    """The table of stored embeddings, in which the named columns of paths and labels are `path` and `label`.

    Stored tables already have these names, but may be asked for by the original names.
    """
    for flag, name in columns.items():
        usual, known = COLUMN_FLAGS[flag], list(table.frame.columns)
        if name in known:
            names: dict[str, str | None] = {**dict.fromkeys(COLUMN_FLAGS), flag: name}
            table = Table.from_frame(table.frame, Path(source).parent, **names)
        elif usual not in known:
            raise InputError(f"{source}: no column {name!r}; the columns are {', '.join(known) or 'none'}")
    return table


def map_rows(vectors: Floats, rows: Integers, source: str) -> Floats:
    """Some rows of mapped embeddings, mapped too."""
    if (np.diff(rows) == 1).all():
        first = int(rows[:1].sum())
        return vectors[first : first + len(rows)]
    blocks = (vectors[some] for some in np.split(rows, range(BLOCK_ROWS, len(rows), BLOCK_ROWS)))
    return temporary_map(blocks, (len(rows), vectors.shape[1]), source)


@dataclass(frozen=True)
class Postprocessing:
    """The steps after a model: whitening, then the first `dim` dimensions, normalized; None leaves a step out."""

    whitening: PCAWhitening | None = None
    dim: int | None = None
    _checked_models: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps; different steps have different names."""
        whitening = () if self.whitening is None else (self.whitening.fingerprint(),)
        return whitening if self.dim is None else (*whitening, f"dim {self.dim}")

    def apply(self, vectors: Floats) -> Floats:
        """Apply the steps to embeddings, float32 [n, d]."""
        if self.whitening is not None:
            vectors = self.whitening.apply(vectors)
        return vectors if self.dim is None else shortened(vectors, self.dim)

    def apply_to(self, embedded: EmbeddedTable, mapped: bool = False) -> EmbeddedTable:
        """Apply the steps to embeddings with their table; if `mapped`, block by block into a temporary file."""
        if not self.names:
            return embedded
        steps = (*embedded.postprocessing, *self.names)
        if not mapped:
            return replace(embedded, vectors=self.apply(embedded.vectors), postprocessing=steps)
        dim = self.dim if self.whitening is None or self.dim is not None else self.whitening.dim
        blocks = map(self.apply, row_blocks(embedded.vectors))
        vectors = temporary_map(blocks, (len(embedded.vectors), int(dim or 0)), "embeddings")
        return replace(embedded, vectors=vectors, postprocessing=steps)

    def check_model(self, model: Embedder | ExportedEmbedder) -> None:
        """Check before anything is embedded that a model has enough dimensions; warn if they are not trained."""
        if self.dim is None or self.whitening is not None:
            return
        check_dim(self.dim, model.dim)
        recipe = getattr(model, "recipe", None)  # of an exported model it is not known
        if recipe is None or id(model) in self._checked_models:
            return
        self._checked_models.add(id(model))
        dims = trained_dims(recipe)
        if self.dim < (dims[0] if dims else model.dim):
            trained = f"with Matryoshka for {dims[0]} dimensions and more" if dims else "without Matryoshka"
            log(
                f"warning: the model was trained {trained}; its first {self.dim} dimensions may retrieve much worse "
                "than PCA whitening to as many (vicinal whiten --dim)"
            )


def trained_dims(recipe: Mapping[str, Any]) -> list[int]:
    """The dimensions of the prefixes for which a model was trained by Matryoshka losses, as its recipe says."""
    return sorted({dim for dim in _matryoshka_dims(recipe.get("loss")) if isinstance(dim, int)})


def _matryoshka_dims(value: object) -> Iterator[object]:
    """All `dims` of the Matryoshka losses in a setting."""
    if isinstance(value, Mapping):
        arguments = value.get("init_args")
        is_named = str(value.get("class_path")).rpartition(".")[2] == "Matryoshka"
        if is_named and isinstance(arguments, Mapping) and isinstance(arguments.get("dims"), list):
            yield from arguments["dims"]
    nested = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in nested:
        yield from _matryoshka_dims(each)
