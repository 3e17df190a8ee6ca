"""The columns of an index as columns of a table of PostgreSQL."""

from __future__ import annotations

import hashlib

from psycopg import sql

TYPES = {"integer": "bigint", "floating": "double precision", "boolean": "boolean", "string": "text"}
VECTOR = "embedding"
OWN = (VECTOR,)  # columns of Vicinal; `id` of a table of images has another name already
MAX_BYTES = 63  # of a name; PostgreSQL cuts longer ones


def column_key(name: str) -> str:
    """The name of a column in the database: its own, or for a name that is taken or too long one that begins with x_.

    Example:
        >>> column_key("Preis in €"), column_key("embedding")
        ('Preis in €', 'x_aa580156f36e357b5bfb')
    """
    if name and name not in OWN and len(name.encode()) <= MAX_BYTES and "\0" not in name and name[:2] != "x_":
        return name
    return "x_" + hashlib.sha256(name.encode()).hexdigest()[:20]


def column_name(name: str) -> sql.Identifier:
    """The quoted name of a column."""
    return sql.Identifier(column_key(name))
