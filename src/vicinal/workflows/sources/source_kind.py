"""What kind of embedding source a path is, told without reading embeddings or images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from vicinal.data.embeddings.shard_manifest import holds_shards
from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file
from vicinal.utils.run_folder import RunFolder

SourceKind = Literal["run", "refiner run", "embeddings", "index", "embedder", "image", "images"]


def source_kind(path: str) -> SourceKind:
    """Return the kind of an embedding source.

    "run" is the folder of a training run, "refiner run" that of a refiner's training, "embeddings" a .npy file, a
    Parquet file with a column `embedding` or a folder of shards of embeddings, "index" and "embedder" are folders that
    Vicinal saved, "index" the URL of a database too, "image" is a single image file, and "images" everything else: a
    folder, a table, or the name of a benchmark.

    Example:
        >>> source_kind("vectors.npy"), source_kind("photos/")
        ('embeddings', 'images')
    """
    if "://" in path:
        from vicinal.retrieval.index.remote.engine_url import is_engine_url

        if is_engine_url(path):
            return "index"
    run = RunFolder(Path(path))
    if run.recipe.is_file():
        return "refiner run" if run.embeddings.is_file() else "run"
    if path.endswith(".npy") or _has_embeddings(path) or holds_shards(path):
        return "embeddings"
    if (kind := _saved_kind(path)) is not None:
        return kind
    from vicinal.data.folders import is_image_file

    return "image" if is_image_file(path) and Path(path).is_file() else "images"


def check_labels_fit(source: str) -> None:
    """Raise InputError unless a source is a file of embeddings, to which a file of labels gives its rows."""
    if source_kind(source) != "embeddings":
        if source.endswith(".parquet"):
            check_regular_file(source)  # nobody has looked into a pipe
        raise InputError(f"--labels gives labels to files of embeddings; {source} is none: leave out --labels")


def _has_embeddings(path: str) -> bool:
    """Return whether the path is a Parquet file with a column `embedding`."""
    if not path.endswith(".parquet") or not Path(path).is_file():
        return False
    import pyarrow.parquet

    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except (OSError, ValueError):
        return False  # reading it as a table raises the error


def _saved_kind(folder: str) -> Literal["index", "embedder"] | None:
    """Return the kind of a folder that Vicinal saved; None for any other path."""
    from vicinal.retrieval.index.database import FILE

    if Path(folder, FILE).is_file():
        return "index"
    file = Path(folder, "config.json")
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    saved_format = config.get("format") if isinstance(config, dict) else None
    if saved_format is None:
        return None
    from vicinal.models.model_format import EMBEDDER

    return "embedder" if saved_format == EMBEDDER.name else None
