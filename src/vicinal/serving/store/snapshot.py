"""An index as it is at one moment: it is searched without locks, and a change makes another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vicinal.data.table import Table
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.index.searchable import SearchableIndex
from vicinal.serving.store.changes import Change, joined
from vicinal.serving.store.segments import BaseMetadata, SegmentedEngine, SegmentedMetadata
from vicinal.utils.arrays import Floats, Integers


class Snapshot(SearchableIndex):
    """An index that never changes once it is shared; :meth:`after` returns the one after some changes.

    Example:
        >>> import pandas as pd
        >>> index = SearchableIndex.build(np.eye(3), Table(pd.DataFrame({"label": ["cat", "dog", "cow"]})))
        >>> first = Snapshot.of(index)
        >>> later = first.after([Change(3, np.ones((1, 3), np.float32), ({"label": "owl"},)), Change(deleted=(0,))])
        >>> len(first), len(later), later.search(np.ones((1, 3)), k=1).ids, later.where("label == 'owl'")
        (3, 3, array([[3]]), array([3]))
    """

    _engine: SegmentedEngine
    metadata: SegmentedMetadata

    @classmethod
    def of(cls, index: SearchableIndex) -> Snapshot:
        """Return the first snapshot of an index, which must not be changed any more."""
        context = index._context
        if context is not None:
            context = RefinerContext(SegmentedEngine(context.engine), context.refiner_fingerprint)
        metadata = SegmentedMetadata(BaseMetadata(index.metadata, index.root))
        engine = SegmentedEngine(index._engine)
        snapshot = cls(engine, metadata, index.model_fingerprint, context, index.made_with)
        snapshot.root, snapshot._calibration = index.root, index.calibration
        return snapshot

    def after(self, changes: Sequence[Change], refiner: Any = None) -> Snapshot:
        """Return the snapshot after some changes.

        Raises:
            InputError: a vector has another dimension, or there is no item with one of the ids to delete.
        """
        branch = self._branch()
        apply_changes(branch, changes, refiner)
        return branch

    def without(self, number: int) -> Snapshot:
        """Return the snapshot without an item; the same if there is none of this id."""
        return self.after([Change(deleted=(number,))]) if self.has(number) else self

    def has(self, number: int) -> bool:
        """Whether there is an item with this id."""
        return bool(self.present([number]))

    def present(self, ids: Sequence[int]) -> list[int]:
        """Those of some ids that there are, each once."""
        wanted = np.unique(np.array([each for each in ids if each < self.next_id], dtype=np.int64))
        rows = np.searchsorted(self.metadata.ids, wanted)
        return wanted[np.append(self.metadata.ids, -1)[rows] == wanted].tolist()

    @property
    def next_id(self) -> int:
        """The id of the item that is added next."""
        return len(self._engine)

    @property
    def num_added(self) -> int:
        """The number of vectors beside the base."""
        return len(self._engine.added)

    def query_vectors(self, ids: Sequence[int]) -> Floats:
        """The vectors of items as queries, float32 [n, dim]: the unrefined ones of an index that refines queries."""
        given: Integers = np.array(ids, dtype=np.int64)
        return (self._engine if self._context is None else self._context.engine).take(given)

    def _branch(self) -> Snapshot:
        context = self._context
        if context is not None and isinstance(context.engine, SegmentedEngine):
            context = RefinerContext(context.engine.branch(), context.refiner_fingerprint)
        branch = type(self)(self._engine.branch(), self.metadata, self.model_fingerprint, context, self.made_with)
        branch.root, branch._calibration = self.root, self._calibration
        branch._verified_refiner = self._verified_refiner
        return branch


def apply_changes(index: SearchableIndex, changes: Sequence[Change], refiner: Any = None) -> None:
    """Add and delete the items of changes, in an index that nobody searches meanwhile.

    What is added gets the ids that the changes name, if the index has all items before them.
    """
    vectors, frame, deleted = joined(changes, index.dim)
    if len(vectors):
        index.add(vectors, Table._from_valid(frame), refiner)
    if deleted:
        index.delete(deleted)
