"""Shards of the embeddings of a source, part by part: a process that is killed loses one part at most."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.data.batches.image_dataset import EmbeddedBatch, ImageDataset, PixelBatches, map_pixels
from vicinal.data.embedding_files import save_embeddings
from vicinal.data.embedding_shards import check_together, read_part
from vicinal.data.shard_manifest import ShardManifest, ShardPart, read_manifests
from vicinal.data.table import Table
from vicinal.export.exported_embedder import engine_name
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.files import file_digest, hold_lock
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.source import Source

LOCK = ".lock"
PART_SIZE = 10_000


@dataclass(frozen=True)
class ShardJob:
    """A shard to be completed, in the folder of all shards. Rows are those of the shard, from 0."""

    folder: Path
    table: Table
    manifest: ShardManifest
    reader: EmbeddingReader
    source: str
    batch_size: int

    @cached_property
    def missing(self) -> list[int]:
        """The numbers of the parts that are absent or damaged."""
        missing = [number for number in range(self.manifest.num_parts) if not self._is_there(number)]
        if kept := self.manifest.num_parts - len(missing):
            log(f"shard {self.manifest.name}: {kept:,} of {self.manifest.num_parts:,} parts already exist")
        return missing

    @cached_property
    def batches(self) -> list[range]:
        """The rows of the batches of all missing parts; a batch is of one part."""
        return [rows for number in self.missing for rows in self._batches(number)]

    def complete(self, embedded: Iterator[EmbeddedBatch]) -> ShardManifest:
        """Write the missing parts, given all batches in any order, and return the manifest of the complete shard.

        A part is written by another thread while the next one is embedded.
        """
        arrived: dict[int, EmbeddedBatch] = {}
        manifest = self.manifest
        written: Future[ShardManifest] | None = None
        with ThreadPoolExecutor(1) as writer:
            for number in self.missing:
                batches = [self._take(rows.start, arrived, embedded) for rows in self._batches(number)]
                manifest = manifest if written is None else written.result()
                written = writer.submit(self._add_part, manifest, number, batches)
        return manifest if written is None else written.result()

    def _take(self, row: int, arrived: dict[int, EmbeddedBatch], embedded: Iterator[EmbeddedBatch]) -> EmbeddedBatch:
        """The batch that begins with a row; batches that arrive earlier are kept."""
        while row not in arrived:
            batch = next(embedded)
            if batch.errors and self.manifest.on_error == "raise":
                position, error = next(iter(batch.errors.items()))
                row = self.manifest.rows[position]
                raise InputError(f"row {row}: {error}; --on_error skip leaves out such images")
            for error in batch.errors.values():
                log(f"left out: {error}")
            arrived[batch.first_row] = batch
        return arrived.pop(row)

    def _rows(self, number: int) -> range:
        size = self.manifest.part_size
        return range(len(self.manifest.rows))[number * size : (number + 1) * size]

    def _batches(self, number: int) -> Iterator[range]:
        rows, size = self._rows(number), self.batch_size
        return (rows[start : start + size] for start in range(0, len(rows), size))

    def _is_there(self, number: int) -> bool:
        """Whether a part is complete and unchanged since it was written."""
        if number >= len(self.manifest.parts):
            return False
        part = self.manifest.parts[number]
        if not part.num_embeddings:
            return True
        try:
            read_part(self.manifest.part_file(self.folder, number), part)
        except InputError as error:
            log(f"{error}; it is embedded again")
            return False
        return True

    def _add_part(self, manifest: ShardManifest, number: int, batches: Sequence[EmbeddedBatch]) -> ShardManifest:
        """Write a part and then the manifest, which is returned."""
        manifest = manifest.with_part(number, self._write(number, batches))
        manifest.save(self.folder)
        log(f"shard {manifest.name}: part {number + 1:,} of {manifest.num_parts:,}")
        return manifest

    def _write(self, number: int, batches: Sequence[EmbeddedBatch]) -> ShardPart:
        path = self.manifest.part_file(self.folder, number)
        errors = {row: error for batch in batches for row, error in batch.errors.items()}
        unreadable = {self.manifest.rows[row]: error for row, error in errors.items()}
        rows = [row for row in self._rows(number) if row not in errors]
        if not rows:
            path.unlink(missing_ok=True)
            return ShardPart(0, unreadable=unreadable)
        vectors = np.concatenate([batch.vectors for batch in batches if len(batch.vectors)])
        engine = ", ".join(sorted({batch.engine for batch in batches}))
        save_embeddings(path, vectors, self.table.take(rows), self.manifest.model, engine)
        return ShardPart(len(vectors), vectors.shape[1], file_digest(path), unreadable)


@contextmanager
def shard_job(
    reader: EmbeddingReader,
    source: str,
    folder: str | Path,
    shard: int,
    num_shards: int,
    split: str | None,
    part_size: int,
) -> Iterator[ShardJob]:
    """The missing parts of a shard, locked against other processes; arguments and errors as of `embed_shard`."""
    given = Source(source)
    if given.is_stored:
        raise InputError(f"{source} already holds embeddings; --shard and --ray need images")
    if Path(source).exists() and Path(source).resolve() == Path(folder).resolve():
        raise InputError(f"{folder} holds the images; write the shards into a folder of their own")
    on_error = reader.on_error or "skip"
    model = source if given.kind == "run" and reader.model is None else reader.model
    reader = replace(reader, model=model, on_error=None, precision=reader.used_precision)
    batch_size = reader.batch_embedder(source).batch_size
    images = reader.list_images(source, split)
    table = images.table
    new = ShardManifest(
        shard=shard,
        num_shards=num_shards,
        source=source,
        num_rows=len(table),
        rows_sha256=_rows_digest(table),
        model=str(reader.fingerprint),
        precision=reader.precision,
        on_error=on_error,
        part_size=part_size,
    )
    for other in read_manifests(folder):
        check_together(folder, other, new)
    new.folder(folder).mkdir(parents=True, exist_ok=True)
    with hold_lock(new.folder(folder) / LOCK, 0, f"embed shard {new.name} in {folder}"):
        job = ShardJob(Path(folder), table.take(new.rows), _stored(new, folder), reader, source, batch_size)
        images.write(job.table.paths[row] for rows in job.batches for row in rows)
        yield job


def _stored(new: ShardManifest, folder: str | Path) -> ShardManifest:
    for stored in read_manifests(folder):
        check_together(folder, stored, new)
        if stored.shard == new.shard:
            return stored
    new.save(folder)
    return new


def _rows_digest(table: Table) -> str:
    """Identifies the rows of a table by all its columns."""
    digest = hashlib.sha256()
    for name in table.frame.columns:
        column = table.frame[name]
        try:
            hashes = pd.util.hash_pandas_object(column, index=False)
        except TypeError:  # lists
            hashes = pd.util.hash_pandas_object(column.map(repr), index=False)
        digest.update(str(name).encode() + b"\0" + hashes.to_numpy().tobytes())
    return digest.hexdigest()


def embed_shard(
    reader: EmbeddingReader,
    source: str,
    folder: str | Path,
    shard: int,
    num_shards: int,
    split: str | None = None,
    part_size: int = PART_SIZE,
) -> ShardManifest:
    """Embed one shard of a source into a folder that all its shards share, or go on where another process ended.

    Parts that are complete, by their checksums, are kept. The shards of a source are disjoint and hold all its rows in
    order. Unreadable images are left out and listed in the manifest, unless `on_error` of the reader is "raise".

    Args:
        reader: How images become embeddings.
        source: Images: a run, a file, a folder, a table, a container or a benchmark.
        folder: Where the shards are written; the shard is its folder `shard-I-of-N`.
        shard: Number of the shard, from 1.
        num_shards: How many shards the source is divided into.
        split: As for :meth:`EmbeddingReader.embed`.
        part_size: Number of images of a part.

    Returns:
        The manifest of the complete shard.

    Raises:
        InputError: The source or the model cannot be read, another process embeds the shard, or shards in the folder
            are of another model, other options or another source.
        OSError: A file cannot be written.
    """
    with shard_job(reader, source, folder, shard, num_shards, split, part_size) as job:
        return job.complete(_embed_here(job))


def _embed_here(job: ShardJob) -> Iterator[EmbeddedBatch]:
    """Embed the missing batches in this process; its workers go on reading from one part to the next."""
    embed = job.reader.batch_embedder(job.source, sum(map(len, job.batches)))
    if not job.batches:  # the model is moved only where there is something to embed
        return
    batches = PixelBatches(ImageDataset(job.table, embed.transform), job.batches)
    mapped = map_pixels(embed, batches, embed.device, job.reader.num_workers, embed.is_thread_safe)
    embedded, engine = track(mapped, "embedding", total=len(batches)), engine_name(embed.engine)
    for rows in job.batches:
        with prefixed_errors(f"from row {job.manifest.rows[rows.start]}"):
            vectors, errors = next(embedded)
        yield EmbeddedBatch(rows.start, vectors, errors, engine)
