"""The source of a command, images or embeddings: its table, its images and its embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from vicinal.data.columns import COLUMN_FLAGS, column_aliases, named_columns
from vicinal.data.conditions import matching_rows
from vicinal.data.loading import list_images, load_run_table
from vicinal.data.moved import move_root
from vicinal.data.shard_manifest import holds_shards
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.files import check_regular_file
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from vicinal.data.containers.listing import ListedImages
    from vicinal.workflows.embedded_table import EmbeddedTable

INDEX_FILE = "index.sqlite"  # as vicinal.retrieval.index.database has it, which takes longer to import
SourceKind = Literal["run", "refiner run", "embeddings", "index", "embedder", "image", "images"]


@dataclass(frozen=True)
class Source:
    """Images or embeddings, by the name that a command is given.

    Args:
        name: a run folder, a file of embeddings (.parquet, or .npy with its .table.csv), a folder of shards of
            embeddings, the folder of an index or its URL, or images: a file, a folder, a table, a container or a
            benchmark.
        root: as for :func:`~vicinal.data.load_table`; for a run, the folder that its images were moved to.
        path_column: the column of image paths in a table; None: `path`, or the column that `remembered` names.
        label_column: the column of labels, which are optional if it is None.
        labels: a file of labels in place of the table of a file of embeddings.
        remembered: `path_column` and `label_column` that a run or an index was made with.

    Example:
        >>> import tempfile
        >>> from vicinal.data import save_embeddings
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/v.parquet", np.eye(2), Table(pd.DataFrame({"label": ["cat", "dog"]})))
        ...     source = Source(f"{folder}/v.parquet")
        ...     source.kind, source.stored().table.classes
        ('embeddings', ['cat', 'dog'])
    """

    name: str
    root: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    labels: str | None = None
    remembered: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kind(self) -> SourceKind:
        """The kind of source that the name stands for, without reading embeddings or images.

        "run" is the folder of a training run, "refiner run" that of a refiner's training, "embeddings" a .npy file, a
        Parquet file with a column `embedding` or a folder of shards, "index" and "embedder" are folders that Vicinal
        saved, "index" the URL of a database too, "image" is a single image file, and "images" everything else.
        """
        if "://" in self.name:
            from vicinal.retrieval.index.remote.engine_url import is_engine_url

            if is_engine_url(self.name):
                return "index"
        if Path(self.name).is_dir() and (kind := _kind_of_folder(self.name)) is not None:
            return kind
        if self.name.endswith(".npy") or _has_embeddings(self.name):
            return "embeddings"
        from vicinal.data.images.formats import is_image_file

        return "image" if is_image_file(self.name) and Path(self.name).is_file() else "images"

    @property
    def is_stored(self) -> bool:
        """Whether it holds embeddings."""
        return self.kind in ("embeddings", "index")

    @property
    def has_images(self) -> bool:
        """Whether it holds images that a model embeds."""
        return self.kind in ("run", "image", "images")

    @cached_property
    def images(self) -> ListedImages:
        """The table of its images; images of a container are files only once they are written.

        Raises:
            InputError: they cannot be read, or it is the run of a refiner.
        """
        self.check_not_refiner_run()
        self.check_labels()
        if self.kind in ("run", "image"):
            from vicinal.data.containers.listing import ListedImages

            return ListedImages(self._run_table() if self.kind == "run" else Table(pd.DataFrame({"path": [self.name]})))
        columns = {flag: self._column(flag) for flag in COLUMN_FLAGS}
        return list_images(self.name, self.root, **columns)

    @property
    def table(self) -> Table:
        """The table of its images, which are all written."""
        self.images.write()
        return self.images.table

    def stored(self, mapped: bool = False) -> EmbeddedTable:
        """The embeddings that it holds, with their table.

        Args:
            mapped: whether they are mapped into memory, see :func:`~vicinal.data.load_embeddings`.

        Raises:
            InputError: they cannot be read, a column does not exist, or there is not one label per embedding.
        """
        from vicinal.workflows.embedded_table import load_file, load_index

        self.check_labels()
        if self.kind == "index":
            return load_index(self.name, mapped)
        return load_file(self.name, mapped, named_columns(vars(self)), self.labels)

    def check_labels(self) -> None:
        """Raise InputError if there is a file of labels, and it is not a file of embeddings."""
        if self.labels is not None and self.kind != "embeddings":
            if self.name.endswith(".parquet"):
                check_regular_file(self.name)  # a pipe has not been read
            raise InputError(f"--labels is for files of embeddings, and {self.name} is not one; leave it out")

    def check_not_refiner_run(self) -> None:
        """Raise InputError if it is the run folder of a refiner, which embeds no images."""
        if self.kind == "refiner run":
            raise InputError(f"{self.name} is the run of a refiner; give it with --refiner")

    def _run_table(self) -> Table:
        table = load_run_table(RunFolder(Path(self.name)).table)
        return table if self.root is None else Table(table.frame.assign(path=move_root(table.paths, self.root)))

    def _column(self, flag: str) -> str | None:
        """The column of paths or labels.

        It is the given column; else the remembered one, if this table has it and no column `path` or `label`; else
        `path`, and None for labels.
        """
        given, known = getattr(self, flag), self.remembered.get(flag)
        default = None if flag == "label_column" else COLUMN_FLAGS[flag]
        is_table = Path(self.name).suffix.lower() in (".csv", ".parquet") and Path(self.name).is_file()
        if given is not None or known is None or not is_table:
            return default if given is None else given
        from vicinal.data.table_files import column_names

        names = column_names(Path(self.name))
        return known if known in names and COLUMN_FLAGS[flag] not in names else default


def _has_embeddings(path: str) -> bool:
    """Whether the path is a Parquet file with a column `embedding`."""
    if not path.endswith(".parquet") or not Path(path).is_file():
        return False
    import pyarrow.parquet

    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except (OSError, ValueError):
        return False  # reading it as a table raises the error


def _kind_of_folder(folder: str) -> SourceKind | None:
    """The kind of a folder that Vicinal wrote; None for any other."""
    run = RunFolder(Path(folder))
    if run.recipe.is_file():
        return "refiner run" if run.embeddings.is_file() else "run"
    if Path(folder, INDEX_FILE).is_file():
        return "index"
    if _holds_embedder(folder):
        return "embedder"
    return "embeddings" if holds_shards(folder) else None


def _holds_embedder(folder: str) -> bool:
    """Whether a folder holds a saved embedder, by its configuration."""
    try:
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or "format" not in config:
        return False
    from vicinal.models.model_folder import EMBEDDER

    return bool(config["format"] == EMBEDDER.name)


def data_settings_of_run(run: RunFolder) -> Mapping[str, Any]:
    """The group `data` of a run's recipe; empty if the recipe cannot be read."""
    from yaml import YAMLError

    from vicinal.utils.plain_yaml import load_yaml

    check_regular_file(run.recipe)
    try:
        recipe = load_yaml(run.recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        return {}
    data = recipe.get("data") if isinstance(recipe, dict) else None
    return data if isinstance(data, dict) else {}


def columns_of_run(model: str | None) -> dict[str, str]:
    """The names of columns that a run was trained with; empty for a model that is not a run."""
    if model is None or not RunFolder(Path(model)).recipe.is_file():
        return {}
    return named_columns(data_settings_of_run(RunFolder(Path(model))))


def selected_rows(
    table: Table,
    source: str,
    split: str | None = None,
    query_gallery_only: bool = False,
    where: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Integers:
    """Return the numbers of the selected rows, ascending.

    A condition may use `columns`, the names that the source or the user gives the columns of paths and labels.
    """
    is_selected = np.ones(len(table), dtype=bool)
    if split not in (None, "all"):
        if split not in table.splits:
            known = ", ".join(table.splits) or "none"
            raise InputError(f"{source} has no rows in the split {split}; its splits: {known}")
        is_selected &= (table.frame["split"] == split).to_numpy(dtype=bool)
    if query_gallery_only and table.has("is_query") and table.has("is_gallery"):
        is_selected &= (table.frame["is_query"] | table.frame["is_gallery"]).to_numpy(dtype=bool)
    if where is not None:
        with prefixed_errors(source):
            is_selected &= matching_rows(table.frame, where, column_aliases(columns or {}))
        if not is_selected.any():
            raise InputError(f"{source}: no row matches {where}" + (f" in the split {split}" * bool(split)))
    return np.flatnonzero(is_selected)
