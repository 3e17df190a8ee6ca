"""The location of an index: a folder, or the URL of a table of a database or a collection of a vector database."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from vicinal.utils.errors import InputError, one_line

SCHEMES = {"milvus": "milvus", "postgresql": "postgresql", "postgres": "postgresql"}
MILVUS_PORT = 19530
MAX_NAME = 48  # characters of a table or collection, beside which others have longer names
MILVUS_OPTIONS = ("tls",)
POSTGRES_OPTIONS = (
    "host",
    "port",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslcrl",
    "channel_binding",
    "gssencmode",
    "krbsrvname",
    "target_session_attrs",
    "load_balance_hosts",
    "passfile",
    "service",
)
"""Options of libpq besides host, user and database; no password, which `ps` and logs would show."""
SECRETS = ("password", "passwd", "pwd", "token", "secret", "api_key", "apikey", "sslpassword")


@dataclass(frozen=True)
class EngineURL:
    """Where a remote index is; it holds no password."""

    engine: str  # milvus or postgresql
    table: str  # or collection
    host: str | None = None  # None: the default of the client, such as a local socket
    port: int | None = None
    user: str | None = None
    database: str | None = None
    options: tuple[tuple[str, str], ...] = ()  # further settings of the connection, and the `schema` of a table

    @classmethod
    def parse(cls, text: str) -> EngineURL:
        """Read a URL; raises InputError if it names no table, or holds a password."""
        try:
            parts = urlsplit(text)
            host, port, password = parts.hostname, parts.port, parts.password
        except ValueError as error:
            raise InputError(f"the URL of the index cannot be read: {one_line(error)}") from None
        engine = SCHEMES.get(parts.scheme.lower())
        if engine is None:
            raise InputError(f"{one_line(parts.scheme, 40)}: not the scheme of an index; use postgresql or milvus")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        _refuse_secrets(engine, password is not None, query)
        if parts.fragment:
            raise InputError(f"{engine} URL: leave out what follows #, or write it as %23")
        path = [unquote(part) for part in parts.path.split("/") if part]
        user = unquote(parts.username) if parts.username else None
        if engine == "milvus":
            return cls._milvus(path, query, host, port, user)
        return cls._postgres(path, query, host, port, user)

    @classmethod
    def _milvus(
        cls, path: list[str], query: dict[str, str], host: str | None, port: int | None, user: str | None
    ) -> EngineURL:
        if host is None or len(path) not in (1, 2):
            raise InputError("a Milvus index is milvus://HOST:19530/COLLECTION, or .../DATABASE/COLLECTION")
        if user is not None:
            raise InputError("milvus URL: give the user in the variable VICINAL_MILVUS_TOKEN, as USER:PASSWORD")
        options = _options(query, MILVUS_OPTIONS, "milvus")
        if options.get("tls", "false") not in ("true", "false"):
            raise InputError(f"milvus URL: tls={one_line(options['tls'], 40)!r} is invalid; use true or false")
        name = path[-1]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(f"milvus URL: {one_line(name, 80)!r} is not a collection name; use letters, digits, _")
        return cls(
            "milvus", _checked_name(name), host, port or MILVUS_PORT, None, path[0] if len(path) == 2 else None,
            tuple(options.items()),
        )  # fmt: skip

    @classmethod
    def _postgres(
        cls, path: list[str], query: dict[str, str], host: str | None, port: int | None, user: str | None
    ) -> EngineURL:
        table, schema = query.pop("table", ""), query.pop("schema", "")
        if len(path) > 1 or not table:
            raise InputError("a PostgreSQL index is postgresql://USER@HOST/DATABASE?table=TABLE")
        options = _options(query, POSTGRES_OPTIONS, "postgresql")
        if schema:
            options["schema"] = _checked_name(schema)
        database = path[0] if path else None
        return cls("postgresql", _checked_name(table), host, port, user, database, tuple(options.items()))

    def option(self, name: str) -> str | None:
        return dict(self.options).get(name)

    def __str__(self) -> str:
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host or ""
        server = (f"{quote(self.user, '')}@" if self.user else "") + host + (f":{self.port}" if self.port else "")
        names = [self.database, self.table if self.engine == "milvus" else None]
        path = "/".join(quote(name, "") for name in names if name)
        first = [] if self.engine == "milvus" else [("table", self.table)]
        query = "&".join(f"{name}={quote(value, '/')}" for name, value in [*first, *self.options])
        return f"{self.engine}://{server}/{path}" + (f"?{query}" if query else "")


def is_engine_url(place: object) -> bool:
    """Whether the place of an index is the URL of an engine, and not a folder."""
    return isinstance(place, str | Path) and str(place).partition("://")[0].lower() in SCHEMES and "://" in str(place)


def _options(query: dict[str, str], known: tuple[str, ...], engine: str) -> dict[str, str]:
    for name in query:
        if name not in known:
            raise InputError(f"{engine} URL: unknown option {one_line(name, 40)!r}; the options are {', '.join(known)}")
    return query


def _checked_name(name: str) -> str:
    if len(name.encode("utf-8", "replace")) > MAX_NAME or not name.isprintable():
        raise InputError(f"{one_line(name, 80)!r} is not a table name; use at most {MAX_NAME} printable characters")
    return name


def _refuse_secrets(engine: str, has_password: bool, query: dict[str, str]) -> None:
    """Refuse a password, without repeating it: a command line is seen by other users, and kept in histories."""
    named = [name for name in query if name.lower() in SECRETS]
    if not has_password and not named:
        return
    where = "the variable PGPASSWORD or the file ~/.pgpass" if engine == "postgresql" else "VICINAL_MILVUS_TOKEN"
    raise InputError(f"the {engine} URL holds a password; leave it out of the URL, and give it by {where}")
