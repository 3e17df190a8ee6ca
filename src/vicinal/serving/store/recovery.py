"""What a service that ended without saving its index has left in the journal, for the next one to make up for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vicinal.serving.store.changes import Change
from vicinal.serving.store.snapshot import Snapshot
from vicinal.utils.errors import InputError

TOLERANCE = 1e-4  # of the values of vectors that are the same


def unapplied_changes(index: Snapshot, changes: Sequence[Change], folder: Path) -> list[Change]:
    """The changes of a journal that an index does not have yet.

    Raises:
        InputError: the journal is of another index.
    """
    left, next_id = [], index.next_id
    gone: set[int] = set()
    for change in changes:
        if change.rows and change.first_id + len(change.rows) <= index.next_id:
            is_same = change.vectors.shape[1] == index.dim and _are_same(index, change)
        else:
            is_same = not change.rows or (change.first_id == next_id and change.vectors.shape[1] == index.dim)
            next_id += len(change.rows)
            new = range(index.next_id, next_id)
            there = {*index.present(change.deleted), *({*change.deleted} & {*new})} - gone
            gone |= there
            left += [replace(change, deleted=tuple(sorted(there)))] if change.rows or there else []
        if not is_same:
            raise InputError(
                f"{folder}: another program has changed the index while changes of the service were in its journal "
                f"({folder / 'journal-*.log'}); move the journal away to serve the index without them"
            )
    return left


def _are_same(index: Snapshot, change: Change) -> bool:
    """Whether the vectors of a change are in the index; where it keeps others, that is not known."""
    if index.kind not in ("exact", "hnsw") or index.refiner_fingerprint is not None:
        return True
    lengths = np.linalg.norm(change.vectors, axis=1, keepdims=True)
    unit = np.divide(change.vectors, lengths, out=np.zeros_like(change.vectors), where=lengths > 0)
    return bool(np.abs(index.query_vectors(change.ids) - unit).max(initial=0) < TOLERANCE)
