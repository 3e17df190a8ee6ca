"""Reading an index that a database keeps: what it says about itself, its rows, and searches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.metadata import MAX_ID, Metadata, parse_index_condition
from vicinal.retrieval.index.remote.payload import frame_of_records, id_of_key
from vicinal.retrieval.index.remote.remote_engine import (
    RemoteEngine,
    Rows,
    batch_rows,
)
from vicinal.retrieval.index.remote.remote_facts import RemoteFacts
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError
from vicinal.utils.memory import check_memory


class Selection(NamedTuple):
    """The images that fulfill a condition, as a filter of the database."""

    filter: Any


class RemoteReader(ImageIndex):
    """An index in a database, as far as it is read; :class:`RemoteIndex` changes it too.

    Args:
        engine: the database.
        facts: what the table says about itself.
    """

    def __init__(self, engine: RemoteEngine, facts: Mapping[str, Any]) -> None:
        self._engine = engine
        self._facts = RemoteFacts(
            engine.url,
            facts,
            read=lambda: self._call(self._engine.read_facts),
            write=lambda values: self._call(self._engine.write_facts, values),
        )
        super().__init__()

    _unfinished_table: str | None = None
    _excluded: int | None = None

    @property
    def _table(self) -> str:
        return self._unfinished_table or self._engine.url.table

    @_table.setter
    def _table(self, name: str) -> None:
        self._unfinished_table = None if name == self._engine.url.table else name

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._engine.call(function, self._table, *arguments)

    def close(self) -> None:
        """Give back the connections to the database."""
        self._engine.close()

    # what it is

    @property
    def url(self) -> str:
        """Where it is, without any password."""
        return str(self._engine.url)

    @property
    def kind(self) -> str:
        """How it is searched, such as `hnsw`."""
        return str(self._facts.values["kind"])

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return int(self._facts.values["dim"])

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return ["id", *self._facts.kinds]

    @property
    def root(self) -> str | None:
        """The folder of the images; None if it is unknown."""
        return self._facts.values.get("root")

    @root.setter
    def root(self, root: str | None) -> None:
        self._facts.change(root=root)

    @property
    def model_fingerprint(self) -> str | None:
        """Identifies the model that made the vectors; None if it is unknown."""
        return self._facts.values.get("model_fingerprint")

    @property
    def made_with(self) -> dict[str, str]:
        """The flags of `vicinal index` that made the vectors; empty if they are unknown."""
        return dict(self._facts.values["made_with"])

    def _stored_calibration(self) -> Calibration | None:
        stored = self._facts.values.get("calibration")
        return None if stored is None else Calibration.from_dict(stored)

    def _keep_calibration(self, calibration: Calibration | None) -> None:
        self._facts.change(calibration=None if calibration is None else calibration.to_dict())

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"RemoteIndex({self.url}, {self.kind}, {self.dim} dimensions)"

    def describe(self) -> dict[str, str | float | None]:
        """Return what the index is and contains, ready for JSON."""
        facts: dict[str, Any] = {
            "url": self.url,
            "kind": self.kind,
            "images": len(self),
            "dimensions": self.dim,
            "model_fingerprint": self.model_fingerprint,
        }
        rescore = self._facts.values.get("rescore")
        facts |= {} if rescore is None else {"rescore": rescore}
        return self._with_provenance(facts)

    # search

    def search(
        self,
        vectors: Array,
        k: int,
        refiner: ContextRefiner | None = None,
        query_ids: npt.ArrayLike | None = None,
        among: Any = None,
    ) -> Neighbors:
        """Find the k nearest vectors of each query.

        Args:
            vectors: float [q, dim].
            k: number of neighbors per query.
            refiner: None, as embeddings are not refined.
            query_ids: None, as they are for the refinement of queries.
            among: the images that may be found: what :meth:`select` returned, or ids; None: all.

        Returns:
            Scores and ids. Where an approximate search finds fewer than k, though there are more, -1 stands in place
            of ids, with a score of minus infinity.

        Raises:
            InputError: a vector contains NaN or infinity or has a different dimension, or k is larger than the index.
        """
        self.check_refiner(refiner)
        if query_ids is not None:
            raise InputError("query_ids are for the refinement of queries; this index is not refined")
        queries = UnitVectors(vectors, "query")
        self._check_dim(queries)
        if not (is_integer(k) and 1 <= k <= self._engine.max_k):
            raise InputError(f"k = {k} is impossible in {self._engine.name}; use 1 to {self._engine.max_k:,}")
        selected = self._filter_of(among)
        found = self._call(
            self._engine.search, queries.block(0, len(queries)).cpu().numpy(), int(k), selected, self._facts.values
        )
        if (found.ids < 0).any() and (available := self.count(among, at_most=k)) < k:
            if not available and among is None:
                raise InputError("the index is empty; add images before searching")
            where = f"an index of {available} images" if among is None else f"{available} images to search among"
            raise InputError(f"k = {k} is impossible in {where}; use 1 to {available}")
        return cast(Neighbors, found)

    def select(self, condition: str | None) -> Selection | None:
        """Return the images whose columns fulfill a condition, as a filter that the database evaluates; None: all.

        Raises:
            InputError: it cannot be parsed, or names an unknown column; see :func:`vicinal.data.matching_rows`.
        """
        if condition is None:
            return None
        kinds = self._facts.kinds
        tree = parse_index_condition(condition, kinds, self.column_aliases)
        return Selection(self._engine.call(self._engine.filter, tree, kinds, condition))

    def count(self, among: Any = None, at_most: int | None = None) -> int:
        """Return the number of images among these, or `at_most` if there are more."""
        return int(self._call(self._engine.count, self._filter_of(among), at_most))

    def where(self, condition: str) -> Integers:
        """Return the ids of the images whose columns fulfill a condition, int64 [n], ascending."""
        return self._ids_of(self.select(condition))

    def without(self, number: int) -> Self:
        """Return the index as it is without an image, which stays in the database and in this one."""
        other = copy(self)
        other._excluded = number
        return other

    def _filter_of(self, among: Any) -> Any:
        if among is None or isinstance(among, Selection):
            found = None if among is None else among.filter
        else:
            found = self._engine.id_filter(checked_ids(among))
        return found if self._excluded is None else self._engine.exclude(found, self._excluded)

    # rows

    @property
    def metadata(self) -> Metadata:
        """All rows; they are read from the database whenever this is asked for."""
        return Metadata(self.contents()[1])

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        """Return the rows of these ids, in their order; an unknown id raises InputError, or is left out."""
        given = checked_ids(ids)
        given = given[np.isin(given, self.present(given))] if skip_unknown else given
        return frame_of_records(given, self._rows_of(given).records, self._facts.kinds)

    def present(self, ids: npt.ArrayLike) -> Integers:
        """Return those of some ids that there are, each once, ascending."""
        wanted = np.unique(checked_ids(ids))
        return np.unique(Rows.joined(self._fetched(wanted, {}, vectors=False)).ids)

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        """Return the id of the image of each key, -1 where there is none."""
        ids = np.array([id_of_key(key) for key in keys], dtype=np.int64)
        return np.where(np.isin(ids, self.present(ids)), ids, -1)

    def ids_at(self, path: str) -> Integers:
        """Return the ids of the images of a file, or of those in a folder and below."""
        return self._ids_of(Selection(self._engine.path_filter(path, self._facts.kinds)))

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows of all images, or of those that fulfill a condition, in blocks of ascending ids."""
        yield from self._frames(self.select(condition))

    def _frames(self, selected: Selection | None) -> Iterator[pd.DataFrame]:
        kinds = self._facts.kinds
        for rows in self._pages(selected, kinds):
            yield frame_of_records(rows.ids, rows.records, kinds)

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        """Yield ids and vectors, float32 [n, dim], of all images, in blocks of ascending ids."""
        for rows in self._pages(None, {}, vectors=True):
            assert rows.vectors is not None
            yield rows.ids, rows.vectors

    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        """Return the ids of images that follow a random number; ids have nothing to do with what images show."""
        chosen = np.empty(0, np.int64)
        for after in (int(generator.integers(0, MAX_ID)), -1):
            for rows in self._pages(None, None, after=after):
                chosen = np.union1d(chosen, rows.ids[: number - len(chosen)])
                if len(chosen) >= number:
                    return chosen
        return chosen

    def vectors_of(self, ids: Integers) -> Floats:
        """Return the vectors of some ids, float32 [n, dim]."""
        check_memory(4 * self.dim * len(ids), f"the vectors of {self.url}")
        vectors = self._rows_of(checked_ids(ids), vectors=True).vectors
        assert vectors is not None
        return vectors

    def vectors(self) -> Floats:
        """Return all vectors, in ascending order of ids, float32 [images, dim]."""
        return self.contents()[0]

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        """Return all vectors and all rows, in ascending order of ids."""
        number = len(self)
        check_memory(2 * (4 * self.dim + 500) * number, f"all {number:,} images of {self.url}")
        kinds = self._facts.kinds
        rows = Rows.joined(self._pages(None, kinds, vectors=True), self.dim)
        assert rows.vectors is not None
        return rows.vectors, frame_of_records(rows.ids, rows.records, kinds)

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        """Return the rows of some keys, and those of other images in a folder, or of all with a path."""
        kinds = self._facts.kinds
        wanted = np.unique(np.array([id_of_key(key) for key in keys], dtype=np.int64))
        parts = list(self._fetched(wanted, kinds, vectors=False))
        folder = None if below is None else Selection(self._engine.path_filter(os.path.abspath(below), kinds))
        for rows in self._pages(folder, kinds):
            parts.append(rows.subset(np.flatnonzero(~np.isin(rows.ids, wanted))))
        rows = Rows.joined(parts)
        rows = rows.subset(np.argsort(rows.ids))
        return Metadata(frame_of_records(rows.ids, rows.records, kinds))

    def _ids_of(self, selected: Selection | None) -> Integers:
        return Rows.joined(self._pages(selected, None)).ids

    def _pages(
        self, selected: Selection | None, kinds: Kinds | None, vectors: bool = False, after: int = -1
    ) -> Iterator[Rows]:
        """Yield the selected rows with ids above one in ascending order of ids, a page at a time."""
        size = batch_rows(self.dim if vectors else 0)
        while True:
            rows = self._call(self._engine.page, after, size, self._filter_of(selected), kinds, vectors)
            if len(rows):
                rows = rows.subset(np.argsort(rows.ids))
                yield rows
                after = int(rows.ids[-1])
            if len(rows) < size:
                return

    def _fetched(self, ids: Integers, kinds: Kinds, vectors: bool) -> Iterator[Rows]:
        """Yield the rows of some ids, those that there are."""
        size = batch_rows(self.dim if vectors else 0)
        for start in range(0, len(ids), size):
            yield self._call(self._engine.fetch, ids[start : start + size], kinds, vectors)

    def _rows_of(self, ids: Integers, vectors: bool = False) -> Rows:
        """The rows of some ids, in their order; an unknown id raises InputError."""
        wanted = np.unique(ids)
        fetched = self._fetched(wanted, self._facts.kinds, vectors)
        found = Rows.joined(fetched, self.dim if vectors else None)
        if len(found) < len(wanted):
            missing = wanted[~np.isin(wanted, found.ids)][0]
            raise InputError(f"the index has no id {missing}; it was never given or is deleted")
        order = np.argsort(found.ids)
        return found.subset(order[np.searchsorted(found.ids[order], ids)])


def checked_ids(ids: npt.ArrayLike) -> Integers:
    """Return ids as int64 [n]; raises InputError if one cannot be an id."""
    given = np.asarray(ids, None if hasattr(ids, "dtype") else object).ravel()
    other = [each for each in given.tolist() if not is_integer(each) or not 0 <= each < 2**63]
    if other:
        raise InputError(f"id {other[0]!r} is not an id of an index; ids are integers from 0 to 2**63 - 1")
    return given.astype(np.int64)
