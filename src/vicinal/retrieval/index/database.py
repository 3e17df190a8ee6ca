"""The SQLite database of an index: its items with their columns, its settings, and the changes since its vector files.

Tables: `settings` (JSON values by name), `columns` (the user's columns: the name of each in `items`, and the kind of
its values), `items` (one row per image that can be found), `changes` (float32 vectors that the vector files do not hold
yet), `requests` (the ids that answered requests with a key), `local_features` (codes of images by each encoder, in an
index that stores them; those of an item are deleted with it), and after an upgrade `previous_changes` (those of the
generation before).
A value is stored as SQLite's INTEGER, REAL or TEXT by the kind of its column, booleans as 0 and 1, a missing value as
NULL.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.data.column_kinds import MAX_EXACT, ColumnKind, Kinds, merged_kinds, rounded_integers
from vicinal.data.moved import shown_path
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, one_line

FILE = "index.sqlite"
VERSION = 2  # of the tables
TIMEOUT = 600.0  # seconds to wait for another process that writes the same index
FIRST_WAIT = 2.0  # seconds of waiting until it is logged
MAX_COLUMNS = 1_900  # of SQLite's 2,000
CHUNK = 1_000  # ids or texts in one query
PAGE = 16_384  # rows in memory at a time
MEBIBYTE = 2**20
MAX_INSERTED, MAX_PARAMETERS = 500, 32_000  # rows and values in one statement, which is faster than one row each
BUSY, LOCKED = 5, 6  # SQLite's codes; the module names them from Python 3.11 on
MAX_REQUESTS = 2_000  # that are remembered
SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE columns (name TEXT PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL, is_numeric INTEGER NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY);
CREATE TABLE changes (id INTEGER PRIMARY KEY, vector BLOB NOT NULL, unrefined BLOB, checksum INTEGER NOT NULL);
CREATE TABLE requests (key TEXT PRIMARY KEY, ids TEXT NOT NULL);
"""
FIRST_PAGES = 4  # of a copy, which are written before all is checked; every database has more
Columns = dict[str, tuple[str, ColumnKind]]
"""The name in `items` and the kind of each column."""
TABLES = ("settings", "columns", "items", "changes", "requests", "local_features", "previous_changes")
CODES_SCHEMA = """
CREATE TABLE IF NOT EXISTS local_features (id INTEGER, encoder TEXT, codes BLOB NOT NULL, PRIMARY KEY (id, encoder));
CREATE TRIGGER IF NOT EXISTS items_deleted AFTER DELETE ON items
BEGIN DELETE FROM local_features WHERE id = old.id; END
"""


class Database:
    """The database of an index, for any number of threads and processes; without a folder it is in memory."""

    def __init__(self, folder: Path | None, timeout: float = TIMEOUT) -> None:
        self.folder, self.timeout = folder, timeout
        self._idle: list[sqlite3.Connection] = []
        self._shared = None if folder is not None else self._connect()
        self.lock = threading.RLock()  # of the writing thread; in memory of every thread
        self._poll_lock = threading.Lock()
        self._local = threading.local()
        self._poller: sqlite3.Connection | None = None
        self._num_pollers = 0
        weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        """Close the connections; a later call opens others."""
        with self._poll_lock:
            if self._poller is not None:
                self._poller.close()
                self._poller = None
        _close_all(self._idle)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a folder holds an index."""
        if not (folder / FILE).exists():
            return False
        database = Database(folder)
        with database.reading() as connection:
            return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone() is not None

    @staticmethod
    def is_made(folder: Path) -> bool:
        """Whether a folder holds an index at this moment, asked while this process writes to it."""
        path = (folder / FILE).absolute()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", timeout=FIRST_WAIT, uri=True)) as connection:
            try:
                return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone() is not None
            except sqlite3.OperationalError:  # an index has a write-ahead log, with which writers lock no reader
                return False

    # connections

    def _connect(self) -> sqlite3.Connection:
        if self.folder is None:
            name = ":memory:"
        else:
            path = (self.folder / FILE).absolute()
            # in a folder that it cannot write to, SQLite reads a database only if its log is empty
            is_fixed = not os.access(self.folder, os.W_OK) and not path.with_name(f"{FILE}-wal").exists()
            name = f"{path.as_uri()}?{'immutable=1' if is_fixed else 'mode=rwc'}"
        connection = sqlite3.connect(
            name, timeout=min(self.timeout, FIRST_WAIT), isolation_level=None, check_same_thread=False, uri=True
        )
        connection.create_function("shown_path", 2, shown_path, deterministic=True)
        connection.execute(f"PRAGMA cache_size = -{64 * 1024}")
        if self.folder is not None and os.access(self.folder, os.W_OK):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA mmap_size = {4096 * MEBIBYTE}")
        return connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for a block; within a transaction of this thread it sees its changes."""
        active = getattr(self._local, "connection", None)
        with self._translate_errors():
            if active is not None:
                yield active
            elif self._shared is not None:
                with self.lock:
                    yield self._shared
            else:
                connection = self._take_connection()
                try:
                    yield connection
                finally:
                    self._idle.append(connection)

    def _take_connection(self) -> sqlite3.Connection:
        with suppress(IndexError):
            return self._idle.pop()
        return self._connect()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A block that changes the database: all changes are durable afterwards, or none if it fails."""
        with self.lock, self._translate_errors():
            connection = self._shared or self._take_connection()
            self._begin(connection)
            self._local.connection = connection
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                self._local.connection = None
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if connection is not self._shared:
                    self._idle.append(connection)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin to write as soon as no other process does."""
        try:
            return self._begin_with_timeout(connection, min(self.timeout, FIRST_WAIT))
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
        remaining = self.timeout - FIRST_WAIT
        if remaining > 0:
            log(f"waiting up to {self.timeout:g} s to write the index {self.folder}: another process is doing so")
            with suppress(sqlite3.OperationalError):
                return self._begin_with_timeout(connection, remaining)
        raise self.lock_timeout_error() from None

    def lock_timeout_error(self) -> InputError:
        return InputError(
            f"cannot write the index {self.folder}: another process has been doing so for {self.timeout:g} s; try "
            "again later, or wait longer with a larger timeout"
        )

    @staticmethod
    def _begin_with_timeout(connection: sqlite3.Connection, seconds: float) -> None:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
        connection.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise errors of SQLite as an OSError or InputError."""
        try:
            yield
        except sqlite3.Error as error:
            text, place = one_line(error), str(self.folder)
            for phrase, code in (("full", errno.ENOSPC), ("readonly", errno.EACCES), ("open", errno.EACCES),
                                  ("disk I/O", errno.EIO), ("locked", errno.EBUSY)):  # fmt: skip
                if isinstance(error, sqlite3.OperationalError) and phrase in text:
                    raise OSError(code, text, place) from error
            if isinstance(error, (sqlite3.ProgrammingError, sqlite3.IntegrityError)):
                raise
            raise InputError(f"{place}: the index is damaged ({text}); delete it and build it again") from None

    def data_version(self) -> tuple[int, int]:
        """Numbers that change whenever another connection has changed the database."""
        if self._shared is not None:
            return 0, 0
        with self._poll_lock, self._translate_errors():
            if self._poller is None:
                self._poller, self._num_pollers = self._connect(), self._num_pollers + 1
                weakref.finalize(self, self._poller.close)
            return self._num_pollers, int(self._poller.execute("PRAGMA data_version").fetchone()[0])

    # settings

    def create(self) -> None:
        """Drop and create the tables, within a transaction."""
        with self.reading() as connection:
            for table in TABLES:
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in SCHEMA.split(";"):
                connection.execute(statement)

    def copied(self) -> Database:
        memory = Database(None)
        with memory.reading() as copy, self.reading() as connection:
            connection.backup(copy)
        return memory

    def write_to(self, folder: Path, timeout: float, may_replace: Callable[[], bool] = lambda: True) -> bool:
        """Copy a database in memory to a folder, in place of the old one, in one step; returns whether it was allowed.

        `may_replace` is called once nobody else can write: whether all files that the database names exist.
        """
        target, deadline = Database(folder, timeout), time.monotonic() + timeout

        def check(status: int, remaining: int, total: int) -> None:
            if status in (BUSY, LOCKED):
                if time.monotonic() > deadline:
                    raise target.lock_timeout_error()
            elif total - remaining == FIRST_PAGES and not may_replace():
                raise _RefusedError

        try:
            with self.reading() as source, target.reading() as connection:  # after the first pages it is locked
                source.backup(connection, pages=FIRST_PAGES, progress=check, sleep=0.01)
        except _RefusedError:
            return False
        finally:
            target.close()
        return True

    def revision(self) -> str:
        """A text that differs after every transaction of any process."""
        with self.reading() as connection:
            row = connection.execute("SELECT value FROM settings WHERE name = 'revision'").fetchone()
            return str(json.loads(row[0]))

    def settings(self) -> dict[str, Any]:
        """All settings by their names."""
        with self.reading() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                text = f"has version {version}; this Vicinal reads version {VERSION}: delete it and build it again"
                raise InputError(f"{self.folder} {text}")
            return {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM settings")}

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change some settings; None removes one."""
        with self.reading() as connection:
            for name, value in settings.items():
                if value is None:
                    connection.execute("DELETE FROM settings WHERE name = ?", [name])
                else:
                    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", [name, json.dumps(value)])

    # columns

    def columns(self) -> Columns:
        """The name in `items` and the kind of each column, in their order."""
        with self.reading() as connection:
            found = connection.execute("SELECT name, key, kind, is_numeric FROM columns ORDER BY rowid")
            return {name: (key, ColumnKind(kind, bool(is_numeric))) for name, key, kind, is_numeric in found}

    def set_columns(self, new: Kinds) -> Kinds:
        """Make room for columns of these kinds, and return the kinds of all."""
        old = self.columns()
        kinds = merged_kinds({name: kind for name, (_, kind) in old.items()}, new)
        if len(kinds) > MAX_COLUMNS:
            raise InputError(f"an index has at most {MAX_COLUMNS:,} columns, not {len(kinds):,}; leave some out")
        with self.reading() as connection:
            for number, (name, kind) in enumerate(kinds.items()):
                key, before = old.get(name, (f"c{number}", ColumnKind("empty")))
                if name not in old:
                    connection.execute(f"ALTER TABLE items ADD COLUMN {key}")
                elif before.kind == "integer" != kind.kind:
                    large = f"SELECT 1 FROM items WHERE {key} NOT BETWEEN -{MAX_EXACT} AND {MAX_EXACT} LIMIT 1"
                    if kind.kind == "floating" and connection.execute(large).fetchone():
                        raise rounded_integers(name)
                    stored = "TEXT" if kind.kind == "string" else "REAL"
                    connection.execute(f"UPDATE items SET {key} = CAST({key} AS {stored})")
                if before != kind or name not in old:
                    values = (key, kind.kind, kind.is_numeric, name)
                    connection.execute("INSERT OR IGNORE INTO columns VALUES (?4, ?1, ?2, ?3)", values)
                    connection.execute("UPDATE columns SET kind = ?2, is_numeric = ?3 WHERE name = ?4", values)
        return kinds

    # items

    def insert(self, ids: Integers, values: Mapping[str, Sequence[Any]]) -> None:
        """Write rows in place of those with the same ids; columns that are not given are missing."""
        columns = self.columns()
        keys = ["id", *(columns[name][0] for name in values)]
        insert, row = f"INSERT OR REPLACE INTO items ({', '.join(keys)}) VALUES", f"({', '.join('?' * len(keys))})"
        rows = zip(ids.tolist(), *values.values(), strict=True)
        size = max(1, min(MAX_INSERTED, MAX_PARAMETERS // len(keys)))
        with self.reading() as connection:
            while batch := list(islice(rows, size)):
                connection.execute(f"{insert} {', '.join([row] * len(batch))}", list(chain.from_iterable(batch)))
            if "path" in columns:  # after the rows of a new index, which is faster
                connection.execute(f"CREATE INDEX IF NOT EXISTS items_path ON items ({columns['path'][0]})")

    def delete(self, ids: Integers) -> None:
        with self.reading() as connection:
            connection.executemany("DELETE FROM items WHERE id = ?", ((number,) for number in ids.tolist()))

    def ids(self, where: str = "TRUE", parameters: Mapping[str, Any] | Sequence[Any] = ()) -> Integers:
        """The ids of the rows that fulfill a condition in SQL, ascending, int64 [n]."""
        with self.reading() as connection:
            found = connection.execute(f"SELECT id FROM items WHERE {where} ORDER BY id", parameters)
            return np.fromiter((number for (number,) in found), np.int64)

    def distinct(self, key: str, at_most: int) -> list[Any]:
        """The values of a column, each once; some of them if there are more than `at_most`."""
        query = f"SELECT DISTINCT {key} FROM items WHERE {key} IS NOT NULL LIMIT {at_most + 1}"
        with self.reading() as connection:
            return [value for (value,) in connection.execute(query)]

    def rows(self, columns: Columns, where: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The id and these columns of the rows that fulfill a condition in SQL, in ascending order of ids."""
        keys = ", ".join(["id", *(key for key, _ in columns.values())])
        with self.reading() as connection:
            return connection.execute(f"SELECT {keys} FROM items WHERE {where} ORDER BY id", parameters).fetchall()

    def pages(self, columns: Columns) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows as :meth:`rows` does, some at a time; changes meanwhile are seen."""
        keys, after = ", ".join(["id", *(key for key, _ in columns.values())]), -1
        query = f"SELECT {keys} FROM items WHERE id > ? ORDER BY id LIMIT {PAGE}"
        while True:
            with self.reading() as connection:
                page = connection.execute(query, [after]).fetchall()
            if page:
                yield page
                after = page[-1][0]
            if len(page) < PAGE:
                return

    def change_column(self, column: str, values: Mapping[int, Any]) -> None:
        key = self.columns()[column][0]
        with self.reading() as connection:
            rows = ((value, number) for number, value in values.items())
            connection.executemany(f"UPDATE items SET {key} = ? WHERE id = ?", rows)

    # changes

    def append_changes(self, ids: Integers, vectors: Any, unrefined: Any) -> None:
        """Keep the vectors of added items, float32 [n, dim], and of a refined index also the unrefined ones."""
        blobs = zip(
            ids.tolist(), map(np.ndarray.tobytes, vectors),
            [None] * len(ids) if unrefined is None else map(np.ndarray.tobytes, unrefined), strict=True,
        )  # fmt: skip
        with self.reading() as connection:
            rows = ((*row, _checksum(*row)) for row in blobs)
            connection.executemany("INSERT INTO changes VALUES (?, ?, ?, ?)", rows)

    def forget_changes(self, below: int | None = None) -> None:
        """Delete the vectors of changes with ids below a number; None: all."""
        with self.reading() as connection:
            connection.execute("DELETE FROM changes WHERE ?1 IS NULL OR id < ?1", [below])

    def set_changes_aside(self) -> None:
        """Keep the changes as those of the previous generation, in place of older ones."""
        with self.reading() as connection:
            connection.execute("DROP TABLE IF EXISTS previous_changes")
            connection.execute("CREATE TABLE previous_changes AS SELECT * FROM changes")
            connection.execute("DELETE FROM changes")

    def changes(self, first: int, dim: int, table: str = "changes") -> tuple[Any, Any]:
        """The vectors of the changes from an id on, and the unrefined ones or None, float32 [n, dim]."""
        query = f"SELECT id, vector, unrefined, checksum FROM {table} WHERE id >= ? ORDER BY id"
        with self.reading() as connection:
            rows = connection.execute(query, [first]).fetchall()
        damaged = [number for number, vector, unrefined, checksum in rows
                   if _checksum(number, vector, unrefined) != checksum]  # fmt: skip
        if damaged:
            raise InputError(f"{self.folder}: the index is damaged (the vector of image {damaged[0]}); build it again")
        vectors = np.frombuffer(b"".join(row[1] for row in rows), "<f4").reshape(-1, dim)
        is_refined = bool(rows) and rows[0][2] is not None
        unrefined = np.frombuffer(b"".join(row[2] for row in rows), "<f4").reshape(-1, dim) if is_refined else None
        return vectors, unrefined

    # local features

    def create_codes(self) -> None:
        """Make room for codes of local features, if there is none yet."""
        table, trigger = CODES_SCHEMA.split(";", 1)
        with self.reading() as connection:
            connection.execute(table)
            connection.execute(trigger)

    def delete_codes(self, keep: Sequence[str] = ()) -> None:
        """Delete the codes of local features, except those by the encoders in `keep`."""
        placeholders = ", ".join("?" * len(keep))
        with self.reading() as connection:
            connection.execute(f"DELETE FROM local_features WHERE encoder NOT IN ({placeholders})", keep)

    def write_codes(self, ids: Integers, codes: Sequence[bytes], encoder: str) -> None:
        """Keep codes of items by an encoder; those of ids that do not exist any more are left out."""
        rows = ((number, encoder, each) for number, each in zip(ids.tolist(), codes, strict=True))
        insert = "INSERT OR REPLACE INTO local_features SELECT ?1, ?2, ?3 WHERE EXISTS"
        with self.reading() as connection:
            connection.executemany(f"{insert} (SELECT 1 FROM items WHERE id = ?1)", rows)

    def codes(self, ids: Integers, encoder: str) -> dict[int, bytes]:
        """The codes of items that have some by an encoder, by their ids."""
        codes: dict[int, bytes] = {}
        with self.reading() as connection:
            for start in range(0, len(ids), CHUNK):
                chunk = ids[start : start + CHUNK].tolist()
                placeholders = ", ".join("?" * len(chunk))
                query = f"SELECT id, codes FROM local_features WHERE id IN ({placeholders}) AND encoder = ?"
                codes |= connection.execute(query, [*chunk, encoder])
        return codes

    def ids_without_codes(self, encoder: str) -> Integers:
        """The ids of the items that have no codes by an encoder, ascending, int64 [n]."""
        return self.ids("id NOT IN (SELECT id FROM local_features WHERE encoder = ?)", [encoder])

    # requests

    def ids_of_request(self, key: str) -> list[int] | None:
        """The ids that answered a request with a key; None if that is not known."""
        with self.reading() as connection:
            found = connection.execute("SELECT ids FROM requests WHERE key = ?", [key]).fetchone()
        return None if found is None else json.loads(found[0])

    def remember_requests(self, answers: Mapping[str, Sequence[int]]) -> None:
        """Keep the ids that answer requests; the oldest requests are forgotten."""
        rows = ((key, json.dumps(list(ids))) for key, ids in answers.items())
        with self.reading() as connection:
            connection.executemany("INSERT OR REPLACE INTO requests VALUES (?, ?)", rows)
            connection.execute(
                "DELETE FROM requests WHERE rowid <= (SELECT max(rowid) FROM requests) - ?", [MAX_REQUESTS]
            )


def _checksum(number: int, vector: bytes, unrefined: bytes | None) -> int:
    """The CRC-32 of the vectors of an id; SQLite has none of its own."""
    return zlib.crc32(unrefined or b"", zlib.crc32(vector, number & 0xFFFFFFFF))


class _RefusedError(Exception):
    """A database names files that are not there."""


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
