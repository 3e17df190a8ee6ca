"""Searching an index for queries of a table: results with paths and labels, for people, JSON and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.index import Index
from vicinal.utils.arrays import Floats

Record = dict[str, Any]


@dataclass(frozen=True)
class SearchResult:
    """A query and its matches in an index.

    Attributes:
        query: `id`, `path` and `label` of the query, those that are known.
        matches: best first; `id` and `score` (cosine similarity) of each, and `path` and `label` where they are known.
    """

    query: Record
    matches: list[Record]

    def to_dict(self) -> Record:
        """Return plain values, ready for JSON."""
        return {"query": self.query, "matches": self.matches}

    def __str__(self) -> str:
        lines = [_describe(self.query, "query")]
        for rank, match in enumerate(self.matches, start=1):
            lines.append(f"{rank:4d}  {match['score']:.4f}  {_describe(match, 'id ' + str(match['id']))}")
        return "\n".join(lines)


def search_images(
    index: Index,
    vectors: Floats,
    table: Table,
    k: int,
    exclude_self: bool = False,
    refiner: ContextRefiner | None = None,
) -> list[SearchResult]:
    """Search an index for every row of a table.

    Args:
        index: the index to search.
        vectors: float32 [q, d], the queries.
        table: one row per query.
        k: number of matches per query.
        exclude_self: whether to leave out matches that have the query's own path; there are k others unless the index
            has fewer.
        refiner: the refiner that the index was built with, if any. The embedding of a query whose path is in the index
            is not among the neighbors by which the query is refined, whether its match is left out or not; another
            image of the same path counts as a duplicate.

    Raises:
        InputError: k is larger than the index, vectors have a different dimension, or the refiner is not the index's.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["cat", "dog"]}))
        >>> vectors = np.eye(2, dtype=np.float32)
        >>> search_images(Index.build(vectors, table), vectors, table, k=1)[0].matches[0]["label"]
        'cat'
    """
    with index.reading():  # so that no match is deleted before it is looked up
        # A query that is in the index takes one match more; an index of only k images cannot give it.
        num_matches = min(k + 1, max(k, len(index))) if exclude_self else k
        query_ids = None if refiner is None or not table.has("path") else index.metadata.ids_by_path(table.paths)
        neighbors = index.search(vectors, num_matches, refiner, query_ids)
        found = index.metadata.lookup(np.unique(neighbors.ids))
    known = {record["id"]: record for record in _records(found)}
    results = []
    for query, ids, scores in zip(_records(table.frame), neighbors.ids, neighbors.scores, strict=True):
        matches = [{**known[i], "score": float(score)} for i, score in zip(ids.tolist(), scores, strict=True)]
        if exclude_self:
            matches = [match for match in matches if "path" not in match or match["path"] != query.get("path")]
        results.append(SearchResult(query, matches[:k]))
    return results


def _records(frame: pd.DataFrame) -> list[Record]:
    """Return `id`, `path` and `label` of every row as plain values, without those that are missing."""
    records: list[Record] = [{} for _ in range(len(frame))]
    for column in ("id", "path", "label"):
        if column in frame:
            present = frame[column].notna().tolist()
            for record, value, is_present in zip(records, frame[column].tolist(), present, strict=True):
                if is_present:
                    record[column] = _plain(value) if column != "path" else str(value)
    return records


def _plain(value: Any) -> Any:
    """Return text, a number or a boolean as it is, ready for JSON; other values, such as dates, as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float) else str(value)


def _describe(record: Record, default: str) -> str:
    label = f"{record['label']}  " if "label" in record else ""
    return label + str(record.get("path", default))
