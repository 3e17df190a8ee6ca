"""Work that the processes of a run divide among themselves: embedding images, and ranking them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch.utils.data import DataLoader

from vicinal.data import ImageDataset, Table
from vicinal.data.images import TestBatches
from vicinal.evaluation import evaluate, query_gallery_rows
from vicinal.evaluation.metrics import metrics_by_name
from vicinal.models import Embedder
from vicinal.models.precision import Precision
from vicinal.training.interrupt import start_worker
from vicinal.utils import distributed
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


def divided_rows(length: int, batch_size: int) -> list[range]:
    """The rows of each process: whole batches in their order, as evenly as that allows.

    The batches are those of one process, so that an embedding does not depend on the number of processes.
    """
    bounds = np.linspace(0, -(-length // batch_size), distributed.world_size() + 1).round().astype(int) * batch_size
    return [range(min(first, length), min(last, length)) for first, last in pairwise(bounds.tolist())]


def embed_rows(
    embedder: Embedder, images: ImageDataset, rows: range, *, batch_size: int, num_workers: int, precision: Precision
) -> Floats:
    """Embed some consecutive images without a progress bar, float32 [rows, dim]; arguments as `Embedder.embed`."""
    part = images if len(rows) == len(images) else images.subset(np.arange(rows.start, rows.stop))
    batches = TestBatches(part, batch_size)
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=min(num_workers, len(batches)) if len(batches) > 1 else 0,
        worker_init_fn=start_worker,
        pin_memory=next(embedder.parameters()).device.type == "cuda",
    )
    return embedder.embed_batches((item["images"] for item in loader), precision, first_row=rows.start)


def embed_own_part(length: int, batch_size: int, embed: Callable[[range], Floats]) -> tuple[range, Floats]:
    """Embed this process's part of the images in as many batches as the other processes embed theirs.

    Sharded weights are gathered for every batch, in which all processes take part: one with a batch less than others
    embeds an image for nothing.

    Args:
        length: number of images, n.
        batch_size: images per batch.
        embed: function of the rows of a part that returns their embeddings, float32 [rows, dim].

    Returns:
        The rows of the part, and their embeddings.
    """
    parts = divided_rows(length, batch_size)
    rows = parts[distributed.rank()]
    vectors = embed(rows)
    if -(-len(rows) // batch_size) < -(-max(map(len, parts)) // batch_size):
        embed(range(1))
    return rows, vectors


def embed_divided(length: int, batch_size: int, embed: Callable[[range], Floats]) -> Floats:
    """Embed images in parts, one per process, and gather them on all processes.

    Arguments are those of :func:`embed_own_part`.

    Returns:
        float32 [n, dim].
    """
    _, own = embed_own_part(length, batch_size, embed)
    lengths = [len(part) for part in divided_rows(length, batch_size)]
    return distributed.all_gather_parts(torch.from_numpy(own), lengths).numpy()


def evaluate_divided(
    vectors: Floats, table: Table, recall_at: Sequence[int] | None = None, metrics: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics of :func:`vicinal.evaluation.evaluate`; each process ranks the gallery for a part of the queries.

    They are those of one process to the last digit: the scores of all queries are put together before they are
    averaged.
    """
    if distributed.world_size() == 1:
        return evaluate(vectors, table, recall_at, metrics=metrics).metrics
    query_rows, gallery_rows = query_gallery_rows(table)
    names = list(metrics_by_name(recall_at, metrics, max_k=len(gallery_rows) - (not table.has("is_query"))))
    parts = np.array_split(query_rows, distributed.world_size())
    own = parts[distributed.rank()]
    scores = torch.full((len(own), len(names)), torch.nan, dtype=torch.float64)
    if len(own):
        rows = np.arange(len(table))
        searched = {"is_query": np.isin(rows, own), "is_gallery": np.isin(rows, gallery_rows)}
        try:
            found = evaluate(vectors, Table(table.frame.assign(**searched)), recall_at, metrics=metrics).per_query
            scores = torch.from_numpy(np.stack([found[name] for name in names], axis=1))
        except InputError:  # none of these queries has a positive
            pass
    scores = distributed.all_gather_parts(scores, [len(part) for part in parts])
    if scores.isnan().all():
        return evaluate(vectors, table, recall_at, metrics=metrics).metrics  # says what is wrong
    columns = scores.T.contiguous().numpy()  # averaged one by one, in the order of one process
    return {name: float(np.nanmean(values)) for name, values in zip(names, columns, strict=True)}
