"""What pictures of a refiner compare: all embeddings that an evaluation looks at, in the order it has them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.retrieval.sides import Sides

Integers = npt.NDArray[np.int64]


class Compared(NamedTuple):
    """Vectors on the refiner's device, their table, and the rows that they are in the whole table, int64 [n]."""

    vectors: UnitVectors
    table: Table
    rows: Integers


def compared(refiner: ContextRefiner, embeddings: Array, table: Table) -> Compared:
    """All that is evaluated, in the order that :class:`Refinement` has it: the gallery, then queries outside of it."""
    if len(embeddings) != len(table):
        raise InputError(f"{len(embeddings)} embeddings, but a table of {len(table)} rows; give one row an embedding")
    rows = _evaluated_rows(table)
    if not len(rows):
        raise InputError(
            "no embeddings to refine; the table needs rows, and if it has queries and gallery, some of both"
        )
    refiner.check_dim(int(embeddings.shape[1]) if embeddings.ndim == 2 else -1)
    vectors = UnitVectors(embeddings, "embedding", rows, next(refiner.parameters()).device)
    return Compared(vectors, table.take(rows), rows)


def _evaluated_rows(table: Table) -> Integers:
    if not (table.has("is_query") and table.has("is_gallery")):
        return np.arange(len(table))
    of_queries, of_gallery = (table.frame[side].to_numpy(dtype=bool) for side in ("is_query", "is_gallery"))
    return np.concatenate([np.flatnonzero(of_gallery), np.flatnonzero(of_queries & ~of_gallery)])


def one_set(vectors: UnitVectors) -> Sides:
    """All of them searching each other."""
    return Sides(vectors, vectors, np.arange(len(vectors)))
