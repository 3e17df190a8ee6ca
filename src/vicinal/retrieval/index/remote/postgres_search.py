"""Statements that index vectors in a table of PostgreSQL, and that search for the nearest of them."""

from __future__ import annotations

from psycopg import sql

from vicinal.data.conditions import SQLFilter
from vicinal.retrieval.index.kinds import DEFAULT_RESCORE, HNSW_BUILD, HNSW_LINKS, MIN_NEIGHBORS, Kind
from vicinal.retrieval.index.remote.postgres_columns import VECTOR

MAX_HNSW_DIM = 2_000  # of pgvector's indexes of vectors; longer ones are indexed as halves
HALF_RESCORE = 2  # candidates per neighbor of a graph of halves


def index_query(table: sql.Identifier, kind: Kind, dim: int) -> sql.Composable:
    """Build the index that makes a search fast."""
    column, operators, _, _ = _coarse(kind, dim)
    return sql.SQL("CREATE INDEX ON {} USING hnsw (({}) {}) WITH (m = {}, ef_construction = {})").format(
        table, column, sql.SQL(operators), sql.Literal(HNSW_LINKS), sql.Literal(HNSW_BUILD)
    )


def search_query(table: sql.Identifier, where: SQLFilter, kind: Kind, dim: int) -> sql.Composable:
    """The nearest by the vectors themselves, or the nearest of those that are nearest by what is indexed."""
    name, vector = sql.Identifier(VECTOR), sql.Placeholder("vector")
    score = sql.SQL("-({} <#> {}) AS score").format(name, vector)
    if kind == "exact":  # the sum keeps an index from being used
        return sql.SQL(
            "SELECT id, {} FROM {} WHERE {} ORDER BY ({} <#> {}) + 0, id LIMIT %(k)s"
        ).format(score, table, sql.SQL(where.text), name, vector)  # fmt: skip
    column, _, distance, query = _coarse(kind, dim)
    coarse = sql.SQL("SELECT id, {} FROM {} WHERE {} ORDER BY {} {} {} LIMIT %(candidates)s").format(
        score, table, sql.SQL(where.text), column, sql.SQL(distance), query
    )
    return sql.SQL("SELECT id, score FROM ({}) AS nearest ORDER BY score DESC, id LIMIT %(k)s").format(coarse)


def _coarse(kind: Kind, dim: int) -> tuple[sql.Composable, str, str, sql.Composable]:
    """What is indexed, its operators, the distance, and the query beside it."""
    name, vector, size = sql.Identifier(VECTOR), sql.Placeholder("vector"), sql.Literal(dim)
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
    """How many of the nearest by what is indexed are compared by the vectors themselves."""
    if kind == "binary":
        return (rescore or DEFAULT_RESCORE["binary"]) * max(k, MIN_NEIGHBORS)
    return k if dim <= MAX_HNSW_DIM else HALF_RESCORE * k
