"""An index that a database keeps: Milvus, or PostgreSQL with pgvector."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds
from vicinal.data.moved import MAX_PROBES, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.interface import ImageIndex, checked_ids, checked_vectors, invalid_k_error
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.metadata import MAX_ID, Metadata, frame_of_records, parse_index_condition
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import RETRY_SECONDS, RemoteEngine, Rows, batch_rows, connect
from vicinal.retrieval.index.remote.remote_generation import RemoteGeneration
from vicinal.retrieval.index.remote.remote_table import FORMAT, UNFINISHED, VERSION, RemoteTable, id_of_key
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import IndexExistsError, InputError
from vicinal.utils.memory import check_memory


class Selection(NamedTuple):
    """The images that fulfill a condition, as a filter of the database."""

    filter: Any


class RemoteIndex(ImageIndex):
    """An index in a database, found by its URL: its vectors are searched there, and never all in memory here.

    The id of an image follows from its path and bounding box, so that adding an image twice replaces it and an
    interrupted call may be repeated. It is a number of 63 bits: among a billion images the chance that any two have
    the same is 5 percent, among a hundred million 0.05; PostgreSQL and Milvus keep the later of the two then.

    It has the methods of :class:`~vicinal.retrieval.ImageIndex`; changes are immediate and need no saving. Faults of
    the connection are retried with growing pauses; if it is lost for too long, what was written stays, and the call
    may be repeated. Images have other ids after their folder was moved. An index of refined embeddings is kept in a
    folder only.

    An index is made by :meth:`build` or :meth:`connect`, or by `Index.load` and `Index.open` with a URL.

    Args:
        engine: the database.
        facts: kind, dimension, columns and other settings of the index.
    """

    def __init__(self, engine: RemoteEngine, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self._engine, self._table = engine, RemoteTable(engine, facts, self._check_connection)
        self._excluded: int | None = None

    def _check_connection(self) -> None:
        """May raise EngineUnavailableError before a call."""

    def close(self) -> None:
        self._engine.close()

    # its settings

    @property
    def url(self) -> str:
        """Where it is, without any password."""
        return str(self._engine.url)

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self._table.facts.values

    def _change_settings(self, **settings: Any) -> None:
        self._table.facts.change(**settings)

    @property
    def column_kinds(self) -> Kinds:
        return self._table.facts.kinds

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"RemoteIndex({self.url}, {self.kind}, {self.dim} dimensions)"

    def _further_facts(self) -> dict[str, Any]:
        return {"url": self.url}

    # search

    def _search(
        self, queries: UnitVectors, k: int, refiner: ContextRefiner | None, query_ids: npt.ArrayLike | None, among: Any
    ) -> Neighbors:
        if query_ids is not None:
            raise InputError("query_ids are for the refinement of queries; this index is not refined")
        if not (is_integer(k) and 1 <= k <= self._engine.max_k):
            raise InputError(f"k = {k} is invalid in {self._engine.name}; use 1 to {self._engine.max_k:,}")
        vectors, selected = queries.block(0, len(queries)).cpu().numpy(), self._engine_filter(among)
        found: Neighbors = self._table.call(self._engine.search, vectors, int(k), selected, self._settings)
        if (found.ids < 0).any() and (available := self.count(among, at_most=k)) < k:
            raise invalid_k_error(k, available, among is not None)
        return found

    def select(self, condition: str | None) -> Selection | None:
        if condition is None:
            return None
        kinds = self.column_kinds
        tree = parse_index_condition(condition, kinds, self.column_aliases)
        return Selection(self._engine.call(self._engine.filter, tree, kinds, condition))

    def count(self, among: Any = None, at_most: int | None = None) -> int:
        return int(self._table.call(self._engine.count, self._engine_filter(among), at_most))

    def where(self, condition: str) -> Integers:
        return self._ids_of(self.select(condition))

    def without(self, number: int) -> Self:
        """Return the index as it is without an image, which stays in the database and in this one."""
        other = copy(self)
        other._excluded = number
        return other

    def _engine_filter(self, among: Any) -> Any:
        if among is None or isinstance(among, Selection):
            where = None if among is None else among.filter
        else:
            where = self._engine.id_filter(checked_ids(among))
        return where if self._excluded is None else self._engine.exclude(where, self._excluded)

    # rows

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        given = checked_ids(ids)
        given = given[np.isin(given, self.present(given))] if skip_unknown else given
        return frame_of_records(given, self._table.lookup(given).records, self.column_kinds)

    def present(self, ids: npt.ArrayLike) -> Integers:
        wanted = np.unique(checked_ids(ids))
        return np.unique(Rows.joined(self._table.fetched(wanted, {}, vectors=False)).ids)

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        ids = np.array([id_of_key(key) for key in keys], dtype=np.int64)
        return np.where(np.isin(ids, self.present(ids)), ids, -1)

    def ids_at(self, path: str) -> Integers:
        return self._ids_of(Selection(self._engine.path_filter(path, self.column_kinds)))

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        frames = self._frames(self.select(condition))
        yield next(frames, frame_of_records(np.empty(0, np.int64), [], self.column_kinds))
        yield from frames

    def _frames(self, selected: Selection | None) -> Iterator[pd.DataFrame]:
        kinds = self.column_kinds
        for rows in self._pages(selected, kinds):
            yield frame_of_records(rows.ids, rows.records, kinds)

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        for rows in self._pages(None, {}, vectors=True):
            assert rows.vectors is not None
            yield rows.ids, rows.vectors

    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        """Return the ids of images that follow a random number; ids do not depend on the content of images."""
        sampled = np.empty(0, np.int64)
        for after in (int(generator.integers(0, MAX_ID)), -1):
            for rows in self._pages(None, None, after=after):
                sampled = np.union1d(sampled, rows.ids[: number - len(sampled)])
                if len(sampled) >= number:
                    return sampled
        return sampled

    def local_codes(self, ids: Integers) -> dict[int, bytes]:
        if self.local_settings is None or not len(ids):
            return {}
        return self._table.call(self._engine.codes, self.local_settings.get("encoder"), ids)

    def store_local_codes(self, settings: Mapping[str, Any]) -> None:
        self._table.call(self._engine.create_codes, settings.get("encoder"))
        self._change_settings(local_features=dict(settings))

    def add_local_codes(self, ids: Integers, codes: Sequence[bytes], settings: Mapping[str, Any] | None = None) -> None:
        settings = settings or self.local_settings or {}
        self._table.call(self._engine.write_codes, settings.get("encoder"), ids, codes)

    def ids_without_local_codes(self, settings: Mapping[str, Any] | None = None) -> Integers:
        settings = settings or self.local_settings
        missing = None if settings is None else Selection(self._engine.without_codes(settings.get("encoder")))
        return self._ids_of(missing)

    def vectors_of(self, ids: Integers) -> Floats:
        check_memory(4 * self.dim * len(ids), f"the vectors of {self.url}")
        vectors = self._table.lookup(checked_ids(ids), vectors=True).vectors
        assert vectors is not None
        return vectors

    def vectors(self) -> Floats:
        return self.contents()[0]

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        number = len(self)
        check_memory(2 * (4 * self.dim + 500) * number, f"all {number:,} images of {self.url}")
        kinds = self.column_kinds
        rows = Rows.joined(self._pages(None, kinds, vectors=True), self.dim)
        assert rows.vectors is not None
        return rows.vectors, frame_of_records(rows.ids, rows.records, kinds)

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        kinds = self.column_kinds
        wanted = np.unique(np.array([id_of_key(key) for key in keys], dtype=np.int64))
        parts = list(self._table.fetched(wanted, kinds, vectors=False))
        folder = None if below is None else Selection(self._engine.path_filter(os.path.abspath(below), kinds))
        for rows in self._pages(folder, kinds):
            parts.append(rows.subset(np.flatnonzero(~np.isin(rows.ids, wanted))))
        rows = Rows.joined(parts)
        rows = rows.subset(np.argsort(rows.ids))
        return Metadata(frame_of_records(rows.ids, rows.records, kinds))

    def ids(self) -> Integers:
        """The ids of all images, int64 [n], ascending."""
        return self._ids_of(None)

    def _ids_of(self, selected: Selection | None) -> Integers:
        return Rows.joined(self._pages(selected, None)).ids

    def _pages(
        self, selected: Selection | None, kinds: Kinds | None, vectors: bool = False, after: int = -1
    ) -> Iterator[Rows]:
        return self._table.pages(self._engine_filter(selected), kinds, vectors, after)

    # making and opening

    @classmethod
    def connect(cls, url: str, timeout: float = RETRY_SECONDS) -> Self:
        """Open an index.

        Args:
            url: `milvus://HOST:19530/COLLECTION` or `postgresql://USER@HOST/DATABASE?table=TABLE`. Passwords come from
                the environment: VICINAL_MILVUS_TOKEN; PGPASSWORD or what else libpq reads.
            timeout: seconds during which calls are repeated after faults of the connection.

        Raises:
            InputError: the URL is wrong, the index does not exist, or the database refuses the connection.
            EngineUnavailableError: the database does not answer.
        """
        with ExitStack() as stack:
            engine = connect(EngineURL.parse(url), timeout)
            stack.callback(engine.close)
            if (facts := engine.call(engine.read_facts, engine.url.table)) is None:
                raise InputError(f"{engine.url}: no such index; build one with `vicinal index build`")
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

        If the call is interrupted, the next one with the same vectors continues where it stopped.

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
            InputError: there is an index already, or in PostgreSQL another process builds it; vectors and table have
                different lengths, a vector contains NaN or infinity, or the database has no such kind.
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
            with engine.only_one(engine.url.table):
                if engine.call(engine.read_facts, engine.url.table) is not None and not overwrite:
                    raise IndexExistsError(engine.url)
                index, is_resumed = cls._begin_build(engine, facts)
                ids = index._table.write(unit, table, skip_equal=is_resumed)
                if is_resumed:
                    index._table.delete_others(ids)
                index._table.call(engine.finish, unit.dim, chosen)
                engine.call(engine.replace, engine.url.table, index._table.name)
            index._table.name = engine.url.table
            stack.pop_all()
            return index

    @classmethod
    def _begin_build(cls, engine: RemoteEngine, facts: dict[str, Any]) -> tuple[RemoteIndex, bool]:
        """An index to be built, and whether an interrupted call with the same facts began to build it."""
        table = engine.url.table + UNFINISHED
        old_facts = engine.call(engine.read_facts, table)
        is_resumed = old_facts is not None and {**old_facts, "columns": {}} == facts
        if not is_resumed and old_facts is not None:
            engine.call(engine.drop, table)
        engine.call(engine.create, table, facts["dim"], facts["kind"])
        if not is_resumed:
            engine.call(engine.write_facts, table, facts)
        index = cls(engine, old_facts if old_facts is not None and is_resumed else facts)
        index._table.name = table
        return index, is_resumed

    def follow(self, facts: Mapping[str, Any]) -> None:
        """Search and write another generation from now on, by the facts of the index; no thread writes meanwhile."""
        self._table.facts.accept(facts)
        self._engine.generation = facts.get("generation")

    def generation(self, own: Mapping[str, Any]) -> RemoteGeneration:
        """Other vectors of the images, by the facts that a generation has of its own."""
        engine = connect(self._engine.url, self._engine.timeout)
        return RemoteGeneration(engine, self._table.name, dict(self._settings), own)

    @property
    def timeout(self) -> float:
        """Seconds during which calls are repeated after faults of the connection."""
        return self._engine.timeout

    @property
    def previous(self) -> Mapping[str, Any] | None:
        """The facts of the generation that was searched before the last upgrade; None if there was none."""
        return self._settings.get("previous")

    # changes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes are made together at its end, or none of them; in Milvus, each is made at once.

        Raises:
            EngineUnavailableError: the connection is lost within it.
        """
        facts = self._table.facts
        before = facts.values
        try:
            with self._engine.transaction(self._table.name):
                facts.refresh()  # another transaction may have changed them until this one began
                yield
        except BaseException:
            facts.restore(before)
            raise

    def _add(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        return self._table.write(unit, table)

    def _upsert(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        return self._table.write(unit, table)

    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images; unknown ids are ignored, as another process may have deleted them."""
        self._table.delete(checked_ids(ids))

    def _update(self, ids: Integers, table: Table) -> None:
        size = batch_rows(self.dim)
        for start in range(0, len(ids), size):
            batch_ids = ids[start : start + size]
            stored = self._table.lookup(batch_ids, vectors=True)
            assert stored.vectors is not None
            rows = table.take(np.arange(start, start + len(batch_ids)))
            new_ids = self._table.write(UnitVectors(stored.vectors, "stored vector"), rows, old_ids=batch_ids)
            self.delete(batch_ids[~np.isin(batch_ids, new_ids)])

    def _some_paths(self) -> list[str]:
        first = self._table.call(self._engine.page, -1, MAX_PROBES, None, self.column_kinds, False)
        return [each["path"] for each in first.records if "path" in each]

    def _move(self, old: str, new: str) -> None:
        # All ids first: where the new folder is below the old one, moved images would be found again.
        ids = self._ids_of(Selection(self._engine.path_filter(old, self.column_kinds)))
        size = batch_rows(self.dim)
        for start in range(0, len(ids), size):
            frame = self.lookup(ids[start : start + size], skip_unknown=True)
            paths = [moved_path(path, old, new) for path in frame["path"]]
            self.update(frame["id"].to_numpy(), Table._from_valid(frame.drop(columns="id").assign(path=paths)))
