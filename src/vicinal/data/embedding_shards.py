"""Embeddings in a folder of shards: read part by part, compared with checksums, and merged into one file."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.data import parquet_files
from vicinal.data.checks import check_embeddings
from vicinal.data.shard_manifest import ShardManifest, ShardPart, read_manifests
from vicinal.data.table import Table
from vicinal.data.table_files import TABLE_SUFFIX, write_table
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError
from vicinal.utils.files import read_bytes, replace_file, write_blocks
from vicinal.utils.memory import check_memory, temporary_map

MAX_LISTED = 5


@dataclass(frozen=True)
class EmbeddingShards:
    """The complete shards of a source.

    Args:
        folder: the folder that holds them.
        manifests: of all shards, in order.
    """

    folder: Path
    manifests: tuple[ShardManifest, ...]

    @classmethod
    def open(cls, folder: str | Path) -> EmbeddingShards:
        """Read the manifests of a folder of shards, and check that they all exist and belong together.

        Raises:
            InputError: Shards or parts are missing or of different models, options or sources, or a manifest cannot be
                read.
        """
        manifests = read_manifests(folder)
        if not manifests:
            raise InputError(f"{folder}: holds no shards of vicinal embed --shard")
        for each in manifests[1:]:
            check_together(folder, manifests[0], each)
        _raise(folder, list(_absences(Path(folder), manifests)))
        if not any(each.num_embeddings for each in manifests):
            raise InputError(f"{folder}: none of the images could be read, so there are no embeddings")
        shards = cls(Path(folder), tuple(manifests))
        if len(shards._dims) > 1:
            raise InputError(f"{folder}: embeddings of {min(shards._dims)} and of {max(shards._dims)} dimensions")
        return shards

    @property
    def model(self) -> str:
        """The fingerprint of the model and the steps after it."""
        return self.manifests[0].model

    @property
    def num_embeddings(self) -> int:
        """The number of embeddings."""
        return sum(each.num_embeddings for each in self.manifests)

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return sum(len(each.parts) for each in self.manifests)

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return max(self._dims)

    @property
    def unreadable(self) -> dict[int, str]:
        """The row of the source and the error of each image that was left out."""
        return {row: error for each in self.manifests for row, error in each.unreadable.items()}

    @property
    def _dims(self) -> set[int]:
        return {part.dim for each in self.manifests for part in each.parts if part.num_embeddings}

    def files(self) -> Iterator[tuple[Path, ShardPart]]:
        """Yield the file of each part that holds embeddings, in the order of the rows."""
        for each in self.manifests:
            for number, part in enumerate(each.parts):
                if part.num_embeddings:
                    yield each.part_file(self.folder, number), part

    def parts(self) -> Iterator[tuple[Floats, pd.DataFrame]]:
        """Yield the embeddings and the columns of each part, in the order of the rows.

        Raises:
            InputError: A part cannot be read, or is not as it was written.
        """
        for path, part in self.files():
            content = read_part(path, part)
            frame, vectors = parquet_files.read_frame(path, content), parquet_files.read_embedding_column(path, content)
            if vectors.shape != (part.num_embeddings, part.dim):
                raise InputError(f"{path}: {list(vectors.shape)} embeddings, not as many as the manifest says")
            yield check_embeddings(vectors, len(frame), str(path)), frame

    def load(self, mapped: bool = False) -> tuple[Floats, pd.DataFrame]:
        """All embeddings `[n, dim]` and their columns; the memory is that of these and of one part.

        Args:
            mapped: Whether the embeddings are written to a temporary file and mapped into memory.

        Raises:
            InputError: As :meth:`parts`, or there is not enough memory or space.
        """
        shape, frames = (self.num_embeddings, self.dim), []

        def blocks() -> Iterator[Floats]:
            for part, frame in self.parts():
                frames.append(frame)
                yield part

        if mapped:
            vectors = temporary_map(blocks(), shape, str(self.folder))
            frames = frames or [
                parquet_files.read_frame(path) for path, _ in self.files()
            ]  # if another process has read them
        else:
            check_memory(self.num_embeddings * self.dim * np.dtype(np.float32).itemsize, str(self.folder))
            vectors = np.empty(shape, dtype=np.float32)
            row = 0
            for part in blocks():
                vectors[row : row + len(part)] = part
                row += len(part)
        return vectors, pd.concat(frames, ignore_index=True)


def verify_shards(folder: str | Path) -> EmbeddingShards:
    """Check that all shards of a source exist, belong together, and are unchanged since they were written.

    Args:
        folder: The folder that `vicinal embed --shard` wrote.

    Returns:
        The shards, with their numbers and the images that were left out.

    Raises:
        InputError: They are not; the message says which shards or parts.
    """
    shards = EmbeddingShards.open(folder)
    problems = []
    for path, part in shards.files():
        try:
            read_part(path, part)
        except InputError as error:
            problems.append(str(error))
    _raise(folder, problems)
    return shards


def read_part(path: Path, part: ShardPart) -> bytes:
    """The content of the file of a part."""
    content = read_bytes(path)
    digest = hashlib.sha256(content).hexdigest()
    if digest != part.sha256:
        raise InputError(f"{path}: has the SHA-256 {digest[:8]}, not {part.sha256[:8]} as it was written")
    return content


def check_together(folder: str | Path, first: ShardManifest, second: ShardManifest) -> None:
    """Raise InputError if two shards are of different models, options or sources."""
    difference = first.difference(second)
    if difference is not None:
        other = "" if first.name == second.name else f" as shard {second.name}"
        raise InputError(
            f"{folder}: shard {first.name} was embedded with {difference}{other}; "
            "embed all shards in the same way, or into another folder"
        )


def _absences(folder: Path, manifests: Sequence[ShardManifest]) -> Iterator[str]:
    first = manifests[0]
    found = {each.shard for each in manifests}
    absent = (shard for shard in range(1, first.num_shards + 1) if shard not in found)
    yield from (f"shard {shard}/{first.num_shards} is missing" for shard in absent)
    for each in manifests:
        if not each.is_complete:
            yield f"shard {each.name} has {len(each.parts):,} of {each.num_parts:,} parts; --shard {each.name} resumes"


def _raise(folder: str | Path, problems: Sequence[str]) -> None:
    if problems:
        more = len(problems) - MAX_LISTED
        shown = "; ".join(problems[:MAX_LISTED]) + (f"; and {more:,} more" if more > 0 else "")
        raise InputError(f"{folder}: {shown}")


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
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, shards)
    elif path.suffix.lower() == ".npy":
        _write_npy(path, shards)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")
    return shards


def _write_parquet(path: Path, shards: EmbeddingShards) -> None:
    schema = _schema(shards)
    with replace_file(path) as new, pq.ParquetWriter(new, schema, write_page_checksum=True) as writer:
        for vectors, frame in shards.parts():
            writer.write_table(parquet_files.embedding_table(path, Table(frame).frame, vectors).cast(schema))


def _schema(shards: EmbeddingShards) -> pa.Schema:
    """The columns of all parts; one that is empty in some has the type that it has in others."""
    schemas = []
    for file_path, _ in shards.files():
        with parquet_files.open_parquet(file_path) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"{shards.folder}: the columns of the parts have different types ({error})") from None
    return parquet_files.with_metadata(unified.empty_table(), parquet_files.FINGERPRINT_KEY, shards.model).schema


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
