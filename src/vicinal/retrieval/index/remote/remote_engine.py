"""The interface of a database that holds an index, and calls that are retried after faults of the connection."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from vicinal.data.column_kinds import Kinds
from vicinal.data.condition_syntax import Condition
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.metadata import Record
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.neighbors import Neighbors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import EngineRefusedError, EngineUnavailableError, InputError, one_line

Result = TypeVar("Result")
Missing = tuple[Integers, list[str], int | None]
"""Ids, ascending, what identifies their present vectors, and the id to go on with; None: no more."""
RETRY_SECONDS = 30.0  # during which a call is repeated
CONNECT_SECONDS = 10.0  # for the first answer of a server
REQUEST_SECONDS = 60.0  # after which a call that has no answer has failed
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds between two attempts
BATCH_BYTES, MAX_BATCH = 8 * 2**20, 2048  # of rows that are written or read together
ROW_BYTES = 1024  # of the columns of a row, about
NO_CODES = (
    "an index in Milvus stores no local features; leave out --local: vicinal search --rerank local computes those of "
    "the first matches when it needs them"
)


class TransientFault(Exception):  # noqa: N818  (it never leaves this package)
    """A call failed in a way that may pass: a cut connection, a server that restarts or is too busy."""


@dataclass
class Rows:
    """Rows of an index."""

    ids: Integers
    records: list[Record]  # their columns; missing values are left out
    vectors: Floats | None = None  # float32 [n, dim] if they were asked for

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: Iterable[Rows], dim: int | None = None) -> Rows:
        """All rows of several parts, with their vectors of `dim` dimensions if that is given."""
        parts = list(parts)
        ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in parts)])
        records = [record for part in parts for record in part.records]
        if dim is None:
            return cls(ids, records)
        vectors = [part.vectors.reshape(-1, dim) for part in parts if part.vectors is not None]
        return cls(ids, records, np.concatenate([np.empty((0, dim), np.float32), *vectors]))

    def subset(self, positions: Integers) -> Rows:
        vectors = None if self.vectors is None else self.vectors[positions]
        return Rows(self.ids[positions], [self.records[row] for row in positions.tolist()], vectors)


class StaleGenerationError(EngineRefusedError):
    """The index was upgraded to another model since it was opened."""

    def __init__(self, url: object) -> None:
        super().__init__(f"{url}: the index was upgraded to another model; open it again, or repeat the command")


class RemoteEngine(ABC):
    """A database that holds tables of vectors.

    Every method may raise :class:`TransientFault`, and may then be called again: writing the same rows twice changes
    nothing. All take the name of a table, since an index is built beside the one that it replaces.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    max_k: ClassVar[int]
    generation: str | None = None  # whose vectors are read, written and searched; None: those of the build

    def __init__(self, url: EngineURL, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self._is_connected = False

    # the tables

    @abstractmethod
    def read_facts(self, table: str) -> dict[str, Any] | None:
        """The facts of an index; None if no index has this name."""

    @abstractmethod
    def write_facts(self, table: str, facts: Mapping[str, Any]) -> None: ...

    def change_facts(self, table: str, changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Change some facts of an index and return all; None removes one. None is returned if there is no index."""
        facts = self.read_facts(table)
        if facts is None:
            return None
        facts = {
            name: value for name, value in {**facts, **changes}.items() if value is not None or name not in changes
        }
        self.write_facts(table, facts)
        return facts

    @abstractmethod
    def create(self, table: str, dim: int, kind: Kind) -> None:
        """Make an empty table, if it is not there yet."""

    @abstractmethod
    def finish(self, table: str, dim: int, kind: Kind) -> None:
        """Build the database's index for fast search, after the first rows were written."""

    @abstractmethod
    def replace(self, table: str, by: str) -> None:
        """Give a table and its facts the name of another one, which is dropped."""

    @abstractmethod
    def drop(self, table: str) -> None:
        """Drop a table and its facts, if it exists."""

    @abstractmethod
    def set_columns(self, table: str, old: Kinds, new: Kinds) -> bool:
        """Make room for columns of these kinds; False if rows must be written again for that."""

    def only_one(self, table: str) -> AbstractContextManager[object]:
        """A block in which no other process builds or upgrades the index, where the database has such locks."""
        return nullcontext()

    # generations: vectors of different models for the same images

    def place(self, table: str) -> str:
        """The name of what holds the vectors of this engine's generation."""
        return table

    @abstractmethod
    def begin(self, table: str, present: str | None, facts: Mapping[str, Any]) -> None:
        """Make room for the vectors of this engine's generation, by its facts, beside the present one."""

    @abstractmethod
    def missing(self, table: str, present: str | None, after: int, limit: int) -> Missing:
        """Some images above an id that have no vector of this engine's generation."""

    @abstractmethod
    def fill(self, table: str, present: str | None, ids: Integers, versions: Sequence[str], vectors: Floats) -> None:
        """Write vectors of this engine's generation for images whose present vectors are the same as they were."""

    @abstractmethod
    def switch(self, table: str, facts: Mapping[str, Any], finish: Callable[[], object]) -> None:
        """Search this engine's generation from now on: call `finish` while nobody else writes, and change facts."""

    @abstractmethod
    def drop_generations(self, table: str, keep: Collection[str | None]) -> None:
        """Drop the vectors of all generations but these."""

    def transaction(self, table: str) -> AbstractContextManager[object]:
        """A block whose calls in this thread are one transaction; each is one of its own where there is none.

        A call within it is not repeated: a lost connection raises EngineUnavailableError, and nothing was changed.
        """
        return nullcontext()

    # the rows

    @abstractmethod
    def write(self, table: str, rows: Rows, kinds: Kinds) -> None:
        """Write rows in place of those with the same ids."""

    @abstractmethod
    def delete(self, table: str, ids: Integers) -> None: ...

    @abstractmethod
    def fetch(self, table: str, ids: Integers, kinds: Kinds, vectors: bool) -> Rows:
        """The rows of the given ids that exist, in any order."""

    @abstractmethod
    def page(self, table: str, after: int, limit: int, where: Any, kinds: Kinds | None, vectors: bool) -> Rows:
        """The rows with the smallest ids above one that fulfill a filter; without `kinds` their ids alone."""

    @abstractmethod
    def count(self, table: str, where: Any, at_most: int | None) -> int:
        """The number of rows that fulfill a filter, or `at_most` if there are more."""

    @abstractmethod
    def search(self, table: str, queries: Floats, k: int, where: Any, facts: Mapping[str, Any]) -> Neighbors:
        """The k nearest of each query among the rows that fulfill a filter; id -1 where fewer are found."""

    # local features, which not every database stores

    def create_codes(self, table: str, encoder: str | None) -> None:
        """Make room for codes of local features by an encoder; earlier codes are deleted."""
        raise InputError(NO_CODES)

    def write_codes(self, table: str, encoder: str | None, ids: Integers, codes: Sequence[bytes]) -> None:
        """Keep codes of the given ids that exist."""
        raise NotImplementedError

    def codes(self, table: str, encoder: str | None, ids: Integers) -> dict[int, bytes]:
        """The codes of the given ids that have some."""
        raise NotImplementedError

    def drop_codes(self, table: str, keep: Collection[str | None]) -> None:
        """Drop the codes of all encoders but these."""
        raise NotImplementedError

    def without_codes(self, encoder: str | None) -> Any:
        """The filter of images without codes."""
        raise NotImplementedError

    @abstractmethod
    def filter(self, condition: Condition, kinds: Kinds, text: str) -> Any: ...

    @abstractmethod
    def path_filter(self, path: str, kinds: Kinds) -> Any:
        """The filter of the images of a file, or of those in a folder and below."""

    @abstractmethod
    def id_filter(self, ids: Integers) -> Any: ...

    @abstractmethod
    def exclude(self, where: Any, number: int) -> Any:
        """A filter without one id; None filters nothing else."""

    @abstractmethod
    def close(self) -> None: ...

    def check_build(self, kind: Kind, dim: int, rescore: int | None) -> None:
        """Raise InputError if no index of a kind can be built."""
        self.check_kind(kind)

    def check_kind(self, kind: Kind) -> None:
        if kind not in self.kinds:
            raise InputError(f"{self.name} has no indexes of kind {kind}; use {', '.join(self.kinds)}")

    @abstractmethod
    def check_records(self, records: Sequence[Record]) -> None:
        """Raise InputError if values cannot be kept."""

    # calls

    def call(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Call a method, and retry it after transient faults, with growing pauses."""
        limit = self.timeout if self._is_connected else min(self.timeout, CONNECT_SECONDS)
        deadline, pause, attempts = time.monotonic() + limit, FIRST_PAUSE, 0
        while True:
            try:
                result = function(*arguments, **options)
                self._is_connected = True
                return result
            except TransientFault as fault:
                attempts += 1
                reason = one_line(fault, 200)
                if time.monotonic() + pause > deadline:
                    state = "lost the connection" if self._is_connected else "no connection"
                    raise EngineUnavailableError(self.url, f"{state} ({attempts} attempts): {reason}") from None
            if attempts == 1:
                log(f"{self.url}: {reason}; trying again for up to {limit:.0f} seconds")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, MAX_PAUSE)


def batch_rows(dim: int) -> int:
    """The number of rows that are written or read together."""
    return int(np.clip(BATCH_BYTES // (4 * dim + ROW_BYTES), 16, MAX_BATCH))


def connect(url: EngineURL, timeout: float = RETRY_SECONDS) -> RemoteEngine:
    """The engine of a URL; it connects to the server when it is first used."""
    if url.engine == "milvus":
        from vicinal.retrieval.index.remote.milvus_engine import MilvusEngine

        return MilvusEngine(url, timeout)
    from vicinal.retrieval.index.remote.postgres_engine import PostgresEngine

    return PostgresEngine(url, timeout)


def sorted_neighbors(found: Sequence[Sequence[tuple[int, float]]], k: int) -> Neighbors:
    """The neighbors of each query by the ids and scores that were found; -1 and minus infinity if fewer than k."""
    neighbors = Neighbors(np.full((len(found), k), -np.inf, np.float32), np.full((len(found), k), -1, np.int64))
    for row, each in enumerate(found):
        best = sorted(each, key=lambda match: (-match[1], match[0]))
        neighbors.ids[row, : len(best)] = [match[0] for match in best]
        neighbors.scores[row, : len(best)] = [match[1] for match in best]
    return neighbors
