"""Shards of embeddings merged into one file, part by part."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.data.embeddings.embedding_files import FINGERPRINT_KEY, TABLE_SUFFIX, embedding_table
from vicinal.data.embeddings.embedding_shards import EmbeddingShards
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
        write_blocks(path, _parquet_blocks(path, shards))
    elif path.suffix.lower() == ".npy":
        _write_npy(path, shards)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")
    return shards


class _Blocks(io.RawIOBase):
    """A file that keeps what is written to it until it is taken."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: bytes) -> int:  # type: ignore[override]
        block = bytes(data)
        self._blocks.append(block)
        self._position += len(block)
        return len(block)

    def take(self) -> list[bytes]:
        blocks, self._blocks = self._blocks, []
        return blocks


def _parquet_blocks(path: Path, shards: EmbeddingShards) -> Iterator[bytes]:
    """The content of a Parquet file with all parts."""
    schema, blocks = _schema(shards), _Blocks()
    with pq.ParquetWriter(blocks, schema) as writer:
        for vectors, frame in shards.parts():
            writer.write_table(embedding_table(path, Table(frame), vectors).cast(schema))
            yield from blocks.take()
    yield from blocks.take()


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
