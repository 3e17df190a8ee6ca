"""Indexes in tables of PostgreSQL, with pgvector: one row per image, its columns are columns of the table."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from vicinal.data.column_kinds import Kinds
from vicinal.data.condition_syntax import Condition
from vicinal.data.conditions import EVERY_ROW, SQLFilter
from vicinal.retrieval.index.kinds import HNSW_SEARCH, MAX_RESCORE, Kind
from vicinal.retrieval.index.metadata import Record
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import (
    CONNECT_SECONDS,
    REQUEST_SECONDS,
    Missing,
    RemoteEngine,
    Result,
    Rows,
    StaleGenerationError,
    TransientFault,
    sorted_neighbors,
)
from vicinal.retrieval.neighbors import Neighbors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import EngineRefusedError, EngineUnavailableError, InputError, import_extra, one_line

for module in ("psycopg", "pgvector.psycopg"):
    import_extra(module, "postgres", "an index in PostgreSQL")

import psycopg  # noqa: E402
from pgvector.psycopg import register_vector  # noqa: E402
from psycopg import sql  # noqa: E402

from vicinal.retrieval.index.remote.postgres_sql import (  # noqa: E402
    CODES,
    ENCODER,
    GENERATION,
    TYPES,
    VECTOR,
    PostgresWriter,
    codes_column,
    column_name,
    index_query,
    num_candidates,
    search_query,
    vector_column,
)

TRANSIENT_STATES = ("08", "53", "57P", "40001", "40P01", "25P03", "57014", "55P03", "23505")
REFUSED_STATES = ("28", "3D")  # password, database: not transient
MISSING_STATES = ("42501", "42P01", "42703", "3F000")  # rights, a table, a column, a schema
FACTS = "vicinal_indexes"  # the table with the facts of all indexes
MAX_HALF_DIM, MAX_BIT_DIM, MAX_DIM = 4_000, 64_000, 16_000  # of pgvector's indexes and vectors
MAX_BREADTH = 1_000  # hnsw.ef_search


class PostgresConnections:
    """Open connections to a database, each of which is used by one call at a time."""

    def __init__(self, url: EngineURL, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self._idle: list[Any] = []
        self._own = threading.local()  # the connection of the transaction of a thread

    def close(self) -> None:
        with suppress(IndexError):  # other threads may take some meanwhile
            while True:
                self._idle.pop().close()

    @contextmanager
    def pinned(self) -> Iterator[Any]:
        """A connection for all calls of this thread within the block, such as those of one transaction."""
        if (pinned := getattr(self._own, "connection", None)) is not None:
            yield pinned
            return
        with self.take() as connection:
            self._own.connection = connection
            try:
                yield connection
            finally:
                self._own.connection = None

    @contextmanager
    def take(self) -> Iterator[Any]:
        """A connection for one call, whose errors are translated; a broken one is not used again."""
        with _translate_errors():
            if (pinned := getattr(self._own, "connection", None)) is not None:
                yield pinned
                return
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self.connect()
            try:
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    raise psycopg.OperationalError("the connection is in an unknown state")
                if not connection.vicinal_has_vector:
                    _register(connection)
                yield connection
            except BaseException:
                if connection.broken:  # the others are broken too if the server has stopped
                    self.close()
                with suppress(psycopg.Error):
                    connection.close()
                raise
            self._idle.append(connection)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A block in which this thread has one connection, whose changes are all made at its end, or none."""
        try:
            with self.pinned() as connection, connection.transaction():
                yield connection
        except TransientFault as fault:
            message = f"the connection was lost within a transaction, nothing was changed: {one_line(fault, 200)}"
            raise EngineUnavailableError(self.url, message) from None

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in one, so that a failed call cannot be repeated alone."""
        return getattr(self._own, "connection", None) is not None

    def connect(self) -> Any:
        """A new connection, which belongs to the caller."""
        url = self.url
        parameters = {"host": url.host, "port": url.port, "user": url.user, "dbname": url.database}
        options: dict[str, Any] = {name: str(value) for name, value in parameters.items() if value is not None}
        options |= {name: value for name, value in url.options if name != "schema"}
        connection = psycopg.connect(
            connect_timeout=int(min(CONNECT_SECONDS, max(self.timeout, 2.0))),
            application_name="vicinal",
            tcp_user_timeout=int(1000 * REQUEST_SECONDS),
            autocommit=True,
            **options,
        )
        connection.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(int(1000 * REQUEST_SECONDS))))
        _register(connection)
        return connection


def _register(connection: Any) -> None:
    """Read and write vectors as arrays, if the database has the extension already."""
    info = psycopg.types.TypeInfo.fetch(connection, "vector")
    connection.vicinal_has_vector = info is not None
    if info is not None:
        register_vector(connection)


def create_extension(connection: Any) -> None:
    """Make pgvector available in the database, which its administrator may have to do."""
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported) as error:
        raise InputError(
            f"the database has no pgvector ({one_line(error, 120)}); its administrator makes it available by "
            "CREATE EXTENSION vector"
        ) from None
    except psycopg.errors.UniqueViolation:  # made by another process at the same moment
        pass
    _register(connection)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors, transient ones into TransientFault; libpq writes no password into messages."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        message = one_line(error, 300)
        if state.startswith(REFUSED_STATES):
            raise EngineRefusedError(f"PostgreSQL refuses the connection: {message}") from None
        if state.startswith(TRANSIENT_STATES) or (not state and isinstance(error, psycopg.OperationalError)):
            if any(word in message for word in ("password", "does not exist", "no pg_hba.conf")):
                raise EngineRefusedError(f"PostgreSQL refuses the connection: {message}") from None
            raise TransientFault(message) from None
        kind = EngineRefusedError if state in MISSING_STATES else InputError
        raise kind(f"PostgreSQL: {message}") from None


class PostgresEngine(RemoteEngine):
    name: ClassVar[str] = "postgresql"
    kinds: ClassVar[tuple[Kind, ...]] = ("exact", "hnsw", "binary")
    max_k: ClassVar[int] = 100_000

    def __init__(self, url: EngineURL, timeout: float) -> None:
        super().__init__(url, timeout)
        self._connections = PostgresConnections(url, timeout)
        self._schema = url.option("schema")

    def close(self) -> None:
        self._connections.close()

    # the tables

    def read_facts(self, table: str) -> dict[str, Any] | None:
        with self._connections.take() as connection:
            if not self._exists(connection, FACTS):
                return None
            query = sql.SQL("SELECT facts FROM {} WHERE name = %s").format(self._table(FACTS))
            row = connection.execute(query, [table]).fetchone()
            return None if row is None or not self._exists(connection, table) else dict(row[0])

    def write_facts(self, table: str, facts: Mapping[str, Any]) -> None:
        query = sql.SQL(
            "INSERT INTO {} (name, facts) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET facts = excluded.facts"
        ).format(self._table(FACTS))
        with self._connections.take() as connection:
            connection.execute(query, [table, json.dumps(facts)])

    def change_facts(self, table: str, changes: Mapping[str, Any]) -> dict[str, Any] | None:
        with self._connections.pinned() as connection, connection.transaction():
            self._lock_facts(connection, table)
            return super().change_facts(table, changes)

    def _lock_facts(self, connection: Any, table: str) -> None:
        """Serialize the transactions that change an index: each locks the row of its facts first."""
        query = sql.SQL("SELECT 1 FROM {} WHERE name = %s FOR UPDATE").format(self._table(FACTS))
        connection.execute(query, [table])

    def create(self, table: str, dim: int, kind: Kind) -> None:
        facts = sql.SQL("CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, facts json NOT NULL)")
        items = sql.SQL("CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY, {} vector({}) NOT NULL)")
        with self._connections.take() as connection:
            create_extension(connection)
            connection.execute(facts.format(self._table(FACTS)))
            connection.execute(items.format(self._table(table), sql.Identifier(VECTOR), sql.Literal(dim)))

    def finish(self, table: str, dim: int, kind: Kind) -> None:
        if kind == "exact":
            return
        if self.generation is not None:
            return self._build_index_concurrently(table, dim, kind)
        with self._connections.take() as connection, connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            if not self._is_indexed(connection, table):
                connection.execute(index_query(self._table(table), kind, dim))

    def _build_index_concurrently(self, table: str, dim: int, kind: Kind) -> None:
        """Build the database's index of a further column; an invalid one from a killed call is dropped."""
        digest = hashlib.sha256(f"{table} {self._vectors}".encode()).hexdigest()[:20]
        name = self._table(f"vicinal_{digest}")
        with self._connections.take() as connection:
            query = sql.SQL("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass({})")
            if connection.execute(query.format(sql.Literal(name.as_string(connection)))).fetchone() == (True,):
                return
            connection.execute("SET statement_timeout = 0")
            connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(name))
            short = sql.Identifier(f"vicinal_{digest}")
            connection.execute(index_query(self._table(table), kind, dim, self._vectors, short))
            connection.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(int(1000 * REQUEST_SECONDS))))

    def replace(self, table: str, by: str) -> None:
        with self._connections.take() as connection, connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            if not self._exists(connection, by):  # renamed already, by a call whose answer was lost
                return
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(table)))
            connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(self._table(by), sql.Identifier(table)))
            facts = self._table(FACTS)
            connection.execute(sql.SQL("DELETE FROM {} WHERE name = %s").format(facts), [table])
            connection.execute(sql.SQL("UPDATE {} SET name = %s WHERE name = %s").format(facts), [table, by])

    def drop(self, table: str) -> None:
        with self._connections.take() as connection, connection.transaction():
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(table)))
            if self._exists(connection, FACTS):
                query = sql.SQL("DELETE FROM {} WHERE name = %s").format(self._table(FACTS))
                connection.execute(query, [table])

    def set_columns(self, table: str, old: Kinds, new: Kinds) -> bool:
        with self._connections.take() as connection, connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            for name, kind in new.items():
                target = sql.SQL(TYPES[kind.kind])
                add = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}")
                connection.execute(add.format(self._table(table), column_name(name), target))
                if name in old and old[name].kind != kind.kind:
                    change = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING {}::{}")
                    column = column_name(name)
                    connection.execute(change.format(self._table(table), column, target, column, target))
        return True

    @contextmanager
    def only_one(self, table: str) -> Iterator[object]:
        with closing(self.call(self._locked_connection, table)):  # the lock ends with it
            yield None

    def _locked_connection(self, table: str) -> Any:
        query = "SELECT pg_try_advisory_lock(hashtextextended(coalesce(%s, current_schema()) || '.' || %s, 0))"
        with _translate_errors(), ExitStack() as stack:
            connection = stack.enter_context(closing(self._connections.connect()))
            if not connection.execute(query, [self._schema, table]).fetchone()[0]:
                raise InputError(f"{self.url}: another process builds or upgrades the index; wait for it")
            stack.pop_all()
            return connection

    # generations: each is a column of the table

    def begin(self, table: str, present: str | None, facts: Mapping[str, Any]) -> None:
        alter, column = sql.SQL("ALTER TABLE {}").format(self._table(table)), sql.Identifier(self._vectors)
        with self._connections.take() as connection, connection.transaction():
            add = sql.SQL("{} ADD COLUMN IF NOT EXISTS {} vector({})")
            connection.execute(add.format(alter, column, sql.Literal(facts["dim"])))
            optional = sql.SQL("{} ALTER COLUMN {} DROP NOT NULL")
            connection.execute(optional.format(alter, sql.Identifier(vector_column(present))))

    def missing(self, table: str, present: str | None, after: int, limit: int) -> Missing:
        query = sql.SQL(
            "SELECT id, md5(vector_send({})) FROM {} WHERE {} IS NULL AND id > %s ORDER BY id LIMIT %s"
        ).format(sql.Identifier(vector_column(present)), self._table(table), sql.Identifier(self._vectors))
        with self._connections.take() as connection:
            found = connection.execute(query, [after, limit]).fetchall()
        ids = np.array([number for number, _ in found], np.int64)
        return ids, [version for _, version in found], int(ids[-1]) if len(found) == limit else None

    def fill(self, table: str, present: str | None, ids: Integers, versions: Sequence[str], vectors: Floats) -> None:
        query = sql.SQL("UPDATE {} SET {} = %s WHERE id = %s AND md5(vector_send({})) = %s").format(
            self._table(table), sql.Identifier(self._vectors), sql.Identifier(vector_column(present))
        )
        with self._connections.take() as connection, connection.transaction():
            connection.cursor().executemany(query, list(zip(vectors, ids.tolist(), versions, strict=True)))

    def switch(self, table: str, facts: Mapping[str, Any], finish: Callable[[], object]) -> None:
        """In one transaction; others read the table meanwhile."""
        with self._connections.pinned() as connection, connection.transaction():
            self._lock_facts(connection, table)
            connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(self._table(table)))
            finish()
            self.change_facts(table, facts)

    def drop_generations(self, table: str, keep: Collection[str | None]) -> None:
        with self._connections.take() as connection:
            for column in set(self._columns(connection, table, VECTOR, GENERATION)) - set(map(vector_column, keep)):
                self._drop_column(connection, table, column)

    def _drop_column(self, connection: Any, table: str, column: str) -> None:
        drop = sql.SQL("ALTER TABLE {} DROP COLUMN {}")
        connection.execute(drop.format(self._table(table), sql.Identifier(column)))

    @property
    def _vectors(self) -> str:
        """The column with the vectors of the generation of this engine."""
        return vector_column(self.generation)

    def _columns(self, connection: Any, table: str, name: str, prefix: str) -> list[str]:
        """The columns of a name, or of one that begins with a prefix."""
        query = sql.SQL(
            "SELECT attname FROM pg_attribute WHERE attrelid = {}::regclass AND NOT attisdropped AND attnum > 0 "
            "AND (attname = {} OR starts_with(attname::text, {}))"
        ).format(*map(sql.Literal, (self._table(table).as_string(connection), name, prefix)))
        return [each for (each,) in connection.execute(query).fetchall()]

    def _check_generation(self, connection: Any, table: str) -> None:
        """Raise StaleGenerationError if the index has another generation than this engine writes."""
        query = sql.SQL("SELECT facts->>'generation' FROM {} WHERE name = %s").format(self._table(FACTS))
        row = connection.execute(query, [table]).fetchone()
        if row is not None and row[0] != self.generation:
            raise StaleGenerationError(self.url)

    @contextmanager
    def transaction(self, table: str) -> Iterator[None]:
        with self._connections.transaction() as connection:
            self._lock_facts(connection, table)
            yield

    def call(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        if self._connections.is_in_transaction:
            return function(*arguments, **options)
        return super().call(function, *arguments, **options)

    # the rows

    def write(self, table: str, rows: Rows, kinds: Kinds) -> None:
        """Where an image gets another vector, its vectors of other generations are missing from then on."""
        assert rows.vectors is not None
        names, own = list(kinds), sql.Identifier(self._vectors)
        columns = [sql.Identifier("id"), own, *map(column_name, names)]
        listed = sql.SQL(", ").join(columns)
        values = [sql.SQL("{0} = excluded.{0}").format(column) for column in columns[1:]]
        with self._connections.take() as connection, connection.transaction():
            create = sql.SQL("CREATE TEMPORARY TABLE vicinal_rows ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0")
            connection.execute(create.format(listed, self._table(table)))
            with connection.cursor().copy(sql.SQL("COPY vicinal_rows ({}) FROM STDIN").format(listed)) as copy:
                for number, vector, record in zip(rows.ids.tolist(), rows.vectors, rows.records, strict=True):
                    copy.write_row([number, vector, *(record.get(name) for name in names)])
            for codes in self._columns(connection, table, CODES, ENCODER):
                connection.execute(_clear_changed_codes(self._table(table), sql.Identifier(codes), own))
            keep_vector = sql.SQL("{0} = CASE WHEN stored.{1} = excluded.{1} THEN stored.{0} END")
            for name in set(self._columns(connection, table, VECTOR, GENERATION)) - {self._vectors}:
                values.append(keep_vector.format(sql.Identifier(name), own))
            insert = "INSERT INTO {} AS stored ({}) SELECT {} FROM vicinal_rows ON CONFLICT (id) DO UPDATE SET {}"
            connection.execute(sql.SQL(insert).format(self._table(table), listed, listed, sql.SQL(", ").join(values)))
            connection.execute("DROP TABLE vicinal_rows")  # the transaction may go on with other rows
            self._check_generation(connection, table)  # which does not change before the end of this transaction

    def delete(self, table: str, ids: Integers) -> None:
        query = sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(self._table(table))
        with self._connections.take() as connection:
            connection.execute(query, [ids.tolist()])

    def fetch(self, table: str, ids: Integers, kinds: Kinds, vectors: bool) -> Rows:
        query = sql.SQL("SELECT {} FROM {} WHERE id = ANY(%(ids)s) {}").format(
            self._select_list(kinds, vectors), self._table(table), self._has_vector_clause(vectors)
        )
        with self._connections.take() as connection:
            return _rows(connection.execute(query, {"ids": ids.tolist()}).fetchall(), kinds, vectors)

    def page(
        self, table: str, after: int, limit: int, where: SQLFilter | None, kinds: Kinds | None, vectors: bool
    ) -> Rows:
        where, known = where or EVERY_ROW, self._has_vector_clause(vectors)
        query = sql.SQL("SELECT {} FROM {} WHERE id > %(after)s AND {} {} ORDER BY id LIMIT %(limit)s").format(
            self._select_list(kinds or {}, vectors), self._table(table), sql.SQL(where.text), known
        )
        with self._connections.take() as connection:
            found = connection.execute(query, {"after": after, "limit": limit, **where.parameters}).fetchall()
        return _rows(found, kinds or {}, vectors)

    def count(self, table: str, where: SQLFilter | None, at_most: int | None) -> int:
        where = where or EVERY_ROW
        query = sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {} WHERE {} LIMIT %(limit)s) AS counted").format(
            self._table(table), sql.SQL(where.text)
        )
        with self._connections.take() as connection:
            row = connection.execute(query, {"limit": at_most, **where.parameters}).fetchone()
        return int(row[0])

    def search(
        self, table: str, queries: Floats, k: int, where: SQLFilter | None, facts: Mapping[str, Any]
    ) -> Neighbors:
        """By the index of the table; where it finds fewer than k, by comparing with all rows."""
        breadth = min(max(HNSW_SEARCH, 2 * k), MAX_BREADTH)
        with self._connections.take() as connection, connection.transaction():
            connection.execute(sql.SQL("SET LOCAL hnsw.ef_search = {}").format(sql.Literal(breadth)))
            connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            found = self._nearest(connection, table, queries, k, where or EVERY_ROW, facts["kind"], facts)
            missing = [row for row, each in enumerate(found) if len(each) < k] if facts["kind"] != "exact" else []
            if missing:
                exact_matches = self._nearest(
                    connection, table, queries[missing], k, where or EVERY_ROW, "exact", facts
                )
                for row, each in zip(missing, exact_matches, strict=True):
                    found[row] = each
        return sorted_neighbors(found, k)

    def _nearest(
        self, connection: Any, table: str, queries: Floats, k: int, where: SQLFilter, kind: Kind,
        facts: Mapping[str, Any],
    ) -> list[list[tuple[int, float]]]:  # fmt: skip
        vectors = vector_column(facts.get("generation"))
        query = search_query(self._table(table), where, kind, int(facts["dim"]), vectors)
        number = k if kind == "exact" else num_candidates(kind, int(facts["dim"]), k, facts.get("rescore"))
        parameters = {"k": k, "candidates": number, **where.parameters}
        cursors = []
        with connection.pipeline():  # all queries in one round trip
            for vector in queries:
                cursors.append(connection.execute(query, {"vector": vector, **parameters}))
            return [[(int(match[0]), float(match[1])) for match in cursor.fetchall()] for cursor in cursors]

    # local features

    def create_codes(self, table: str, encoder: str | None) -> None:
        codes = sql.Identifier(codes_column(encoder))
        with self._connections.take() as connection, connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            for change in ("ALTER TABLE {} DROP COLUMN IF EXISTS {}", "ALTER TABLE {} ADD COLUMN {} bytea"):
                connection.execute(sql.SQL(change).format(self._table(table), codes))

    def write_codes(self, table: str, encoder: str | None, ids: Integers, codes: Sequence[bytes]) -> None:
        query = sql.SQL(
            "UPDATE {} AS items SET {} = given.codes FROM unnest(%s::bigint[], %s::bytea[]) AS given(id, codes) "
            "WHERE items.id = given.id"
        ).format(self._table(table), sql.Identifier(codes_column(encoder)))
        with self._connections.take() as connection:
            connection.execute(query, [ids.tolist(), list(codes)])

    def codes(self, table: str, encoder: str | None, ids: Integers) -> dict[int, bytes]:
        query = sql.SQL("SELECT id, {0} FROM {1} WHERE id = ANY(%s) AND {0} IS NOT NULL").format(
            sql.Identifier(codes_column(encoder)), self._table(table)
        )
        with self._connections.take() as connection:
            return {int(number): bytes(each) for number, each in connection.execute(query, [ids.tolist()]).fetchall()}

    def drop_codes(self, table: str, keep: Collection[str | None]) -> None:
        with self._connections.take() as connection:
            for column in set(self._columns(connection, table, CODES, ENCODER)) - set(map(codes_column, keep)):
                self._drop_column(connection, table, column)

    def without_codes(self, encoder: str | None) -> SQLFilter:
        return SQLFilter(f'"{codes_column(encoder)}" IS NULL')

    # filters

    def filter(self, condition: Condition, kinds: Kinds, text: str) -> SQLFilter:
        return PostgresWriter(kinds, text).write(condition)

    def path_filter(self, path: str, kinds: Kinds) -> SQLFilter:
        if "path" not in kinds:
            return SQLFilter("FALSE")
        text = "((path = %(path)s OR starts_with(path, %(below)s)) IS TRUE)"
        return SQLFilter(text, {"path": path, "below": path.rstrip("/") + "/"})

    def id_filter(self, ids: Integers) -> SQLFilter:
        return SQLFilter("id = ANY(%(ids)s)", {"ids": ids.tolist()})

    def exclude(self, where: SQLFilter | None, number: int) -> SQLFilter:
        where = where or EVERY_ROW
        return SQLFilter(f"({where.text} AND id <> %(excluded)s)", {**where.parameters, "excluded": number})

    def check_build(self, kind: Kind, dim: int, rescore: int | None) -> None:
        super().check_build(kind, dim, rescore)
        if rescore is not None and (kind != "binary" or not 1 <= rescore <= MAX_RESCORE):
            raise InputError(
                f"rescore = {rescore} is invalid for {kind} in PostgreSQL; binary has 1 to {MAX_RESCORE:,}, the "
                "others compare exactly"
            )
        limit = {"exact": MAX_DIM, "hnsw": MAX_HALF_DIM, "binary": min(MAX_DIM, MAX_BIT_DIM)}[kind]
        if dim > limit:
            raise InputError(f"pgvector supports {kind} indexes of up to {limit:,} dimensions, not {dim:,}; use --dim")

    def check_records(self, records: Sequence[Record]) -> None:
        for record in records:
            for name, value in record.items():
                if isinstance(value, str) and "\0" in value:
                    raise InputError(f"column {name!r} holds a NUL character, which PostgreSQL cannot store")

    # names

    def _select_list(self, kinds: Kinds, vectors: bool) -> sql.Composable:
        last = [sql.Identifier(self._vectors)] if vectors else []
        return sql.SQL(", ").join([sql.Identifier("id"), *map(column_name, kinds), *last])

    def _has_vector_clause(self, vectors: bool) -> sql.Composable:
        """The condition that a row has a vector, if that is asked for."""
        return sql.SQL("AND {} IS NOT NULL" if vectors else "").format(sql.Identifier(self._vectors))

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier(name) if self._schema is None else sql.Identifier(self._schema, name)

    def _exists(self, connection: Any, table: str) -> bool:
        query = sql.SQL("SELECT to_regclass({}) IS NOT NULL").format(
            sql.Literal(self._table(table).as_string(connection))
        )
        return bool(connection.execute(query).fetchone()[0])

    def _is_indexed(self, connection: Any, table: str) -> bool:
        query = sql.SQL(
            "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam "
            "WHERE indrelid = {}::regclass AND amname = 'hnsw'"
        ).format(sql.Literal(self._table(table).as_string(connection)))
        return bool(connection.execute(query).fetchone()[0])


def _clear_changed_codes(table: sql.Identifier, codes: sql.Identifier, vectors: sql.Identifier) -> sql.Composable:
    """Delete the local features of the rows that get another vector, since their image has changed."""
    return sql.SQL(
        "UPDATE {0} SET {1} = NULL FROM vicinal_rows WHERE {0}.id = vicinal_rows.id AND {0}.{2} <> vicinal_rows.{2}"
    ).format(table, codes, vectors)


def _rows(results: Sequence[Sequence[Any]], kinds: Kinds, vectors: bool) -> Rows:
    names = list(kinds)
    records = [
        {name: value for name, value in zip(names, row[1:], strict=False) if value is not None} for row in results
    ]
    arrays = np.array([row[-1].to_numpy() for row in results], np.float32) if vectors and len(results) else None
    ids = np.array([row[0] for row in results], dtype=np.int64)
    return Rows(ids, records, arrays if arrays is not None or not vectors else np.empty((0, 0), np.float32))
