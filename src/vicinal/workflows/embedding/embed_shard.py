"""One shard of the embeddings of a source, part by part, so that a process that is killed loses one part at most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.batches.map_pixels import map_pixels
from vicinal.data.batches.pixel_batches import EmbeddedBatch, PixelBatches
from vicinal.data.embeddings.shard_manifest import ShardManifest
from vicinal.export.exported_embedder import engine_name
from vicinal.utils.console import track
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding.shard_job import PART_SIZE, ShardJob, shard_job
from vicinal.workflows.sources.embedding_reader import EmbeddingReader


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
        try:
            vectors, errors = next(embedded)
        except InputError as error:
            raise InputError(f"from row {job.manifest.rows[rows.start]}: {error}") from None
        yield EmbeddedBatch(rows.start, vectors, errors, engine)
