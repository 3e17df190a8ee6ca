"""Two segments that are searched as one: a large base that never changes, and a small one of what was added since.

A change copies the small segment only, whatever the size of the base, so that searches go on in the state before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.conditions import matching_rows
from vicinal.retrieval.index.engines.faiss_engine import FaissEngine
from vicinal.retrieval.index.metadata import FILE_COLUMNS, NULLABLE, Metadata
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import UnitVectors
from vicinal.serving.images.paths import shown_path
from vicinal.utils.arrays import Booleans, Floats, Integers

MAX_CONDITIONS = 32  # whose rows of the base are remembered, a byte per row each


class SegmentedEngine(FaissEngine):
    """The vectors of an engine that never changes, and exactly searched ones after them.

    Args:
        base: the engine, of any kind.

    Example:
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> base = FaissEngine.create("exact", vectors)
        >>> base.add(vectors)
        >>> engine = SegmentedEngine(base)
        >>> later = engine.branch()
        >>> later.add(vectors.subset(np.array([1])))
        >>> len(base), len(engine), len(later)
        (3, 3, 4)
        >>> later.search(vectors.subset(np.array([1])), 2, active_ids=np.arange(4)).ids
        array([[1, 3]])
    """

    def __init__(self, base: Any) -> None:
        self.base, self.kind = base, base.kind
        self.added = FaissEngine.create("exact", UnitVectors(np.empty((0, base.dim), np.float32), "vector"))
        self._last_split: tuple[Integers, Integers, Integers] | None = None

    def branch(self) -> SegmentedEngine:
        """Return an engine with the same vectors, to which others can be added."""
        return copy(self)

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return int(self.base.dim)

    def __len__(self) -> int:
        return len(self.base) + len(self.added)

    def add(self, vectors: UnitVectors) -> None:
        """Add vectors, [n, dim]; the engines that this one was branched from stay as they are."""
        added = FaissEngine.from_bytes(self.added.to_bytes())
        added.add(vectors)
        self.added = added

    def take(self, ids: Integers) -> Floats:
        """Return the vectors of these ids, float32 [n, dim]."""
        vectors, is_base = np.empty((len(ids), self.dim), np.float32), ids < len(self.base)
        vectors[is_base] = self.base.take(ids[is_base])
        vectors[~is_base] = self.added.take(ids[~is_base] - len(self.base))
        return vectors

    def search(self, queries: UnitVectors, k: int, active_ids: Integers) -> Neighbors:
        """Find the k nearest vectors of each query, as :meth:`FaissEngine.search` does."""
        old, new = self._split(active_ids)
        scores, ids = [], []
        for engine, active, first in ((self.base, old, 0), (self.added, new, len(self.base))):
            if len(active):
                found = engine.search(queries, min(k, len(active)), active)
                scores.append(found.scores)
                ids.append(found.ids + first)
        if len(ids) == 1:
            return Neighbors(scores[0], ids[0])
        all_scores, all_ids = np.hstack(scores), np.hstack(ids)
        order = np.lexsort((all_ids, -all_scores))[:, :k]
        return Neighbors(np.take_along_axis(all_scores, order, axis=1), np.take_along_axis(all_ids, order, axis=1))

    def _split(self, ids: Integers) -> tuple[Integers, Integers]:
        """The ids of the base, and those of the others as it numbers them; kept for the next search of the same."""
        last = self._last_split
        if last is None or last[0] is not ids:
            boundary = np.searchsorted(ids, len(self.base))
            last = self._last_split = ids, ids[:boundary], ids[boundary:] - len(self.base)
        return last[1], last[2]


class BaseMetadata:
    """The metadata of a base, and which rows fulfill conditions; it never changes.

    Args:
        metadata: of the base.
        root: the folder of the images, in which conditions see their paths; of others they see the file's name.
    """

    def __init__(self, metadata: Metadata, root: str | None) -> None:
        self.metadata, self.root = metadata, root
        self.matching_rows = lru_cache(MAX_CONDITIONS)(self._matching_rows)

    @cached_property
    def searchable(self) -> pd.DataFrame:
        """The columns that conditions see."""
        return searchable_columns(self.metadata.frame, self.root)

    def _matching_rows(
        self, condition: str, aliases: frozenset[tuple[str, str]], more: tuple[tuple[str, object], ...]
    ) -> Booleans:
        """Which rows fulfill a condition; `more` are names and types of columns that they lack."""
        frame = self.searchable.assign(**{
            name: pd.Series(index=self.searchable.index, dtype=dtype)  # type: ignore[call-overload]
            for name, dtype in more
        })  # fmt: skip
        return matching_rows(frame, condition, dict(aliases))


class SegmentedMetadata(Metadata):
    """The rows of a base that are left, and those of items that were added since.

    Args:
        base: of the base.
        is_left: which of its rows are left; None: all.
        added: of the items that were added and are left; None: of none.

    Example:
        >>> base = BaseMetadata(Metadata(pd.DataFrame({"id": [0, 1], "price": [5, 7]})), root=None)
        >>> metadata = SegmentedMetadata(base).without([0])
        >>> metadata = metadata.concat(Metadata(pd.DataFrame({"id": [2], "price": [9]})))
        >>> metadata.ids, metadata.where("price > 5"), metadata.lookup([2])["price"].tolist()
        (array([1, 2]), array([1, 2]), [9])
    """

    def __init__(self, base: BaseMetadata, is_left: Booleans | None = None, added: Metadata | None = None) -> None:
        self.base, self.is_left, self.added = base, is_left, added

    @cached_property
    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """All rows; making it copies the base."""
        left = self.base.metadata.frame
        left = left if self.is_left is None else left[self.is_left].reset_index(drop=True)
        return left if self.added is None else Metadata(left).concat(self.added).frame

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ids(self) -> Integers:
        """The ids, int64 [images]."""
        ids = self.base.metadata.ids
        left = ids if self.is_left is None else ids[self.is_left]
        return left if self.added is None else np.concatenate([left, self.added.ids])

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        added = () if self.added is None else self.added.frame
        return list(dict.fromkeys(map(str, [*self.base.metadata.frame, *added])))

    def positions(self, ids: npt.ArrayLike) -> Integers:
        """Return the rows of these ids, as :meth:`Metadata.positions` does, without comparing with all."""
        given = np.asarray(ids)
        if given.dtype == np.int64 and given.ndim == 1 and len(self.ids):
            rows = np.searchsorted(self.ids, given)
            if np.array_equal(self.ids[np.minimum(rows, len(self.ids) - 1)], given):
                return rows.astype(np.int64)
        return super().positions(ids)

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of these ids, in their order; an unknown id raises InputError."""
        wanted, base = self.ids[self.positions(ids)], self.base.metadata
        rows = np.searchsorted(base.ids, wanted)
        is_base = np.append(base.ids, -1)[rows] == wanted
        found = Metadata(base.frame.iloc[rows[is_base]])
        if self.added is not None:
            added = Metadata(self.added.frame.iloc[np.searchsorted(self.added.ids, wanted[~is_base])])
            found = found.concat(added) if len(found) and len(added) else added if len(added) else found
        order = np.argsort(np.concatenate([np.flatnonzero(is_base), np.flatnonzero(~is_base)]))
        return found.frame.iloc[order].reset_index(drop=True).reindex(columns=self.columns)

    def where(self, condition: str, aliases: Mapping[str, str] | None = None) -> Integers:
        """Return the ids of the images that fulfill a condition on the columns, as :meth:`Metadata.where` does."""
        base, named = self.base.searchable, frozenset((aliases or {}).items())
        if self.added is None:
            rows, added_ids = self.base.matching_rows(condition, named, ()), np.empty(0, np.int64)
        else:
            added = searchable_columns(self.added.frame, self.base.root)
            rows = self.base.matching_rows(condition, named, _missing_columns(base, added))
            lacking = dict(_missing_columns(added, base))
            empty = {name: pd.Series(index=added.index, dtype=dtype) for name, dtype in lacking.items()}  # type: ignore[call-overload]
            added_ids = self.added.ids[matching_rows(added.assign(**empty), condition, aliases)]
        ids = self.base.metadata.ids[rows if self.is_left is None else rows & self.is_left]
        return np.concatenate([ids, added_ids])

    def without(self, ids: npt.ArrayLike) -> SegmentedMetadata:
        """Return the metadata of the images without these ids; an unknown id raises InputError."""
        gone, base_ids = self.ids[self.positions(ids)], self.base.metadata.ids
        rows = np.searchsorted(base_ids, gone)
        is_base = np.append(base_ids, -1)[rows] == gone
        is_left, added = self.is_left, self.added
        if is_base.any():
            is_left = np.ones(len(base_ids), dtype=bool) if is_left is None else is_left.copy()
            is_left[rows[is_base]] = False
        if added is not None and not is_base.all():
            added = added.without(gone[~is_base])
        return SegmentedMetadata(self.base, is_left, added)

    def concat(self, other: Metadata) -> SegmentedMetadata:
        """Return the rows of both."""
        return SegmentedMetadata(self.base, self.is_left, other if self.added is None else self.added.concat(other))


def searchable_columns(frame: pd.DataFrame, root: str | None) -> pd.DataFrame:
    """The columns that conditions see: without those about files, and with paths as the service shows them."""
    frame = frame.drop(columns=[column for column in FILE_COLUMNS if column in frame])
    if "path" not in frame:
        return frame
    paths = frame["path"].map(lambda path: shown_path(path, root), na_action="ignore")
    return frame.assign(path=paths)


def _missing_columns(frame: pd.DataFrame, other: pd.DataFrame) -> tuple[tuple[str, object], ...]:
    """Names and types, with room for missing values, of the columns that only the other frame has."""
    names = [name for name in other if name not in frame]
    return tuple((str(name), NULLABLE.get(other[name].dtype.kind, other[name].dtype)) for name in names)
