"""Cosine similarities of two sets of vectors, computed in blocks, bit for bit the same whatever the block sizes.

A matrix product may add the terms of one entry in a different order when the shapes change, so that equal vectors get
scores that differ in the last bit. Blocks are therefore padded with zeros to whole multiples of a fixed tile: the score
of two vectors then depends on these two vectors only, equal vectors tie, and no result depends on the block size.

On a GPU the products have IEEE precision too, but its library may order additions by the shape, multiples of a tile or
not: there the block size can change the last bits of scores, and the ranks of scores that close.
"""

from __future__ import annotations

import warnings
from collections.abc import Sized
from copy import copy

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.utils.arguments import check_not_masked, is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.devices import ieee_products, tile_elements
from vicinal.utils.errors import InputError
from vicinal.utils.memory import keep_large_blocks

SCORE_BYTES = 64 * 2**20  # of the one block of scores that is held in memory at a time, on a CPU
TILE_ROWS, TILE_COLUMNS = 64, 256  # blocks are padded to multiples of these
BLOCK_ROWS = 4096  # gallery vectors in one matrix product: 8 MB at 512 dimensions

Array = npt.NDArray[np.generic] | Tensor


class UnitVectors:
    """Vectors that are read as float32 rows of length 1, block by block, so that no second copy of all is made.

    Every vector is divided by its own length; a zero vector stays zero and has similarity 0 to every vector.

    Args:
        array: float [n, dim], a numpy array (also a memory map) or a tensor, of any float precision.
        name: the name of one row in error messages, such as ``"query"``.
        rows: int64 [m], the rows of `array` to use; None uses all.
        device: where products are computed; None computes them where `array` lies.

    Raises:
        InputError: `array` is not a matrix of numbers, or a row contains NaN or infinity.

    Example:
        >>> UnitVectors(np.array([[3.0, 4.0]]), "query").block(0, 1)
        tensor([[0.6000, 0.8000]])
    """

    def __init__(
        self, array: Array, name: str, rows: Integers | None = None, device: torch.device | str | None = None
    ) -> None:
        keep_large_blocks()  # blocks of scores are as large as activations
        self._data = _as_tensor(array, name)
        self._rows = None if rows is None else torch.from_numpy(np.array(rows, dtype=np.int64))
        self._units: Tensor | None = None  # all unit vectors, if they are materialized
        self.device = torch.device(device) if device is not None else self._data.device
        self._check_finite(name)

    def __len__(self) -> int:
        return len(self._data) if self._rows is None else len(self._rows)

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return self._data.shape[1]

    @property
    def rows(self) -> Integers:
        """The row of each vector in the array that they are read from, int64 [n]."""
        return np.arange(len(self)) if self._rows is None else self._rows.numpy()

    @property
    def num_rows(self) -> int:
        """Number of rows of the array that they are read from."""
        return len(self._data)

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop` as unit vectors, float32 [stop - start, dim] on the device."""
        if self._units is not None:
            return self._units[start:stop]
        return self._unit(self._data[start:stop] if self._rows is None else self._data[self._rows[start:stop]])

    def take(self, rows: Integers) -> Tensor:
        """Return the given rows as unit vectors, float32 [rows, dim] on the device."""
        indices = torch.from_numpy(rows)
        if self._units is not None:
            return self._units[indices]
        return self._unit(self._data[indices if self._rows is None else self._rows[indices]])

    @classmethod
    def of_units(cls, units: Floats, name: str) -> UnitVectors:
        """Vectors of length 1, unchanged: normalizing them again would change their last bits."""
        vectors = cls(units, name)
        vectors._units = vectors._data
        return vectors

    def materialized(self) -> UnitVectors:
        """Return the same vectors, whose unit vectors are computed once and stay in memory."""
        vectors = copy(self)
        vectors._units = self.block(0, len(self))
        return vectors

    def subset(self, rows: Integers) -> UnitVectors:
        """Return the given rows as `UnitVectors` of their own, without a copy."""
        subset = copy(self)
        subset._units = None
        subset._rows = torch.from_numpy(rows if self._rows is None else self._rows.numpy()[rows])
        return subset

    def _unit(self, rows: Tensor) -> Tensor:
        # Scaled entries are at most 1: their squares neither overflow nor vanish, nor does float64 overflow float32.
        rows = _scaled(rows) if rows.dtype == torch.float64 else rows
        return F.normalize(_scaled(rows.to(self.device, torch.float32)), dim=1)

    def _check_finite(self, name: str) -> None:
        starts = range(0, len(self), BLOCK_ROWS)
        # Infinity over infinity is NaN too. The host waits for a GPU once. Sums allocated between the blocks would
        # fragment the freed memory, so that all blocks would take memory at the same time.
        sums = torch.empty(len(starts), device=self.device)
        for number, start in enumerate(starts):
            torch.sum(self.block(start, start + BLOCK_ROWS), dim=(0, 1), out=sums[number])
        if sums.isnan().any():
            start = starts[int(sums.isnan().nonzero()[0])]
            row = start + int(self.block(start, start + BLOCK_ROWS).sum(dim=1).isnan().nonzero()[0])
            source = row if self._rows is None else int(self._rows[row])
            raise InputError(f"{name} {source} holds NaN or infinity; every embedding must be finite")


def _scaled(vectors: Tensor) -> Tensor:
    return vectors / vectors.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)


class ScoreBuffer:
    """A reused buffer for the scores of up to `rows` queries with up to `columns` gallery vectors."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self._buffer = torch.empty(round_up(rows, TILE_ROWS), round_up(columns, TILE_COLUMNS), device=device)

    def fill(self, queries: Tensor, gallery: UnitVectors, start: int, stop: int) -> Tensor:
        """Scores with gallery rows `start` to `stop`, float32 [queries, stop - start], valid until the next call."""
        padded = _pad(queries, TILE_ROWS)
        for first in range(start, stop, BLOCK_ROWS):
            block = _pad(gallery.block(first, min(first + BLOCK_ROWS, stop)), TILE_COLUMNS)
            columns = slice(first - start, first - start + len(block))
            _product(padded, block, self._buffer[: len(padded), columns])
        return self._buffer[: len(queries), : stop - start]

    def product(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores of two blocks of unit vectors, float32 [queries, gallery], bit for bit those of :meth:`fill`."""
        left, right = _pad(queries, TILE_ROWS), _pad(gallery, TILE_COLUMNS)
        _product(left, right, self._buffer[: len(left), : len(right)])
        return self._buffer[: len(queries), : len(gallery)]


def pair_scores(queries: UnitVectors, gallery: UnitVectors, rows: Integers, columns: Integers) -> Floats:
    """The scores of selected pairs, float32 [pairs], bit for bit those of :class:`ScoreBuffer`.

    `rows`, int64 [pairs], are the queries of the pairs, ascending; `columns`, int64 [pairs], their gallery rows.
    """
    scores = np.empty(len(rows), dtype=np.float32)
    present = np.unique(rows)
    for first in range(0, len(present), TILE_ROWS):
        tile = present[first : first + TILE_ROWS]
        pairs = slice(np.searchsorted(rows, tile[0], "left"), np.searchsorted(rows, tile[-1], "right"))
        scores[pairs] = _tile_scores(queries.take(tile), gallery, np.searchsorted(tile, rows[pairs]), columns[pairs])
    return scores


def _tile_scores(queries: Tensor, gallery: UnitVectors, rows: Integers, columns: Integers) -> Floats:
    """Return the scores of pairs of a few queries, from products with the gallery vectors that occur in them."""
    scores = np.empty(len(rows), dtype=np.float32)
    padded = _pad(queries, TILE_ROWS)
    present, positions = np.unique(columns, return_inverse=True)
    for start in range(0, len(present), BLOCK_ROWS):
        block = _pad(gallery.take(present[start : start + BLOCK_ROWS]), TILE_COLUMNS)
        pairs = np.flatnonzero((positions >= start) & (positions < start + BLOCK_ROWS))
        scores[pairs] = _product(padded, block).cpu().numpy()[rows[pairs], positions[pairs] - start]
    return scores


def _product(queries: Tensor, gallery: Tensor, out: Tensor | None = None) -> Tensor:
    """The inner products of two blocks of vectors at full precision, not in TF32."""
    with ieee_products(queries.device):
        return torch.mm(queries, gallery.T, out=out)


def check_rows(embeddings: Array, table: Sized) -> None:
    """Raise InputError unless a table has one row per embedding."""
    if len(embeddings) != len(table):
        raise InputError(f"{len(embeddings)} embeddings, but a table of {len(table)} rows; give one row per embedding")


def check_same_dim(queries: UnitVectors, gallery: UnitVectors) -> None:
    """Raise InputError when the dimensions of queries and gallery differ."""
    if queries.dim != gallery.dim:
        raise InputError(
            f"queries have {queries.dim} dimensions, the gallery has {gallery.dim}; "
            "both must be embedded by the same model"
        )


def check_chunk_size(chunk_size: int | None) -> None:
    """Raise InputError unless `chunk_size` is an integer of at least 1, or None for the default."""
    if chunk_size is not None and not (is_integer(chunk_size) and chunk_size >= 1):
        raise InputError(f"chunk_size = {chunk_size!r} is invalid; use an integer >= 1, or None for the default")


def rows_within_budget(columns: int, min_rows: int, max_rows: int, device: torch.device) -> int:
    """How many rows of `columns` scores fit into a block: 64 MB on a CPU; on a GPU it follows the memory."""
    elements = SCORE_BYTES // 4 if device.type == "cpu" else tile_elements(device)
    return max(min_rows, min(max_rows, elements // max(columns, 1)))


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def is_numeric(array: Array) -> bool:
    if isinstance(array, Tensor):
        return not (array.is_complex() or array.dtype == torch.bool)
    return array.dtype.kind in "fiu"


def _as_tensor(array: Array, name: str) -> Tensor:
    check_not_masked(array, f"{name} embeddings")
    array = array.detach() if isinstance(array, Tensor) else np.asarray(array)
    if not is_numeric(array):
        raise InputError(f"{name} embeddings are of type {array.dtype}; expected floating-point numbers")
    tensor = array if isinstance(array, Tensor) else _share_memory(array)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise InputError(f"{name} embeddings have shape {list(tensor.shape)}; expected [rows, dimensions]")
    return tensor


def _share_memory(array: npt.NDArray[np.generic]) -> Tensor:
    """Return a tensor on the array's memory where torch supports it (also read-only), else on a native float copy."""
    known = array.dtype.kind == "f" and array.dtype.isnative and array.dtype.itemsize <= 8
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 4
    array = np.ascontiguousarray(array if known else array.astype(np.float64 if wide else np.float32))
    with warnings.catch_warnings():  # torch warns of writes to read-only memory, which never happen here
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _pad(vectors: Tensor, multiple: int) -> Tensor:
    missing = round_up(len(vectors), multiple) - len(vectors)
    return F.pad(vectors, (0, 0, 0, missing)) if missing else vectors
