"""What an evaluation's queries find: the nearest gallery images of each, as rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.protocol import LEAVE_ONE_OUT, Evaluation
from vicinal.evaluation.relevance import group_codes
from vicinal.report.page.scores import score_name
from vicinal.retrieval.neighbors import LeftOut, nearest
from vicinal.retrieval.scores import Array, UnitVectors

NEIGHBORS = 10  # of each query
CHUNK = 2048  # queries a block: many, for the whole gallery is brought to length one for each block

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Neighborhood:
    """The nearest gallery images of each query, best first.

    Attributes:
        positions: int64 [q], which of the evaluation's queries these are; those that nothing is left for are not there.
        queries: int64 [q], rows of the table.
        gallery: int64 [g], rows of the table.
        found: int64 [q, k], rows of the table.
        scores: float32 [q, k], cosine similarities.
        right: bool [q, k], whether it is of the query's class.
    """

    positions: Integers
    queries: Integers
    gallery: Integers
    found: Integers
    scores: npt.NDArray[np.float32]
    right: npt.NDArray[np.bool_]

    @property
    def k(self) -> int:
        return self.found.shape[1]


def neighborhood(vectors: Array, table: Table, evaluation: Evaluation, k: int = NEIGHBORS) -> Neighborhood:
    """Search as the evaluation did: without the query itself, and without images of its own class and group.

    Args:
        vectors: float [rows, dim].
        table: one row a vector, with labels.
        evaluation: of both.
        k: neighbours a query; fewer where some query has fewer left to find.

    Raises:
        InputError: the three do not belong together.

    Example:
        >>> import pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = neighborhood(vectors, table, evaluate(vectors, table, recall_at=[1]), k=1)
        >>> found.found.ravel().tolist(), found.right.all().item()
        ([1, 0, 3, 2], True)
    """
    gallery = gallery_rows(table, evaluation)
    _check_rows(vectors, table, evaluation)
    groups = _groups(table)
    left = _left(evaluation.query_rows, gallery, groups)
    positions = np.flatnonzero(left >= 1)
    if not len(positions):
        raise InputError("no query has a gallery image to find; a page needs at least one")
    k = min(k, int(left[positions].min()))
    queries = evaluation.query_rows[positions]
    places = np.full(len(table), -1)
    places[gallery] = np.arange(len(gallery))
    left_out = LeftOut(len(queries), len(gallery), places[queries], groups[queries], groups[gallery])
    asked, searched = (UnitVectors(vectors, "embedding", _some(rows, len(table))) for rows in (queries, gallery))
    neighbors = nearest(asked, searched, k, left_out, min(CHUNK, len(queries)))
    found = gallery[neighbors.indices]
    right = table.labels[found] == table.labels[queries][:, None]
    return Neighborhood(positions, queries, gallery, found, neighbors.scores, right)


def with_positives(found: Neighborhood, evaluation: Evaluation) -> Neighborhood:
    """Without the queries that have nothing to find: of these no neighbour can be right, and they have no score.

    Example:
        >>> import pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> result = evaluate(np.eye(3), table, recall_at=[1])
        >>> with_positives(neighborhood(np.eye(3), table, result), result).queries
        array([0, 1])
    """
    kept = ~np.isnan(evaluation.per_query[score_name(evaluation)][found.positions])
    lines = {name: getattr(found, name)[kept] for name in ("positions", "queries", "found", "scores", "right")}
    return replace(found, **lines)


def gallery_rows(table: Table, evaluation: Evaluation) -> Integers:
    """The rows of the table that are searched.

    Raises:
        InputError: the evaluation has a gallery, and the table does not say which.
    """
    if evaluation.protocol == LEAVE_ONE_OUT:
        return np.arange(len(table))
    if not table.has("is_gallery"):
        raise InputError("the evaluation is of queries against a gallery; the table needs columns is_query, is_gallery")
    return np.flatnonzero(table.frame["is_gallery"].to_numpy(dtype=bool))


def _some(rows: Integers, total: int) -> Integers | None:
    """None for all rows in their order, which are read where they lie; else the rows, which are gathered."""
    return None if np.array_equal(rows, np.arange(total)) else rows


def _check_rows(vectors: Array, table: Table, evaluation: Evaluation) -> None:
    if len(vectors) != len(table):
        raise InputError(f"{len(vectors)} embeddings, but a table of {len(table)} rows; there must be one an embedding")
    last = int(evaluation.query_rows.max(initial=-1))
    if last >= len(table):
        raise InputError(f"the evaluation has a query in row {last}; the table has {len(table)}, numbered from 0")


def _groups(table: Table) -> Integers:
    """A number for each class and group, which a query of them must not find; -1 without a group."""
    groups = group_codes(table)
    return np.where(groups < 0, -1, table.labels * (groups.max(initial=0) + 1) + groups)


def _left(queries: Integers, gallery: Integers, groups: Integers) -> Integers:
    """How many gallery images each query may find."""
    itself = np.isin(queries, gallery).astype(np.int64)
    of_gallery = np.sort(groups[gallery])
    first, last = (np.searchsorted(of_gallery, groups[queries], side) for side in ("left", "right"))
    return len(gallery) - np.where(groups[queries] >= 0, last - first, itself)
