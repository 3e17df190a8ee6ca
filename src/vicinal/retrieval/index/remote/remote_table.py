"""A table of a database as an index uses it: its facts, and its rows in pages and batches."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.column_kinds import MAX_EXACT, ColumnKind, Kinds, merged_kinds, rounded_integers
from vicinal.data.columns import image_keys
from vicinal.data.condition_syntax import Column, Comparison, Or
from vicinal.data.table import Table
from vicinal.retrieval.index.interface import unknown_id_error
from vicinal.retrieval.index.metadata import MAX_ID, Record, converted_record, frame_of_table, kinds_and_records
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import RemoteEngine, Rows, StaleGenerationError, batch_rows
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import EngineRefusedError, EngineUnavailableError, InputError

FORMAT, VERSION = "vicinal-index", 1  # of the facts
REFRESH_SECONDS = 5.0  # after which another process may have added columns
UNFINISHED = "_building"  # the end of the name of a table until it has all rows
CONTINUE = "repeat the call to continue from there: written images stay, and nothing is written twice"


class RemoteFacts:
    """The facts of an index, which other processes may change: `values` as they are now or were some seconds ago.

    `read` asks the database for them; `write` changes some, removes those that are None, and returns all. Both
    return None if the index does not exist. Hold the lock while the facts are changed.
    """

    def __init__(
        self,
        url: EngineURL,
        values: Mapping[str, Any],
        read: Callable[[], dict[str, Any] | None],
        write: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> None:
        self._url, self._read, self._write = url, read, write
        self.lock = threading.RLock()
        self.accept(values)

    def accept(self, values: Mapping[str, Any]) -> None:
        """Take facts, even of another generation; raises InputError if they are of another version."""
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            raise InputError(f"{self._url} is not an index of this version of Vicinal; build it again")
        self.values, self._time = dict(values), time.monotonic()

    @property
    def kinds(self) -> Kinds:
        with self.lock:
            if time.monotonic() - self._time > REFRESH_SECONDS:
                self._time = time.monotonic()
                with suppress(StaleGenerationError):  # reading goes on with the generation that was opened
                    self.refresh()
            return {name: ColumnKind(**kind) for name, kind in self.values["columns"].items()}

    def refresh(self) -> None:
        """Read them again; raises EngineRefusedError if the index is gone, or was upgraded to another model."""
        self._accept_same(self._read())

    def _accept_same(self, values: Mapping[str, Any] | None) -> None:
        if values is None:
            raise EngineRefusedError(f"{self._url}: the index no longer exists")
        if values.get("generation") != self.values.get("generation"):
            raise StaleGenerationError(self._url)
        self.accept(values)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take the facts from before changes that were undone, until they are read again."""
        with self.lock:
            self.values, self._time = dict(values), -math.inf

    def take(self, values: Mapping[str, Any], since: Mapping[str, Any]) -> None:
        """Take facts that were read in another way, unless this process has changed or read the facts since then."""
        if self.values is since:
            self._accept_same(values)

    def change(self, **changes: Any) -> None:
        """Change some of them in the database; None removes one."""
        with self.lock:
            self.refresh()
            self._accept_same(self._write(changes))


class RemoteTable:
    """The rows of an index, read in pages and written in batches; one that is being built has another `name`."""

    def __init__(
        self, engine: RemoteEngine, facts: Mapping[str, Any], check: Callable[[], object] = lambda: None
    ) -> None:
        self.engine, self.name, self._check = engine, engine.url.table, check
        engine.generation = facts.get("generation")
        self.facts = RemoteFacts(
            engine.url,
            facts,
            read=lambda: self.call(engine.read_facts),
            write=lambda changes: self.call(engine.change_facts, changes),
        )

    @property
    def dim(self) -> int:
        return int(self.facts.values["dim"])

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the database for this table, and retry it after transient faults."""
        self._check()
        return self.engine.call(function, self.name, *arguments)

    # reading

    def pages(self, where: Any, kinds: Kinds | None, vectors: bool = False, after: int = -1) -> Iterator[Rows]:
        """Yield the rows that fulfill a filter, with ids above one in ascending order of ids, a page at a time."""
        size = batch_rows(self.dim if vectors else 0)
        while True:
            rows = self.call(self.engine.page, after, size, where, kinds, vectors)
            if len(rows):
                rows = rows.subset(np.argsort(rows.ids))
                yield rows
                after = int(rows.ids[-1])
            if len(rows) < size:
                return

    def fetched(self, ids: Integers, kinds: Kinds, vectors: bool) -> Iterator[Rows]:
        size = batch_rows(self.dim if vectors else 0)
        for start in range(0, len(ids), size):
            yield self.call(self.engine.fetch, ids[start : start + size], kinds, vectors)

    def lookup(self, ids: Integers, vectors: bool = False) -> Rows:
        """The rows of some ids, in their order; an unknown id raises InputError."""
        unique_ids = np.unique(ids)
        fetched = self.fetched(unique_ids, self.facts.kinds, vectors)
        rows = Rows.joined(fetched, self.dim if vectors else None)
        if len(rows) < len(unique_ids):
            missing = unique_ids[~np.isin(unique_ids, rows.ids)][0]
            raise unknown_id_error(missing)
        order = np.argsort(rows.ids)
        return rows.subset(order[np.searchsorted(rows.ids[order], ids)])

    # writing

    def write(
        self, unit: UnitVectors, table: Table, skip_equal: bool = False, old_ids: Integers | None = None
    ) -> Integers:
        """Write rows, and return their ids; those without a path keep their old ids, if they have any."""
        frame = frame_of_table(table)
        new_kinds, records = kinds_and_records(frame)
        self.engine.check_records(records)
        kinds = self.extend_columns(new_kinds)
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
        last_rows = {number: row for row, number in enumerate(ids.tolist())}
        written_rows = np.array(sorted(last_rows.values()), dtype=np.int64)
        for start in range(0, len(written_rows), size):
            rows = written_rows[start : start + size]
            vectors = unit.take(rows).cpu().numpy()
            batch = Rows(ids[rows], [records[row] for row in rows.tolist()], vectors)
            try:
                batch = self._changed_rows(batch, kinds) if skip_equal else batch
                if len(batch):
                    self.call(self.engine.write, batch, kinds)
            except EngineUnavailableError as error:
                message = f"{error.strerror}; {start:,} of {len(written_rows):,} images were written before: {CONTINUE}"
                raise EngineUnavailableError(self.engine.url, message) from None
            if len(written_rows) > size:
                log(
                    f"{self.engine.url}: wrote {min(start + size, len(written_rows)):,} of {len(written_rows):,} images"
                )
        return ids

    def _changed_rows(self, batch: Rows, kinds: Kinds) -> Rows:
        """The rows of a batch that are not in the table, or are different there."""
        stored = self.call(self.engine.fetch, batch.ids, kinds, True)
        row_by_id = {number: row for row, number in enumerate(stored.ids.tolist())}
        assert batch.vectors is not None
        keep = [
            row
            for row, number in enumerate(batch.ids.tolist())
            if number not in row_by_id
            or stored.records[row_by_id[number]] != batch.records[row]
            or not np.array_equal(stored.vectors[row_by_id[number]], batch.vectors[row])
        ]
        return batch.subset(np.array(keep, dtype=np.int64))

    def delete_others(self, ids: Integers) -> None:
        """Delete the rows of another table that an interrupted call wrote."""
        wanted = np.unique(ids)
        if self.call(self.engine.count, None, None) > len(wanted):
            for rows in self.pages(None, None):
                self.delete(rows.ids[~np.isin(rows.ids, wanted)])

    def extend_columns(self, new: Kinds) -> Kinds:
        """Make room for columns of these kinds, and return all."""
        with self.facts.lock:
            self.facts.refresh()
            old = self.facts.kinds
            kinds = merged_kinds(old, new)
            if kinds == old:
                return kinds
            for name, kind in kinds.items():
                if kind.kind == "floating" and name in old and old[name].kind == "integer":
                    self._check_exact(name, old)
            if not self.call(self.engine.set_columns, old, kinds):
                for rows in self.pages(None, old, vectors=True):
                    records = [converted_record(record, kinds) for record in rows.records]
                    self.call(self.engine.write, Rows(rows.ids, records, rows.vectors), kinds)
            self.facts.change(columns={name: kind.to_dict() for name, kind in kinds.items()})
            return kinds

    def _check_exact(self, column: str, kinds: Kinds) -> None:
        """Raise InputError if a column has integers that would be rounded as floats."""
        bounds = (Comparison(Column(column), ">", MAX_EXACT), Comparison(Column(column), "<", -MAX_EXACT))
        if self.call(self.engine.count, self.engine.filter(Or(bounds), kinds, column), 1):
            raise rounded_integers(column)

    def delete(self, ids: Integers) -> None:
        size = batch_rows(0)
        for start in range(0, len(ids), size):
            self.call(self.engine.delete, ids[start : start + size])


def derived_ids(frame: pd.DataFrame, vectors: Floats, records: Sequence[Record], times: dict[bytes, int]) -> Integers:
    """The ids of images, int64 [n]: 63-bit numbers that are derived from path and bounding box.

    The same image has the same id in every call and on every machine. Rows without a path have ids that are derived
    from their columns and their vector; equal rows have different ids, which `times` counts.
    """
    has_path = frame["path"].notna().tolist() if "path" in frame else [False] * len(frame)
    keys: list[str] = image_keys(frame) if "path" in frame else [""] * len(frame)
    ids = np.empty(len(frame), np.int64)
    for row, (key, is_known) in enumerate(zip(keys, has_path, strict=True)):
        if is_known:
            ids[row] = id_of_key(key)
            continue
        text = json.dumps(records[row], sort_keys=True).encode() + b"\0" + vectors[row].tobytes()
        content = hashlib.blake2b(text).digest()
        times[content] = times.get(content, -1) + 1
        ids[row] = _hash_id(content + str(times[content]).encode())
    return ids


def id_of_key(key: str) -> int:
    """The id of an image by its key, see :func:`vicinal.data.columns.image_keys`."""
    return _hash_id(b"image\0" + key.encode("utf-8", "surrogatepass"))


def _hash_id(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") & MAX_ID


def _check_distinct(ids: Integers, frame: pd.DataFrame) -> None:
    """Check that no two images have the same id by chance."""
    if "path" not in frame:
        return
    order = np.argsort(ids, kind="stable")
    duplicates = np.flatnonzero(np.diff(ids[order]) == 0)
    paths = frame["path"].to_numpy(dtype=object)
    for first, second in zip(order[duplicates].tolist(), order[duplicates + 1].tolist(), strict=True):
        if paths[first] != paths[second]:
            raise InputError(f"{paths[first]} and {paths[second]} have the same id by chance; rename one of them")
