"""Checks of tables and embeddings before work that would fail later."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.utils.arguments import check_not_masked
from vicinal.utils.arrays import Floats
from vicinal.utils.console import counted
from vicinal.utils.errors import InputError
from vicinal.utils.memory import check_memory, temporary_map

BLOCK_NUMBERS = 2**20  # numbers checked at a time
ROW_BYTES = 64  # minimum memory of a row whose embedding is not in memory: labels, checks and results


def check_trainable(table: Table) -> None:
    """Check that embeddings can be learned from a table, and warn of classes without a positive pair.

    Args:
        table: The training split.

    Raises:
        InputError: The table has no labels, fewer than two classes, or no class with two images.

    Example:
        >>> import pandas as pd
        >>> check_trainable(Table(pd.DataFrame({"label": ["cat", "cat"]})))
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: only one class ('cat', 2 images); training needs images of two classes or more
    """
    check_classes(table)
    single = [str(name) for name, count in zip(table.classes, table.class_counts, strict=True) if count == 1]
    if single:
        others = counted(len(single) - 1, "other class", "other classes")
        others = f", and so have {others}" if len(single) > 1 else ""
        warnings.warn(f"class {single[0]!r} has one image{others}: it can give no positive pair", stacklevel=2)


def check_classes(table: Table) -> None:
    """Check that a table has classes to learn embeddings from."""
    counts = table.class_counts
    if len(counts) == 0:
        raise InputError("no images; training needs images of two classes or more")
    if len(counts) == 1:
        raise InputError(
            f"only one class ({str(table.classes[0])!r}, {counts[0]} images); "
            "training needs images of two classes or more"
        )
    if counts.max() == 1:
        raise InputError(
            f"all {len(counts)} classes have one image ({str(table.classes[0])!r} and so on); "
            "training on pairs needs classes with two"
        )


def check_embeddings(vectors: npt.NDArray[np.floating], num_rows: int, source: str, mapped: bool = False) -> Floats:
    """Check that an array `[num_rows, dim]` holds finite embeddings, one per row of a table, and convert it to float32.

    If `mapped`, a memory map stays one, of its own file or, if the numbers have to be converted, of a temporary file;
    else it is copied. Errors start with `source`.
    """
    check_not_masked(vectors, source)
    is_mapped, vectors = isinstance(vectors, np.memmap), np.asarray(vectors)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        shape = list(vectors.shape)
        raise InputError(f"{source}: {vectors.dtype} {shape}; embeddings are real numbers [rows, dimensions]")
    if len(vectors) != num_rows:
        raise InputError(
            f"{source}: {len(vectors)} embeddings for a table of {num_rows} rows; there must be one per row"
        )
    is_as_needed = vectors.dtype == np.float32 and vectors.flags.c_contiguous
    if mapped and is_mapped:
        check_memory(ROW_BYTES * num_rows, source)
        vectors = vectors if is_as_needed else temporary_map(row_blocks(vectors), vectors.shape, source)
    elif is_mapped or not is_as_needed:
        check_memory(vectors.size * np.dtype(np.float32).itemsize, source)
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
            vectors = np.array(vectors, dtype=np.float32, order="C")
    invalid = np.flatnonzero(~np.concatenate([np.isfinite(block).all(axis=1) for block in row_blocks(vectors)]))
    if len(invalid):
        others = f" (and {len(invalid) - 1} other rows)" if len(invalid) > 1 else ""
        raise InputError(f"{source}: the embedding of row {invalid[0]}{others} is not finite; every number must be")
    return vectors


def row_blocks(vectors: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of a matrix, about a million numbers at a time."""
    step = max(1, BLOCK_NUMBERS // vectors.shape[1])
    yield from (vectors[start : start + step] for start in range(0, len(vectors), step))
