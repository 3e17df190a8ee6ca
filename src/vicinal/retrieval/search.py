"""From queries to found images, with all that is known of both, for people, machines and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index import Index

Facts = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A query and what was found for it.

    Attributes:
        query: what is known of the query: its id, path and label, if any.
        matches: best first; id, score (cosine similarity), path and label of each.
    """

    query: Facts
    matches: list[Facts]

    def to_dict(self) -> Facts:
        """Plain values, ready for JSON."""
        return {"query": self.query, "matches": self.matches}

    def __str__(self) -> str:
        lines = [_name(self.query, "query")]
        for rank, match in enumerate(self.matches, start=1):
            lines.append(f"{rank:4d}  {match['score']:.4f}  {_name(match, 'id ' + str(match['id']))}")
        return "\n".join(lines)


def find(
    index: Index,
    vectors: npt.NDArray[np.float32],
    table: Table,
    k: int,
    leave_out_itself: bool = False,
    refiner: ContextRefiner | None = None,
) -> list[Found]:
    """Search for every vector and say what was found.

    Args:
        index: where to search.
        vectors: float32 [q, d].
        table: q rows, what is known of the queries.
        k: how many matches each query gets.
        leave_out_itself: leave out matches with the query's own path; k others are left unless the index holds fewer.
        refiner: the one that the index was built with, if it was built with one. A query whose path is in the index
            does not look at its own embedding, left out or not; a path that is there again counts as a duplicate.

    Raises:
        InputError: k is larger than the index, vectors of another dimension, or another refiner.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["cat", "dog"]}))
        >>> vectors = np.eye(2, dtype=np.float32)
        >>> find(Index.build(vectors, table), vectors, table, k=1)[0].matches[0]["label"]
        'cat'
    """
    # A query in the index is one match more than wanted; an index that holds only k cannot give it.
    wanted = min(k + 1, max(k, len(index))) if leave_out_itself else k
    itself = None if refiner is None or not table.has("path") else index.ids_of(table.paths)
    result = index.search(vectors, wanted, refiner, itself)
    facts = _facts(table.frame)
    items = {item["id"]: item for item in _facts(index.lookup(np.unique(result.ids)))}
    found = []
    for query, ids, scores in zip(facts, result.ids, result.scores, strict=True):
        matches = [{**items[i], "score": float(score)} for i, score in zip(ids.tolist(), scores, strict=True)]
        if leave_out_itself:
            matches = [match for match in matches if "path" not in match or match["path"] != query.get("path")]
        found.append(Found(query, matches[:k]))
    return found


def _facts(frame: pd.DataFrame) -> list[Facts]:
    """Id, path and label of every row, those that there are, as plain values."""
    rows: list[Facts] = [{} for _ in range(len(frame))]
    for column in ("id", "path", "label"):
        if column in frame:
            known = frame[column].notna().tolist()
            for facts, value, there in zip(rows, frame[column].tolist(), known, strict=True):
                if there:
                    facts[column] = value.item() if isinstance(value, np.generic) else value
    return rows


def _name(facts: Facts, otherwise: str) -> str:
    label = f"{facts['label']}  " if "label" in facts else ""
    return label + str(facts.get("path", otherwise))
