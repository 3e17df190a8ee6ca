"""Checks of tables and embeddings before work that would fail later."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


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
    counts = table.class_counts
    if len(counts) == 0:
        raise InputError("no images; training needs images of two classes or more")
    if len(counts) == 1:
        raise InputError(
            f"only one class ({str(table.classes[0])!r}, {counts[0]} images); "
            "training needs images of two classes or more"
        )
    single = [str(name) for name, count in zip(table.classes, counts, strict=True) if count == 1]
    if len(single) == len(counts):
        raise InputError(
            f"all {len(single)} classes have one image ({single[0]!r} and so on); "
            "training on pairs needs classes with two"
        )
    if single:
        others = f", and so have {len(single) - 1} other classes" if len(single) > 1 else ""
        warnings.warn(f"class {single[0]!r} has one image{others}: it can give no positive pair", stacklevel=2)


def check_embeddings(vectors: npt.NDArray[np.floating], num_rows: int, source: str) -> Floats:
    """Check that an array holds finite embeddings, one per row of a table, and convert it to float32.

    Args:
        vectors: `[num_rows, dim]`.
        num_rows: The number of rows of the table.
        source: Where the embeddings come from; errors start with it.

    Raises:
        InputError: The shape, the type or the number of rows is different, or a value is not finite.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        shape = list(vectors.shape)
        raise InputError(f"{source}: {vectors.dtype} {shape}; embeddings are real numbers [rows, dimensions]")
    if len(vectors) != num_rows:
        raise InputError(
            f"{source}: {len(vectors)} embeddings for a table of {num_rows} rows; there must be one per row"
        )
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    invalid = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(invalid):
        others = f" (and {len(invalid) - 1} other rows)" if len(invalid) > 1 else ""
        raise InputError(f"{source}: the embedding of row {invalid[0]}{others} is not finite; every number must be")
    return vectors
