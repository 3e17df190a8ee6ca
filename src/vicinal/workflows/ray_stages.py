"""The two stages of embedding on Ray: tasks that read images on CPUs, and actors that hold the model."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from vicinal.data.pixel_batches import EmbeddedBatch, PixelBatches
from vicinal.data.table import Table
from vicinal.data.transforms import ImageTransform
from vicinal.utils.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vicinal.workflows.sources import EmbeddingReader

Block = dict[str, npt.NDArray[Any]]
"""The columns of a block of Ray Data. Each of its rows stands for a whole batch, so that blocks cannot divide one."""


@dataclass(frozen=True)
class RowBatch:
    """Images to be read.

    Args:
        first_row: The first of their rows.
        table: Their table.
        errors: The errors of images that must not be read again, by their positions in the table.
    """

    first_row: int
    table: Table
    errors: dict[int, str] = field(default_factory=dict)

    def read(self, transform: ImageTransform) -> tuple[torch.Tensor, dict[int, str]]:
        """The pixels of the readable images, and the errors of the others by their rows."""
        positions = [position for position in range(len(self.table)) if position not in self.errors]
        pixels, errors = PixelBatches(self.table, transform, [positions])[0]
        by_position = {**errors, **self.errors}
        return pixels, {self.first_row + position: by_position[position] for position in sorted(by_position)}


def as_column(values: list[object]) -> npt.NDArray[Any]:
    """Objects as a column of a block."""
    column = np.empty(len(values), dtype=object)
    column[:] = [pickle.dumps(value) for value in values]
    return column


def from_column(column: npt.NDArray[Any]) -> Iterator[Any]:
    """The objects in a column of a block."""
    return (pickle.loads(each) for each in column)


def read_block(block: Block, transform: ImageTransform) -> Block:
    """The first stage: from batches of rows to their pixels.

    Args:
        block: A column `rows` with one :class:`RowBatch`.
        transform: The transform of the images.

    Returns:
        The columns `pixels`, `[1, b, channels, height, width]`, and `read`, the first row, b and the errors.
    """
    (batch,) = from_column(block["rows"])
    pixels, errors = batch.read(transform)
    held = pixels.numpy() if len(pixels) else np.zeros((1, 1, 1, 1), np.uint8)  # Arrow has no tensors without values
    return {"pixels": held[None], "read": as_column([(batch.first_row, len(pixels), errors)])}


class EmbedBlock:
    """The second stage: an actor that holds the model, and maps pixels to embeddings.

    What goes wrong becomes the result, since Ray would repeat what raises an error, or show the traceback.

    Args:
        reader: How images become embeddings; its model is loaded on the machine of the actor.
        source: What they are the images of.
        fingerprint: That of the model, which must be the same on all machines.
        num_threads: Of PyTorch, on a CPU.
    """

    def __init__(self, reader: EmbeddingReader, source: str, fingerprint: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._failure: str | None = None
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
        if self._failure is not None:
            return self._failure
        try:
            vectors = self._embed(torch.from_numpy(np.array(pixels[:num_images])))  # a copy, since Ray's is read-only
        except Exception as error:
            return f"from row {first_row}: {one_line(error)}"
        return EmbeddedBatch(first_row, vectors, errors)
