"""Embedding images in several processes of this machine, one per GPU, or on the CPU."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import torch

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.table import Table
from vicinal.training.divided_work import divided_rows, embed_rows
from vicinal.training.interrupt import killing_children, start_worker
from vicinal.training.torchrun import MIN_CPU_PROCESSES
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, TrainingStoppedError
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.models import load_model, usable_device


def embed_in_processes(reader: EmbeddingReader, images: ImageDataset, num_processes: int) -> Floats:
    """Embed images by the model of a reader, a part of the batches in each process.

    The batches are those of one process, and so the embeddings are, on the same kind of device. Each process loads the
    model. On a CPU the threads of PyTorch are divided among the processes, and fewer threads may change the last bits.

    Args:
        reader: its options are those of each process, but for the device.
        images: those that cannot be read are left out of them if the reader skips such images.
        num_processes: how many processes.

    Returns:
        float32 [n, dim].

    Raises:
        InputError: this machine has fewer GPUs, or an image or the model cannot be read.
        TrainingStoppedError: one of the processes was killed.
    """
    device = usable_device(reader.device)
    check_devices(device, num_processes)
    parts = [rows for rows in divided_rows(len(images), reader.batch_size, num_processes) if len(rows)]
    log(f"embedding {len(images):,} images in {len(parts)} processes")
    devices = [f"cuda:{number}" if device == "cuda" else device for number in range(len(parts))]
    options = replace(reader, precision=reader.used_precision)
    # The model is exported for the engine, if it is at all, before several processes would do so.
    reader.with_engine(reader.loaded_model, len(parts[0]))
    num_threads = max(1, torch.get_num_threads() // len(parts))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(parts), context, initializer=start_worker, initargs=(0,))
    with killing_children():  # which ignore Ctrl-C
        try:
            tasks = [
                pool.submit(_embed_part, replace(options, device=each), images.table, rows, num_threads)
                for each, rows in zip(devices, parts, strict=True)
            ]
            pool.submit(int)  # wakes the thread that watches the processes, which may not know the last one yet
            for task in as_completed(tasks):  # an error of any of them ends all at once
                task.result()
            vectors, errors = zip(*(task.result() for task in tasks), strict=True)
        except BrokenProcessPool:
            raise TrainingStoppedError("a process that embeds images was killed; start the command again") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    images.leave_out({row: error for part in errors for row, error in part.items()})
    return np.concatenate(vectors)


def check_devices(device: str, num_processes: int) -> None:
    """Raise InputError if this machine has not as many GPUs, or too few cores."""
    on_gpu = device.startswith("cuda")
    limit = torch.cuda.device_count() if on_gpu else max(MIN_CPU_PROCESSES, os.cpu_count() or 1)
    if num_processes > limit:
        raise InputError(f"devices = {num_processes} must be at most {limit} on this machine")


def _embed_part(
    options: EmbeddingReader, table: Table, rows: range, num_threads: int
) -> tuple[Floats, dict[int, InputError]]:
    """Embed some rows, in a process of their own: the embeddings, and the errors of rows that are skipped."""
    torch.set_num_threads(num_threads)
    model = load_model(str(options.model), options.pooling, options.allow_import or (), options.weights)
    model.to(str(options.device))
    errors: dict[int, InputError] = {}
    vectors = embed_rows(
        options.with_engine(model, len(rows)),
        ImageDataset(table, model.transform),
        rows,
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        precision=options.precision,
        errors=errors if options.on_error == "skip" else None,
    )
    return vectors, errors
