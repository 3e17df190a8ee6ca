"""An index that a database keeps: Milvus, or PostgreSQL with pgvector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds, merged_kinds
from vicinal.data.moved import MAX_PROBES, find_old_root, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.interface import ImageIndex, check_one_row_per_id, checked_vectors
from vicinal.retrieval.index.metadata import MAX_ID, Metadata, frame_of_records, frame_of_table, parse_index_condition
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.payload import converted_record, derived_ids, id_of_key, payload_of
from vicinal.retrieval.index.remote.remote_engine import (
    RETRY_SECONDS,
    EngineUnavailableError,
    RemoteEngine,
    Rows,
    batch_rows,
    connect,
)
from vicinal.retrieval.index.remote.remote_facts import FORMAT, VERSION, RemoteFacts
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.memory import check_memory

UNFINISHED = "_building"  # the end of the name of a table until it has all rows
CONTINUE = "repeat the call, it goes on from there: what was written stays, and nothing is written twice"


class Selection(NamedTuple):
    """The images that fulfill a condition, as a filter of the database."""

    filter: Any


class RemoteIndex(ImageIndex):
    """An index in a database, found by its URL: its vectors are searched there, and never all in memory here.

    The id of an image follows from its path and bounding box, so that adding an image twice replaces it and an
    interrupted call may be repeated. It is a number of 63 bits: among a billion images the chance that any two have
    the same is 5 percent, among a hundred million 0.05; PostgreSQL and Milvus keep the later of the two then.

    All methods of :class:`~vicinal.Index` are there, but it is changed at once and needs no saving. Faults of the
    connection are retried with growing pauses. An index of refined embeddings is kept in a folder only.

    An index is made by :meth:`build` or :meth:`connect`, or by `Index.load` and `Index.open` with a URL.

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
        return str(self._facts.values["kind"])

    @property
    def dim(self) -> int:
        return int(self._facts.values["dim"])

    @property
    def columns(self) -> list[str]:
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
        return self._facts.values.get("model_fingerprint")

    @property
    def made_with(self) -> dict[str, str]:
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
        if condition is None:
            return None
        kinds = self._facts.kinds
        tree = parse_index_condition(condition, kinds, self.column_aliases)
        return Selection(self._engine.call(self._engine.filter, tree, kinds, condition))

    def count(self, among: Any = None, at_most: int | None = None) -> int:
        return int(self._call(self._engine.count, self._filter_of(among), at_most))

    def where(self, condition: str) -> Integers:
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

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        given = checked_ids(ids)
        given = given[np.isin(given, self.present(given))] if skip_unknown else given
        return frame_of_records(given, self._rows_of(given).records, self._facts.kinds)

    def present(self, ids: npt.ArrayLike) -> Integers:
        """Return those of some ids that there are, each once, ascending."""
        wanted = np.unique(checked_ids(ids))
        return np.unique(Rows.joined(self._fetched(wanted, {}, vectors=False)).ids)

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        ids = np.array([id_of_key(key) for key in keys], dtype=np.int64)
        return np.where(np.isin(ids, self.present(ids)), ids, -1)

    def ids_at(self, path: str) -> Integers:
        return self._ids_of(Selection(self._engine.path_filter(path, self._facts.kinds)))

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        yield from self._frames(self.select(condition))

    def _frames(self, selected: Selection | None) -> Iterator[pd.DataFrame]:
        kinds = self._facts.kinds
        for rows in self._pages(selected, kinds):
            yield frame_of_records(rows.ids, rows.records, kinds)

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
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
        check_memory(4 * self.dim * len(ids), f"the vectors of {self.url}")
        vectors = self._rows_of(checked_ids(ids), vectors=True).vectors
        assert vectors is not None
        return vectors

    def vectors(self) -> Floats:
        """Return all vectors, in ascending order of ids, float32 [images, dim]."""
        return self.contents()[0]

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        number = len(self)
        check_memory(2 * (4 * self.dim + 500) * number, f"all {number:,} images of {self.url}")
        kinds = self._facts.kinds
        rows = Rows.joined(self._pages(None, kinds, vectors=True), self.dim)
        assert rows.vectors is not None
        return rows.vectors, frame_of_records(rows.ids, rows.records, kinds)

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
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

    # making and opening

    @classmethod
    def connect(cls, url: str, timeout: float = RETRY_SECONDS) -> Self:
        """Open an index.

        Args:
            url: `milvus://HOST:19530/COLLECTION` or `postgresql://USER@HOST/DATABASE?table=TABLE`. Passwords come from
                the environment: VICINAL_MILVUS_TOKEN; PGPASSWORD or what else libpq reads.
            timeout: seconds during which calls are repeated after faults of the connection.

        Raises:
            InputError: the URL is wrong, there is no index, or the database refuses the connection.
            EngineUnavailableError: the database does not answer.
        """
        with ExitStack() as stack:
            engine = connect(EngineURL.parse(url), timeout)
            stack.callback(engine.close)
            facts = engine.call(engine.read_facts, engine.url.table)
            if facts is None:
                raise InputError(f"{engine.url}: there is no index; build one with `vicinal index build`")
            index = cls(engine, facts)
            stack.pop_all()
            return index

    @classmethod
    def exists(cls, url: str, timeout: float = RETRY_SECONDS) -> bool:
        """Whether there is an index at a URL; raises as :meth:`connect`."""
        with closing(connect(EngineURL.parse(url), timeout)) as engine:
            return engine.call(engine.read_facts, engine.url.table) is not None

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        url: str,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
        made_with: Mapping[str, str] | None = None,
        rescore: int | None = None,
        *,
        root: str | None = None,
        overwrite: bool = False,
        timeout: float = RETRY_SECONDS,
    ) -> RemoteIndex:
        """Build an index of all vectors; until it is complete, it has another name, and an old one is searched.

        If the call is interrupted, the next one with the same vectors goes on where it was.

        Args:
            vectors: float [n, dim].
            table: n rows; of rows with the same path and bounding box the last one counts.
            url: where the index will be.
            kind: as for :meth:`Index.build <vicinal.Index.build>`, those that the database has; `auto` is `hnsw`.
            model_fingerprint: identifies the model that made the vectors.
            made_with: the flags of the command that made the vectors.
            rescore: candidates per neighbor, for `binary` in PostgreSQL.
            root: the folder of the images.
            overwrite: whether to replace an index that is there.
            timeout: as for :meth:`connect`.

        Raises:
            InputError: there is an index already, vectors and table have different lengths, a vector contains NaN or
                infinity, or the database has no such kind.
            EngineUnavailableError: the connection is lost for too long.
        """
        unit = checked_vectors(vectors, table)
        chosen: Kind = "hnsw" if kind == "auto" else kind
        facts: dict[str, Any] = {
            "format": FORMAT, "version": VERSION, "kind": chosen, "dim": unit.dim, "columns": {},
            "model_fingerprint": model_fingerprint, "made_with": dict(made_with or {}), "rescore": rescore,
            "root": root,
        }  # fmt: skip
        with ExitStack() as stack:
            engine = connect(EngineURL.parse(url), timeout)
            stack.callback(engine.close)
            engine.check_build(chosen, unit.dim, rescore)
            if engine.call(engine.read_facts, engine.url.table) is not None and not overwrite:
                raise InputError(f"{engine.url} is an index already; add to it, or overwrite it")
            index, goes_on = cls._begun(engine, facts)
            ids = index._write(unit, table, skip_equal=goes_on)
            if goes_on:
                index._delete_others(ids)
            engine.call(engine.finish, index._table, unit.dim, chosen)
            engine.call(engine.replace, engine.url.table, index._table)
            index._table = engine.url.table
            stack.pop_all()
            return index

    @classmethod
    def _begun(cls, engine: RemoteEngine, facts: dict[str, Any]) -> tuple[RemoteIndex, bool]:
        """An index to be built, and whether an interrupted call with the same facts has begun to."""
        table = engine.url.table + UNFINISHED
        before = engine.call(engine.read_facts, table)
        goes_on = before is not None and {**before, "columns": {}} == facts
        if not goes_on and before is not None:
            engine.call(engine.drop, table)
        engine.call(engine.create, table, facts["dim"], facts["kind"])
        if not goes_on:
            engine.call(engine.write_facts, table, facts)
        index = cls(engine, before if before is not None and goes_on else facts)
        index._table = table
        return index, goes_on

    # changes

    def add(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        return self.upsert(vectors, table, refiner)

    def upsert(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors in place of those of images with the same path and bounding box; return their ids, int64 [n].

        They are written in batches. If the connection is lost for too long, those that were written stay, and the call
        may be repeated.

        Args:
            vectors: float [n, dim].
            table: n rows; of rows with the same path and bounding box the last one counts.
            refiner: None, as embeddings are not refined.

        Raises:
            InputError: vectors and table have different lengths, vectors have a different dimension or contain NaN or
                infinity, or a column has another type than before.
            EngineUnavailableError: the connection was lost; the message says how many images were written.
        """
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        return self._write(unit, table)

    def _write(
        self, unit: UnitVectors, table: Table, skip_equal: bool = False, old_ids: Integers | None = None
    ) -> Integers:
        """Write rows, and return their ids; those without a path keep their old ids, if they have any."""
        frame = frame_of_table(table)
        new_kinds, records = payload_of(frame)
        self._engine.check_records(records)
        kinds = self._extend_columns(new_kinds)
        records = [converted_record(record, kinds) for record in records]
        ids, size = np.empty(len(unit), np.int64), batch_rows(self.dim)
        times: dict[bytes, int] = {}
        for start in range(0, len(unit), size):
            stop = min(start + size, len(unit))
            block = unit.block(start, stop).cpu().numpy()
            ids[start:stop] = derived_ids(frame.iloc[start:stop], block, records[start:stop], times)
        if old_ids is not None:
            ids = np.where(frame["path"].notna(), ids, old_ids) if "path" in frame else old_ids
        _check_distinct(ids, frame)
        last = {number: row for row, number in enumerate(ids.tolist())}
        chosen = np.array(sorted(last.values()), dtype=np.int64)
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            vectors = unit.take(rows).cpu().numpy()
            batch = Rows(ids[rows], [records[row] for row in rows.tolist()], vectors)
            try:
                batch = self._different(batch, kinds) if skip_equal else batch
                if len(batch):
                    self._call(self._engine.write, batch, kinds)
            except EngineUnavailableError as error:
                self._interrupted(error, start, len(chosen))
            if len(chosen) > size:
                log(f"{self.url}: wrote {min(start + size, len(chosen)):,} of {len(chosen):,} images")
        return ids

    def _interrupted(self, error: EngineUnavailableError, done: int, total: int) -> NoReturn:
        message = f"{error.strerror}; {done:,} of {total:,} images were written before: {CONTINUE}"
        raise EngineUnavailableError(self.url, message) from None

    def _different(self, batch: Rows, kinds: Kinds) -> Rows:
        """The rows of a batch that are not in the table as they are."""
        stored = self._call(self._engine.fetch, batch.ids, kinds, True)
        known = {number: row for row, number in enumerate(stored.ids.tolist())}
        assert batch.vectors is not None
        keep = [
            row
            for row, number in enumerate(batch.ids.tolist())
            if number not in known
            or stored.records[known[number]] != batch.records[row]
            or not np.array_equal(stored.vectors[known[number]], batch.vectors[row])
        ]
        return batch.subset(np.array(keep, dtype=np.int64))

    def _delete_others(self, ids: Integers) -> None:
        """Delete what an interrupted call wrote of another table."""
        wanted = np.unique(ids)
        if self.count() > len(wanted):
            for rows in self._pages(None, None):
                self.delete(rows.ids[~np.isin(rows.ids, wanted)])

    def _extend_columns(self, new: Kinds) -> Kinds:
        """Make room for columns of these kinds, and return all."""
        with self._facts.lock:
            self._facts.refresh()
            old = self._facts.kinds
            kinds = merged_kinds(old, new)
            if kinds == old:
                return kinds
            if not self._call(self._engine.set_columns, old, kinds):
                for rows in self._pages(None, old, vectors=True):
                    records = [converted_record(record, kinds) for record in rows.records]
                    self._call(self._engine.write, Rows(rows.ids, records, rows.vectors), kinds)
            self._facts.change(columns={name: kind.to_dict() for name, kind in kinds.items()})
            return kinds

    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images; those that are not there are not missed, as another process may have deleted them."""
        given = checked_ids(ids)
        size = batch_rows(0)
        for start in range(0, len(given), size):
            self._call(self._engine.delete, given[start : start + size])

    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        given = checked_ids(ids)
        check_one_row_per_id(given, table)
        size = batch_rows(self.dim)
        for start in range(0, len(given), size):
            part = given[start : start + size]
            stored = self._rows_of(part, vectors=True)
            assert stored.vectors is not None
            rows = table.take(np.arange(start, start + len(part)))
            new_ids = self._write(UnitVectors(stored.vectors, "stored vector"), rows, old_ids=part)
            self.delete(part[~np.isin(part, new_ids)])

    def move(self, root: str | Path) -> None:
        """Say where the images are after their folder was moved; the folders below it are as they were.

        An interrupted call may be repeated. Images have other ids afterwards.

        Args:
            root: the folder where they are now.

        Raises:
            InputError: the images have no paths, or none of them is in the folder.
        """
        new = os.path.abspath(root)
        if "path" not in self._facts.kinds:
            raise InputError("the images of the index have no paths, so there is nothing to move")
        first = self._call(self._engine.page, -1, MAX_PROBES, None, self._facts.kinds, False)
        old = find_old_root([each["path"] for each in first.records if "path" in each], new, self.root)
        selected = Selection(self._engine.path_filter(old, self._facts.kinds))
        for frame in self._frames(selected):
            paths = [moved_path(path, old, new) for path in frame["path"]]
            self.update(frame["id"].to_numpy(), Table._from_valid(frame.drop(columns="id").assign(path=paths)))
        self.root = new if self.root is None else moved_path(self.root, old, new)


def _check_distinct(ids: Integers, frame: pd.DataFrame) -> None:
    """Check that no two images have the same id by chance."""
    if "path" not in frame:
        return
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0)
    paths = frame["path"].to_numpy(dtype=object)
    for first, second in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        if paths[first] != paths[second]:
            raise InputError(f"{paths[first]} and {paths[second]} have the same id by chance; rename one of them")


def checked_ids(ids: npt.ArrayLike) -> Integers:
    """Return ids as int64 [n]; raises InputError if one cannot be an id."""
    given = np.asarray(ids, None if hasattr(ids, "dtype") else object).ravel()
    other = [each for each in given.tolist() if not is_integer(each) or not 0 <= each < 2**63]
    if other:
        raise InputError(f"id {other[0]!r} is not an id of an index; ids are integers from 0 to 2**63 - 1")
    return given.astype(np.int64)
