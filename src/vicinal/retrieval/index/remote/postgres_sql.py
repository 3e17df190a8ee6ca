"""The SQL of PostgreSQL: names of columns, conditions, and the search for the nearest vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from psycopg import sql

from vicinal.data.column_kinds import ColumnKind
from vicinal.data.conditions import SQLFilter, SQLWriter
from vicinal.retrieval.index.kinds import DEFAULT_RESCORE, HNSW_BUILD, HNSW_LINKS, MIN_NEIGHBORS, Kind

TYPES = {"integer": "bigint", "floating": "double precision", "boolean": "boolean", "string": "text"}
VECTOR, CODES = "embedding", "vicinal_local_features"
GENERATION = "x_vectors_"  # followed by the name of a generation: the column of its vectors, after an upgrade
ENCODER = "x_codes_"  # followed by the name of an encoder: the column of its local features, after an upgrade
OWN = (VECTOR, CODES)  # columns of Vicinal; `id` of a table of images has another name already
MAX_BYTES = 63  # of a name; PostgreSQL cuts longer ones
MAX_HNSW_DIM = 2_000  # of pgvector's indexes of vectors; longer ones are indexed as halves
HALF_RESCORE = 2  # candidates per neighbor of a graph of halves


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
    return sql.Identifier(column_key(name))


class PostgresWriter(SQLWriter):
    """Writes conditions in SQL."""

    def __init__(self, kinds: Mapping[str, ColumnKind], text: str) -> None:
        super().__init__(kinds, text, _quoted)

    def side(self, column: str, sign: str, as_number: bool, is_integer: bool) -> str:
        """A column as it is compared; PostgreSQL converts nothing implicitly, and sorts texts by a language."""
        name, kind = self.column_of(column), self.kinds[column].kind
        if kind == "boolean":
            return f"{name}::int" if as_number else name
        if kind != "string":
            return name
        if as_number:
            return f"nullif({name}, '')::{'numeric' if is_integer else 'double precision'}"
        return name if sign in ("==", "!=") else f'{name} COLLATE "C"'

    def position(self, column: str, text: str) -> str:
        return f"strpos({column}, {text})"

    def placeholder(self, name: str) -> str:
        return f"%({name})s"

    def check_text(self, text: str) -> None:
        super().check_text(text)
        if "\0" in text:
            self.fail("it holds a text with a NUL character, which PostgreSQL cannot store")


def _quoted(name: str) -> str:
    """The quoted name of a column; a percent sign would begin a parameter."""
    return '"' + column_key(name).replace('"', '""').replace("%", "%%") + '"'


def vector_column(generation: str | None) -> str:
    """The name of the column with the vectors of a generation; None: those that an index was built with."""
    return VECTOR if generation is None else GENERATION + generation


def codes_column(encoder: str | None) -> str:
    return CODES if encoder is None else ENCODER + encoder


def index_query(
    table: sql.Identifier, kind: Kind, dim: int, vectors: str = VECTOR, while_used: sql.Identifier | None = None
) -> sql.Composable:
    """Build the index for fast search; `while_used`: its name, if others change the table meanwhile."""
    column, operators, _, _ = _coarse(kind, dim, vectors)
    name = sql.SQL("") if while_used is None else sql.SQL("CONCURRENTLY {}").format(while_used)
    return sql.SQL("CREATE INDEX {} ON {} USING hnsw (({}) {}) WITH (m = {}, ef_construction = {})").format(
        name, table, column, sql.SQL(operators), sql.Literal(HNSW_LINKS), sql.Literal(HNSW_BUILD)
    )


def search_query(table: sql.Identifier, where: SQLFilter, kind: Kind, dim: int, vectors: str) -> sql.Composable:
    """The nearest by the vectors of a column, or first by the indexed expression and then by the vectors."""
    name, vector = sql.Identifier(vectors), sql.Placeholder("vector")
    score = sql.SQL("-({} <#> {}) AS score").format(name, vector)
    if kind == "exact":  # the sum keeps an index from being used
        return sql.SQL(
            "SELECT id, {} FROM {} WHERE {} IS NOT NULL AND {} ORDER BY ({} <#> {}) + 0, id LIMIT %(k)s"
        ).format(score, table, name, sql.SQL(where.text), name, vector)  # fmt: skip
    column, _, distance, query = _coarse(kind, dim, vectors)
    coarse = sql.SQL("SELECT id, {} FROM {} WHERE {} IS NOT NULL AND {} ORDER BY {} {} {} LIMIT %(candidates)s").format(
        score, table, name, sql.SQL(where.text), column, sql.SQL(distance), query
    )
    return sql.SQL("SELECT id, score FROM ({}) AS nearest ORDER BY score DESC, id LIMIT %(k)s").format(coarse)


def _coarse(kind: Kind, dim: int, vectors: str) -> tuple[sql.Composable, str, str, sql.Composable]:
    """The indexed expression, its operators, the distance, and the expression of the query."""
    name, vector, size = sql.Identifier(vectors), sql.Placeholder("vector"), sql.Literal(dim)
    if kind == "binary":
        form = "binary_quantize({})::bit({})"
        return (
            sql.SQL(form).format(name, size), "bit_hamming_ops", "<~>",
            sql.SQL("binary_quantize({}::vector)").format(vector),
        )  # fmt: skip
    if dim > MAX_HNSW_DIM:
        form = "{}::halfvec({})"
        return sql.SQL(form).format(name, size), "halfvec_ip_ops", "<#>", sql.SQL(form).format(vector, size)
    return name, "vector_ip_ops", "<#>", vector


def num_candidates(kind: Kind, dim: int, k: int, rescore: int | None) -> int:
    """The number of candidates from the database's index that are compared by their vectors."""
    if kind == "binary":
        return (rescore or DEFAULT_RESCORE["binary"]) * max(k, MIN_NEIGHBORS)
    return k if dim <= MAX_HNSW_DIM else HALF_RESCORE * k
