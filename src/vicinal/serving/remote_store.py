"""The index of a service in a database, which makes every change durable itself, and may be unavailable for a while."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import Self

from vicinal.data.table import Table
from vicinal.retrieval.index.metadata import FILE_COLUMNS, MAX_ID, parse_index_condition
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import StaleGenerationError, TransientFault
from vicinal.retrieval.index.remote.remote_index import RemoteIndex, Selection
from vicinal.retrieval.scores import UnitVectors
from vicinal.serving.columns import ColumnKinds, facts_of_kinds
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.serving.store import Store, UpgradedError
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import EngineUnavailableError, InputError, one_line

NUM_THREADS = 8  # that write
WAIT_SECONDS, RETRY_SECONDS = 0.05, 10.0  # for a model to be loaded, and after it could not be
WATCH_SECONDS, LOST_SECONDS = 2.0, 0.5  # between checks of a database that answers, and of one that does not
SLOW_SECONDS = 10.0  # after which a database without an answer counts as unavailable
COUNT_FRACTION = 0.05  # of the time, at most, that counting the items takes
FIXED_FACTS = ("dim", "kind", "model_fingerprint")
EXACT_COUNT = 100_000  # items that are counted before the service starts; more are counted meanwhile


class RemoteStore(Store):
    """An index in a database, for any number of processes that read and write it.

    A change is answered when the database has committed it. The id of an added item is derived from the key of the
    request, so that it is added once, whichever process gets a repeated request; without a key the id is random. A
    thread checks every other second whether the database answers: while it does not, requests are refused at once.
    """

    def __init__(self, url: str, limits: Limits | None = None, read_only: bool = False, refiner: Any = None) -> None:
        parsed = EngineURL.parse(url)
        if refiner is not None:
            raise InputError("an index in a database holds no refined embeddings; leave out the refiner")
        super().__init__(str(parsed), parsed.table, limits, read_only)
        self.engine, self._url = parsed.engine, url
        self._pool_lock, self._retry = threading.Lock(), 0.0

    def __enter__(self) -> Self:
        self.index = _ServedIndex.connect(self._url, max(1.0, self.limits.request_seconds / 3))
        self._watcher = _Watcher(self.index)
        self.index.watcher, self.index.upgraded = self._watcher, self._follow
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="changes")
        return self

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._watcher.close()
        self.index.close()

    def __len__(self) -> int:
        return self._watcher.num_items

    @property
    def is_connected(self) -> bool:
        return self._watcher.problem is None

    def add(
        self, vectors: Floats, columns: Mapping[str, Any], path: str | None, key: str | None,
        codes: bytes | None = None, epoch: int | None = None,
    ) -> Future[list[int]]:  # fmt: skip
        self.check_writable()
        with self._pool_lock:
            return self._pool.submit(self._add, vectors, dict(columns), key, codes, epoch)

    def _add(
        self, vectors: Floats, columns: dict[str, Any], key: str | None, codes: bytes | None, epoch: int | None
    ) -> list[int]:
        """Add an item; waits while the model of an upgraded index is loaded."""
        deadline = time.monotonic() + self.limits.request_seconds
        while epoch in (None, self.epoch):
            with suppress(StaleGenerationError):
                return self._insert(vectors, columns, key, codes)
            if self.load_model is None or time.monotonic() > deadline or self._stop.wait(WAIT_SECONDS):
                raise Problem(503, "the change cannot be written now", {"Retry-After": "10"})
        raise UpgradedError("the model has changed")

    def _insert(self, vectors: Floats, columns: dict[str, Any], key: str | None, codes: bytes | None) -> list[int]:
        known = None if key is None else self.added_with(key)
        if known is not None:
            return known
        kinds = ColumnKinds(self.index.column_kinds, self.limits.max_columns)
        row = kinds.checked(columns)
        kinds.extend(row)
        number = secrets.randbelow(MAX_ID + 1) if key is None else _id_of(key)
        with nullcontext() if codes is None else self.index.transaction():
            self.index.insert(number, vectors, row)
            if codes is not None:
                self.index.add_local_codes(np.array([number]), [codes])
        return [number]

    def delete(self, ids: Sequence[int]) -> Future[list[int]]:
        self.check_writable()
        with self._pool_lock:
            return self._pool.submit(self._delete, ids)

    def _delete(self, ids: Sequence[int]) -> list[int]:
        existing_ids = self.index.present(np.array(ids, np.int64))
        self.index.delete(existing_ids)
        return existing_ids.tolist()

    def _follow(self, facts: Mapping[str, Any]) -> str | None:
        """After an upgrade load the new model, then search and write the new vectors; returns the problem, or None."""
        if self.load_model is None:
            return "the index was upgraded to another model; restart the service"
        if time.monotonic() < self._retry:
            return None
        try:
            take_into_use = self.load_model(facts)
        except Exception as error:  # of many kinds, such as those of a full GPU; the thread must go on
            log(f"{self.place}: {one_line(error)}")
            self._retry = time.monotonic() + RETRY_SECONDS
            return None
        self.epoch += 1
        try:
            with self._pool_lock:
                pool, self._pool = self._pool, ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="changes")
            pool.shutdown()  # waits for changes in progress
            self.index.follow(facts)
            take_into_use()
        finally:
            self.epoch += 1
        log(f"{self.place}: serving embeddings of {self.index.fingerprint()} now")
        return None

    def added_with(self, key: str) -> list[int] | None:
        number = _id_of(key)
        return [number] if len(self.index.present([number])) else None

    def query_vector(self, number: int) -> Floats | None:
        ids = self.index.present([number])
        return self.index.vectors_of(ids)[0] if len(ids) else None

    def column_facts(self) -> list[dict[str, Any]]:
        return facts_of_kinds(self.index.column_kinds)


def _id_of(key: str) -> int:
    """The id of the item that is added with a key: a number of 63 bits, which no path of an image gives."""
    return int.from_bytes(hashlib.blake2b(b"key\0" + key.encode(), digest_size=8).digest(), "big") & MAX_ID


class _ServedIndex(RemoteIndex):
    """An index whose calls fail at once while its database is unavailable, and whose conditions cannot use paths."""

    watcher: _Watcher | None = None
    upgraded: Callable[[Mapping[str, Any]], str | None] | None = None  # given the facts of an upgraded index

    def _check_connection(self) -> None:
        if self.watcher is not None and (problem := self.watcher.problem) is not None:
            raise EngineUnavailableError(self.url, problem)

    def select(self, condition: str | None) -> Selection | None:
        """Return the items that fulfill a condition, which cannot use paths of this machine."""
        if condition is None:
            return None
        self._check_connection()
        hidden = ("path", *FILE_COLUMNS)
        kinds = {name: kind for name, kind in self.column_kinds.items() if name not in hidden}
        tree = parse_index_condition(condition, kinds, self.column_aliases)
        return Selection(self._engine.call(self._engine.filter, tree, kinds, condition))

    def insert(self, number: int, vectors: Floats, row: Mapping[str, Any]) -> None:
        """Write an item without a path under an id."""
        table = Table._from_valid(pd.DataFrame([row], dtype=object))
        self._table.write(UnitVectors(vectors, "vector"), table, old_ids=np.array([number], np.int64))

    def check_facts(self, ask: Callable[[bool], object]) -> str | None:
        """Read the facts of the index once; returns the problem, or None. `ask` gets whether an answer is awaited."""
        known = self._settings
        ask(True)
        try:
            facts = self._engine.read_facts(self._table.name)
        except TransientFault:  # perhaps of a connection from before the server was started again
            facts = self._engine.read_facts(self._table.name)
        ask(False)
        if facts is None:
            return "the index no longer exists"
        if facts.get("generation") != known.get("generation") and self.upgraded is not None:
            return self.upgraded(facts)
        if any(facts.get(name) != known.get(name) for name in FIXED_FACTS):
            return "the index was built again; restart the service"
        self._table.facts.take(facts, since=known)
        return None


class _Watcher:
    """Threads that check whether a database answers, and count the items of an index."""

    def __init__(self, index: _ServedIndex) -> None:
        self._index, self.num_items = index, index.count(at_most=EXACT_COUNT)
        self._problem: str | None = None
        self._asked: float | None = None  # when the check in progress began
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._count)]
        for thread in self._threads:
            thread.start()

    @property
    def problem(self) -> str | None:
        """Why the index cannot be used now; None if it can."""
        asked = self._asked
        if self._problem is None and asked is not None and time.monotonic() - asked > SLOW_SECONDS:
            return "the database does not answer"
        return self._problem

    def _ask(self, is_awaited: bool) -> None:
        self._asked = time.monotonic() if is_awaited else None

    def close(self) -> None:
        """End the threads, without waiting for those that wait for the database."""
        self._stop.set()
        for thread in self._threads:
            thread.join(1.0)

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_SECONDS if self._problem is None else LOST_SECONDS):
            try:
                problem = self._index.check_facts(self._ask)
            except (TransientFault, InputError) as error:
                problem = one_line(error, 200)
            if (problem is None) != (self._problem is None):
                log(f"{self._index.url}: {'the database answers again' if problem is None else problem}")
            self._problem, self._asked = problem, None

    def _count(self) -> None:
        seconds = 0.0
        while not self._stop.wait(max(WATCH_SECONDS, seconds / COUNT_FRACTION)):
            start = time.monotonic()
            with suppress(EngineUnavailableError, InputError):
                self.num_items = len(self._index)
            seconds = time.monotonic() - start
