"""The two stages of embedding on Ray: tasks that read images on CPUs, and actors that hold the model."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.batches.pixel_batches import EmbeddedBatch, PixelBatches
from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.export.exported_embedder import engine_name
from vicinal.utils.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vicinal.workflows.embedding_reader import EmbeddingReader

MAX_IMAGE_ATTEMPTS, MAX_EMBED_ATTEMPTS = 2, 5

Block = dict[str, npt.NDArray[Any]]
"""The columns of a block of Ray Data. Each of its rows stands for a whole batch, so that blocks cannot divide one."""


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
    """The first stage: from batches of rows to their pixels.

    Args:
        block: A column `rows` with one :class:`RowBatch`.
        transform: The transform of the images.
        attempts: The actor :class:`~vicinal.workflows.ray_job.Attempts`.

    Returns:
        The columns `pixels`, `[1, b, channels, height, width]`, and `read`, the first row, b and the errors.
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
    """The errors of images whose reading ended the process again and again; the others are read one by one."""
    import ray

    deadly = {}
    for position, path in enumerate(batch.table.paths):
        image = ("image", batch.first_row + position)
        if ray.get(attempts.begin.remote(image)) > MAX_IMAGE_ATTEMPTS:
            deadly[position] = f"{path}: the process that reads it ended {MAX_IMAGE_ATTEMPTS} times"
        else:
            _ = PixelBatches(ImageDataset(batch.table, transform), [[position]])[0]
            attempts.end.remote([image])  # arrives before the next image is begun, which is waited for
    return deadly


class EmbedBlock:
    """The second stage: an actor that holds the model, and maps pixels to embeddings.

    What goes wrong becomes the result, since Ray would repeat what raises an error, or show the traceback.

    Args:
        reader: How images become embeddings; its model is loaded on the machine of the actor.
        source: What they are the images of.
        fingerprint: That of the model, which must be the same on all machines.
        num_threads: Of PyTorch, on a CPU.
        attempts: The actor :class:`~vicinal.workflows.ray_job.Attempts`.
    """

    def __init__(self, reader: EmbeddingReader, source: str, fingerprint: str, num_threads: int, attempts: Any) -> None:
        import ray

        torch.set_num_threads(num_threads)
        self._attempts, self._failure = attempts, ""
        self._is_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        try:
            self._embed = reader.batch_embedder(source)
            if reader.fingerprint != fingerprint:
                raise InputError(f"{reader.model}: another machine of the cluster has another model of this name")
        except Exception as error:
            self._failure = one_line(error)

    def __call__(self, block: Block) -> Block:
        """Embed a block of the first stage.

        Returns:
            A column `embedded` of an :class:`EmbeddedBatch` each, or else of a text, the error.
        """
        rows = zip(block["pixels"], from_column(block["read"]), strict=True)
        return {"embedded": as_column([self._result(pixels, *read) for pixels, read in rows])}

    def _result(
        self, pixels: npt.NDArray[np.uint8], first_row: int, num_images: int, errors: dict[int, str]
    ) -> EmbeddedBatch | str:
        if self._failure or self._cannot_finish(first_row):
            return self._failure or f"from row {first_row}: the process that embeds ended {MAX_EMBED_ATTEMPTS} times"
        try:
            vectors = self._embed(torch.from_numpy(np.array(pixels[:num_images])))  # a copy, since Ray's is read-only
        except Exception as error:
            return f"from row {first_row}: {one_line(error)}"
        self._attempts.end.remote([("embedding", first_row)])
        return EmbeddedBatch(first_row, vectors, errors, engine_name(self._embed.engine))

    def _cannot_finish(self, first_row: int) -> bool:
        """Whether the process died of this batch again and again. Only one that was restarted waits to know."""
        import ray

        attempt = self._attempts.begin.remote(("embedding", first_row))
        return self._is_restarted and ray.get(attempt) > MAX_EMBED_ATTEMPTS
