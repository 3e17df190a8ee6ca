"""An index that a database keeps: Milvus, or PostgreSQL with pgvector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds, merged_kinds
from vicinal.data.moved import MAX_PROBES, find_old_root, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.interface import check_one_row_per_id, checked_vectors
from vicinal.retrieval.index.metadata import frame_of_table
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.payload import converted_record, derived_ids, payload_of
from vicinal.retrieval.index.remote.remote_engine import (
    RETRY_SECONDS,
    EngineUnavailableError,
    RemoteEngine,
    Rows,
    batch_rows,
    connect,
)
from vicinal.retrieval.index.remote.remote_facts import FORMAT, VERSION
from vicinal.retrieval.index.remote.remote_reader import RemoteReader, Selection, checked_ids
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

UNFINISHED = "_building"  # the end of the name of a table until it has all rows
CONTINUE = "repeat the call, it goes on from there: what was written stays, and nothing is written twice"


class RemoteIndex(RemoteReader):
    """An index in a database, found by its URL: its vectors are searched there, and never all in memory here.

    The id of an image follows from its path and bounding box, so that adding an image twice replaces it and an
    interrupted call may be repeated. It is a number of 63 bits: among a billion images the chance that any two have
    the same is 5 percent, among a hundred million 0.05; PostgreSQL and Milvus keep the later of the two then.

    All methods of :class:`~vicinal.Index` are there, but it is changed at once and needs no saving. Faults of the
    connection are retried with growing pauses. An index of refined embeddings is kept in a folder only.

    An index is made by :meth:`build` or :meth:`connect`, or by `Index.build`, `Index.load` and `Index.open` with a URL.

    Args:
        engine: the database.
        facts: what the table says about itself.
    """

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
                raise InputError(f"{engine.url}: there is no index; build one with `vicinal index`")
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
        """Add vectors and return their ids, int64 [n], as :meth:`upsert`."""
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
        """Replace the columns of images, such as their prices; their vectors stay.

        An image whose path changes gets another id.

        Args:
            ids: int [n].
            table: n rows.

        Raises:
            InputError: there is no image with one of the ids, there are not as many rows, or a column has another type
                than in other images.
        """
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
