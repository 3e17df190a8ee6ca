"""One shard of the embeddings of a source, part by part, so that a process that is killed loses one part at most."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from vicinal.data.decoding import REDUCTIONS, decoded
from vicinal.data.embedding_shards import check_together, read_part
from vicinal.data.embeddings import save_embeddings
from vicinal.data.shard_manifest import ShardManifest, ShardPart, read_manifests
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.files import file_digest
from vicinal.utils.locks import hold_lock
from vicinal.utils.threads import thread_pool
from vicinal.workflows.source_kind import source_kind
from vicinal.workflows.sources import EmbeddedTable, EmbeddingReader

LOCK = ".lock"
PART_SIZE = 10_000


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
    kind = source_kind(source)
    if kind in ("embeddings", "index"):
        raise InputError(f"{source} holds embeddings already; --shard is about images")
    if Path(source).exists() and Path(source).resolve() == Path(folder).resolve():
        raise InputError(f"{folder} holds the images; write the shards into a folder of their own")
    on_error = reader.on_error or "skip"
    model = source if kind == "run" and reader.model is None else reader.model
    reader = replace(reader, model=model, on_error=None)
    embed = reader.embed_function(source)
    table = reader.read_table(source, split)
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
        return _ShardWriter(Path(folder), table, embed).complete(_stored(new, folder))


def _stored(new: ShardManifest, folder: str | Path) -> ShardManifest:
    """The manifest of the shard in the folder, or the new one, which is written."""
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


@dataclass(frozen=True)
class _ShardWriter:
    """Writes the parts of a shard.

    Args:
        folder: That of all shards.
        table: All rows of the source.
        embed: The function that embeds rows, as of :meth:`EmbeddingReader.embed_function`.
    """

    folder: Path
    table: Table
    embed: Callable[..., EmbeddedTable]

    def complete(self, manifest: ShardManifest) -> ShardManifest:
        """Embed the parts that are absent or damaged."""
        num_kept = 0
        for number in range(manifest.num_parts):
            if self._is_there(manifest, number):
                num_kept += 1
                continue
            manifest = manifest.with_part(number, self._write(manifest, number))
            manifest.save(self.folder)
            log(f"shard {manifest.name}: part {number + 1:,} of {manifest.num_parts:,}")
        if num_kept:
            log(f"shard {manifest.name}: {num_kept:,} of {manifest.num_parts:,} parts were there already")
        return manifest

    def _is_there(self, manifest: ShardManifest, number: int) -> bool:
        """Whether a part is complete and as it was written."""
        if number >= len(manifest.parts):
            return False
        part = manifest.parts[number]
        if not part.num_embeddings:
            return True
        try:
            read_part(manifest.part_file(self.folder, number), part)
        except InputError as error:
            log(f"{error}; it is embedded again")
            return False
        return True

    def _write(self, manifest: ShardManifest, number: int) -> ShardPart:
        """Embed a part, and write its file."""
        rows, path = manifest.part_rows(number), manifest.part_file(self.folder, number)
        table = self.table.take(range(rows.start, rows.stop))
        embedded, errors = self._embed(table, manifest.on_error)
        unreadable = {rows[row]: error for row, error in errors.items()}
        if embedded is None:
            path.unlink(missing_ok=True)
            return ShardPart(0, unreadable=unreadable)
        save_embeddings(path, embedded.vectors, embedded.table, manifest.model)
        num_embeddings, dim = embedded.vectors.shape
        return ShardPart(num_embeddings, dim, file_digest(path), unreadable)

    def _embed(self, table: Table, on_error: str) -> tuple[EmbeddedTable | None, dict[int, str]]:
        """The embeddings of the images that can be read, if there are any, and the errors of the others by their rows.

        Images are not read before they are embedded, as `on_error="skip"` would do, unless one of them is unreadable.
        """
        try:
            return self.embed(table, on_error="raise"), {}
        except InputError:
            errors = _unreadable(table) if on_error == "skip" else {}
            if not errors:
                raise
        readable = [row for row in range(len(table)) if row not in errors]
        for error in errors.values():
            log(f"left out: {error}")
        return self.embed(table.take(readable), on_error="raise") if readable else None, errors


def _unreadable(table: Table) -> dict[int, str]:
    """The errors of the images that cannot be read, by their rows."""
    from vicinal.data.images import ImageDataset
    from vicinal.data.transforms import ImageTransform

    images = ImageDataset(table, ImageTransform())

    def attempt(row: int) -> str | None:
        try:
            images.load(row, partial(decoded, max_reduction=REDUCTIONS[0]))
        except InputError as error:
            return str(error).removeprefix(f"row {row}: ")
        return None

    with thread_pool() as pool:
        found = dict(enumerate(pool.map(attempt, range(len(table)))))
    return {row: error for row, error in found.items() if error is not None}
