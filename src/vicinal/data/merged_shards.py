"""Shards of embeddings merged into one file, part by part."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.data.embedding_files import FINGERPRINT_KEY, TABLE_SUFFIX, embedding_table
from vicinal.data.embedding_shards import EmbeddingShards
from vicinal.data.parquet_files import open_parquet, with_metadata
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_blocks


def merge_shards(folder: str | Path, path: str | Path) -> EmbeddingShards:
    """Merge the shards of a source into one file of embeddings, the one that `vicinal embed` writes without shards.

    One part is in memory at a time; for `.npy`, the columns of all.

    Args:
        folder: The folder that `vicinal embed --shard` wrote.
        path: The `.parquet` or `.npy` file to write, as of :func:`save_embeddings`.

    Returns:
        The shards, with their numbers and the images that were left out.

    Raises:
        InputError: Shards are missing or damaged, or do not belong together; nothing is written then.
        OSError: A file cannot be written.
    """
    path, shards = Path(path), EmbeddingShards.open(folder)
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, shards)
    elif path.suffix.lower() == ".npy":
        _write_npy(path, shards)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")
    return shards


def _write_parquet(path: Path, shards: EmbeddingShards) -> None:
    schema = _schema(shards)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with pq.ParquetWriter(new, schema) as writer:
            for vectors, frame in shards.parts():
                writer.write_table(embedding_table(path, Table(frame), vectors).cast(schema))
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _schema(shards: EmbeddingShards) -> pa.Schema:
    """The columns of all parts; one that is empty in some has the type that it has in others."""
    schemas = []
    for file_path, _ in shards.files():
        with open_parquet(file_path) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"{shards.folder}: the columns of the parts have different types ({error})") from None
    return with_metadata(unified.empty_table(), FINGERPRINT_KEY, shards.model).schema


def _write_npy(path: Path, shards: EmbeddingShards) -> None:
    frames = []

    def blocks() -> Iterator[bytes]:
        header = io.BytesIO()
        shape = (shards.num_embeddings, shards.dim)
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        yield header.getvalue()
        for vectors, frame in shards.parts():
            frames.append(frame)
            yield vectors.astype("<f4", copy=False).tobytes()
        write_table(path.with_suffix(TABLE_SUFFIX), Table(pd.concat(frames, ignore_index=True)).frame)

    write_blocks(path, blocks())
