"""Embeddings as a job of Ray Data: images are read on all CPUs of a cluster, and embedded on all its GPUs."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
import socket
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vicinal.data.batches.image_dataset import EmbeddedBatch, ImageDataset, PixelBatches
from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.shard_manifest import ShardManifest
from vicinal.data.table import Table
from vicinal.export.exported_embedder import engine_name
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError, import_extra, one_line
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.shards import PART_SIZE, ShardJob, shard_job

LOCAL, RUNNING = "local", "auto"
ADDRESS = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
CONNECT_SECONDS = 5.0
SETTINGS = {"enable_progress_bars": False, "print_on_execution_start": False}  # of Ray Data
MAX_IMAGE_ATTEMPTS, MAX_EMBED_ATTEMPTS = 2, 5
Block = dict[str, npt.NDArray[Any]]
"""The columns of a block of Ray Data. Each of its rows stands for a whole batch, so that blocks cannot divide one."""


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster for a block, unless the process is connected already; yields the module `ray`."""
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # errors of workers, which are repeated, stay off stdout
    ray = import_extra("ray", "ray", f"--ray {address}")
    if ray.is_initialized():
        yield ray
        return
    check_reachable(address)
    options = {"include_dashboard": False} if address == LOCAL else {}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of its C++ code in this process
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        text = "no cluster runs on this machine" if address == RUNNING else one_line(error, 200)
        raise InputError(f"--ray {address}: {text}; --ray local starts one here") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise InputError unless an address is `local`, `auto` or HOST:PORT."""
    match = ADDRESS.fullmatch(address)
    if address not in (LOCAL, RUNNING) and not (match and 0 < int(match["port"]) < 2**16):
        raise InputError(f"--ray {address}: give local, auto, or HOST:PORT of a Ray cluster")


def check_reachable(address: str) -> None:
    """Find out quickly whether a server is at an address; Ray would try for minutes."""
    check_address(address)
    match = ADDRESS.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"--ray {address}: no Ray cluster there ({error.strerror or error})") from None


def embed_on_ray(
    reader: EmbeddingReader,
    source: str,
    folder: str | Path,
    address: str = LOCAL,
    shard: int = 1,
    num_shards: int = 1,
    split: str | None = None,
    part_size: int = PART_SIZE,
) -> ShardManifest:
    """Embed a source, or one shard of it, on a Ray cluster; the files are those of :func:`embed_shard`.

    Tasks read the images, one batch each, and actors hold the model: one per GPU, or without GPUs as many as the CPUs
    have room for with the threads of PyTorch in this process. This process writes the parts. It can be interrupted or
    killed, and goes on at the last part if it is started again, with or without Ray. A worker that dies is replaced
    and its batch repeated; an image whose reading kills the worker repeatedly is left out like one that is
    unreadable.

    All machines must have Vicinal installed, and see the images and the model under the same paths.

    Args:
        reader: How images become embeddings; `num_workers` is not used. The precision `auto` is that of this machine.
        source: As of :func:`embed_shard`.
        folder: As of :func:`embed_shard`; only this process writes to it.
        address: `local` for a cluster that is started on this machine; `auto` for the one that the machine belongs to;
            or `HOST:PORT` of its head node.
        shard: Number of the shard, from 1.
        num_shards: How many shards the source is divided into.
        split: As of :func:`embed_shard`.
        part_size: Number of images of a part.

    Returns:
        The manifest of the complete shard.

    Raises:
        InputError: The cluster does not exist, its machines differ, or as of :func:`embed_shard`.
        OSError: A file cannot be written, or the job fails on the cluster.
    """
    if reader.device is not None and reader.device.startswith("cuda:"):
        raise InputError(f"--device {reader.device}: Ray chooses the GPUs; give --device cuda, or cpu")
    needs_gpus = reader.device == "cuda"
    reader = replace(reader, device=None if needs_gpus else reader.device)  # this process may have no GPU
    check_address(address)
    reader.check_model(source)  # before a cluster is started
    with ray_cluster(address) as ray, shard_job(reader, source, folder, shard, num_shards, split, part_size) as job:
        try:
            with closing(_RayData(ray, job, needs_gpus).embed()) as embedded:
                return job.complete(track(embedded, "embedding", total=len(job.batches)))
        except ray.exceptions.RayError as error:
            text = f"{one_line(error, 200)}; the same command resumes at the last part"
            raise OSError(errno.EIO, text, f"--ray {address}") from None


@dataclass(frozen=True)
class _RayData:
    """The pipeline of Ray Data that embeds batches of a shard."""

    ray: Any
    job: ShardJob
    needs_gpus: bool  # whether a cluster without GPUs is an error

    @cached_property
    def _reader(self) -> EmbeddingReader:
        """The options without the loaded model, whose paths are absolute ones."""
        model, weights = str(self.job.reader.model), self.job.reader.weights
        return replace(
            self.job.reader,
            model=str(Path(model).resolve()) if Path(model).exists() else model,
            weights=None if weights is None else str(Path(weights).resolve()),
        )

    def embed(self) -> Generator[EmbeddedBatch, None, None]:
        """Yield the missing batches as they are embedded."""
        if not self.job.batches:
            return
        attempts = self.ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
        try:
            with self._settings() as data, closing(self._blocks(data, attempts)) as blocks:
                for block in blocks:
                    for result in from_column(block["embedded"]):
                        if isinstance(result, str):
                            raise InputError(result)
                        yield result
        finally:
            self.ray.kill(attempts)

    def _blocks(self, data: Any, attempts: Any) -> Generator[Any, None, None]:
        """The blocks of the dataset of embeddings, which is computed while they are read."""
        job = self.job
        transform = job.reader.batch_embedder(job.source).transform
        model = (self._reader, job.source, job.manifest.model, torch.get_num_threads(), attempts)
        dataset = (
            data.from_items(self._items(), override_num_blocks=len(job.batches))
            .map_batches(
                read_block, fn_kwargs={"transform": transform, "attempts": attempts}, batch_size=None, num_cpus=1
            )
            .map_batches(EmbedBlock, fn_constructor_args=model, batch_size=None, **self._actors(data))
        )
        yield from dataset.iter_batches(batch_size=None, prefetch_batches=0)

    def _items(self) -> list[dict[str, Any]]:
        frame = self.job.table.frame
        images = Table(frame[[each for each in ("path", *BOX_COLUMNS) if each in frame]])
        return [{"rows": as_column([RowBatch(rows.start, images.take(rows))])[0]} for rows in self.job.batches]

    def _actors(self, data: Any) -> dict[str, Any]:
        """The number of actors, and the resources of the cluster that each takes."""
        has = self.ray.cluster_resources()
        num_cpus, num_gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        if not num_cpus:
            raise InputError("the Ray cluster has no CPUs to read the images")
        if self.needs_gpus and not num_gpus:
            raise InputError("device cuda cannot be used: the Ray cluster has no GPUs")
        if num_gpus and self._reader.device != "cpu":
            log(f"the Ray cluster has {num_cpus:,} CPUs, and {num_gpus:,} GPUs, each with a model")
            return {"compute": data.ActorPoolStrategy(size=num_gpus), "num_cpus": 0, "num_gpus": 1}
        size = max(1, num_cpus // torch.get_num_threads())
        log(f"the Ray cluster has {num_cpus:,} CPUs, which run {size:,} models")
        # Models reserve no CPUs in Ray: on a cluster with few CPUs, reading would wait for them forever.
        return {"compute": data.ActorPoolStrategy(size=size), "num_cpus": 0}

    @contextmanager
    def _settings(self) -> Iterator[Any]:
        """The module `ray.data` with these settings, and without its log."""
        import ray.data as data

        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context = data.DataContext.get_current()
        before = {name: getattr(context, name) for name in SETTINGS}
        try:
            for name, value in SETTINGS.items():
                setattr(context, name, value)
            yield data
        finally:
            for name, value in before.items():
                setattr(context, name, value)


class Attempts:
    """An actor that counts how often a task began and did not end because its process died.

    Ray repeats such a task without limit, and does not tell it about the repetition.
    """

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int]] = Counter()

    def begin(self, what: tuple[str, int]) -> int:
        """Begin a task, and return the number of this attempt, from 1."""
        self._begun[what] += 1
        return self._begun[what]

    def end(self, what: list[tuple[str, int]]) -> None:
        """Forget a finished task."""
        for each in what:
            self._begun.pop(each, None)


@dataclass(frozen=True)
class RowBatch:
    """Images to be read: the first of their rows, and their table."""

    first_row: int
    table: Table


def as_column(values: list[object]) -> npt.NDArray[Any]:
    """Objects as a column of a block."""
    column = np.empty(len(values), dtype=object)
    column[:] = [pickle.dumps(value) for value in values]
    return column


def from_column(column: npt.NDArray[Any]) -> Iterator[Any]:
    """The objects in a column of a block."""
    return (pickle.loads(each) for each in column)


def read_block(block: Block, transform: ImageTransform, attempts: Any) -> Block:
    """The first stage: from a column `rows` with one :class:`RowBatch` to its pixels.

    Returns the columns `pixels`, `[1, b, channels, height, width]`, and `read`, the first row, b and the errors.
    """
    import ray

    (batch,) = from_column(block["rows"])
    whole, rows = ("batch", batch.first_row), range(batch.first_row, batch.first_row + len(batch.table))
    is_repeated = ray.get(attempts.begin.remote(whole)) > 1
    deadly = _deadly_images(batch, transform, attempts) if is_repeated else {}
    positions = [position for position in range(len(rows)) if position not in deadly]
    pixels, errors = PixelBatches(ImageDataset(batch.table, transform), [positions])[0]
    assert isinstance(pixels, torch.Tensor)
    attempts.end.remote([whole, *(("image", row) for row in rows)])
    by_row = {rows[position]: error for position, error in sorted({**errors, **deadly}.items())}
    held = pixels.numpy() if len(pixels) else np.zeros((1, 1, 1, 1), np.uint8)  # Arrow has no tensors without values
    return {"pixels": held[None], "read": as_column([(batch.first_row, len(pixels), by_row)])}


def _deadly_images(batch: RowBatch, transform: ImageTransform, attempts: Any) -> dict[int, str]:
    """The errors of images whose reading ended the process repeatedly; the others are read one by one."""
    import ray

    deadly = {}
    for position, path in enumerate(batch.table.paths):
        image = ("image", batch.first_row + position)
        if ray.get(attempts.begin.remote(image)) > MAX_IMAGE_ATTEMPTS:
            deadly[position] = f"{path}: the process that read it died {MAX_IMAGE_ATTEMPTS} times"
        else:
            _ = PixelBatches(ImageDataset(batch.table, transform), [[position]])[0]
            attempts.end.remote([image])  # arrives before the next image is begun, which is waited for
    return deadly


class EmbedBlock:
    """The second stage: an actor that loads the model on its machine, and maps pixels to embeddings.

    Errors are returned, since Ray would repeat a call that raises an error, or show the traceback.
    """

    def __init__(self, reader: EmbeddingReader, source: str, fingerprint: str, num_threads: int, attempts: Any) -> None:
        import ray

        torch.set_num_threads(num_threads)
        self._attempts, self._failure = attempts, ""
        self._is_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        try:
            self._embed = reader.batch_embedder(source)
            if reader.fingerprint != fingerprint:
                raise InputError(f"{reader.model}: another machine of the cluster has a different model of this name")
        except Exception as error:
            self._failure = one_line(error)

    def __call__(self, block: Block) -> Block:
        """Embed a block of the first stage: a column `embedded` of an :class:`EmbeddedBatch` each, or of errors."""
        rows = zip(block["pixels"], from_column(block["read"]), strict=True)
        return {"embedded": as_column([self._result(pixels, *read) for pixels, read in rows])}

    def _result(
        self, pixels: npt.NDArray[np.uint8], first_row: int, num_images: int, errors: dict[int, str]
    ) -> EmbeddedBatch | str:
        if self._failure or self._cannot_finish(first_row):
            return self._failure or f"from row {first_row}: the process that embeds died {MAX_EMBED_ATTEMPTS} times"
        try:
            vectors = self._embed(torch.from_numpy(np.array(pixels[:num_images])))  # a copy, since Ray's is read-only
        except Exception as error:
            return f"from row {first_row}: {one_line(error)}"
        self._attempts.end.remote([("embedding", first_row)])
        return EmbeddedBatch(first_row, vectors, errors, engine_name(self._embed.engine))

    def _cannot_finish(self, first_row: int) -> bool:
        """Whether this batch killed the process repeatedly; only a restarted process waits for the answer."""
        import ray

        attempt = self._attempts.begin.remote(("embedding", first_row))
        return self._is_restarted and ray.get(attempt) > MAX_EMBED_ATTEMPTS
