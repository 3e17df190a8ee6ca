"""Connections to PostgreSQL with pgvector, and which of its errors may pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import CONNECT_SECONDS, REQUEST_SECONDS, Pool, TransientFault
from vicinal.utils.errors import EngineRefusedError, InputError, one_line

TRANSIENT_STATES = ("08", "53", "57P", "40001", "40P01", "25P03", "57014", "55P03", "23505")
REFUSED_STATES = ("28", "3D")  # password, database: they do not pass
MISSING_STATES = ("42501", "42P01", "42703", "3F000")  # rights, a table, a column, a schema


class PostgresConnections:
    """Open connections to a database, each of which is used by one call at a time.

    Args:
        url: of the index.
        timeout: seconds during which a call is repeated after faults that may pass.
    """

    def __init__(self, url: EngineURL, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self._pool = Pool(self._connect, lambda connection: connection.close())

    def close(self) -> None:
        """Close those that no call uses."""
        self._pool.close()

    @contextmanager
    def take(self) -> Iterator[Any]:
        """A connection for one call; a broken one is not used again.

        Raises:
            TransientFault: the call failed in a way that may pass.
            EngineRefusedError: the database refuses the connection, or lacks a table.
            InputError: the call failed otherwise.
        """
        with _faults():
            connection = self._pool.take()
            try:
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    raise psycopg.OperationalError("the connection is in an unknown state")
                if not connection.vicinal_has_vector:
                    _register(connection)
                yield connection
            except BaseException:
                if connection.broken:  # so are the others, if the server has ended
                    self._pool.close()
                with suppress(psycopg.Error):
                    connection.close()
                raise
            self._pool.give_back(connection)

    def _connect(self) -> Any:
        url = self.url
        named = {"host": url.host, "port": url.port, "user": url.user, "dbname": url.database}
        options: dict[str, Any] = {name: str(value) for name, value in named.items() if value is not None}
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
def _faults() -> Iterator[None]:
    """Tell faults that may pass from those that do not; messages hold no password, since libpq writes none."""
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
