"""Evaluation of queries against a gallery, both given as arrays of embeddings and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.evaluation.metrics import metrics_by_name
from vicinal.evaluation.protocol import FINE, OTHER_GROUPS, QUERY_GALLERY, score_queries
from vicinal.evaluation.relevance import Relevance
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.exclusions import check_exclude_self
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import check_not_masked, is_integer
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

FAMILIES = {"i": "integers", "u": "integers", "b": "booleans", "U": "text", "S": "text"}  # by the kinds of numpy


def evaluate_arrays(
    query_embeddings: Array,
    query_labels: npt.ArrayLike,
    gallery_embeddings: Array,
    gallery_labels: npt.ArrayLike,
    recall_at: Sequence[int] | None = None,
    *,
    exclude_self: npt.ArrayLike | None = None,
    query_groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    metrics: Sequence[str] = (),
    rerank: Reranking | None = None,
    chunk_size: int | None = None,
) -> Evaluation:
    """Evaluate queries against a gallery; :func:`~vicinal.evaluation.evaluate` does so for a table.

    Args:
        query_embeddings: float [q, dim]. Everything is computed on their device.
        query_labels: [q], integers or text; a negative number is a class like any other.
        gallery_embeddings: float [g, dim].
        gallery_labels: [g]; an image whose label no query has is a distractor.
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as the gallery is large enough.
        exclude_self: int [q], the gallery row that is the query itself, -1 for none.
        query_groups: [q], given together with `gallery_groups`: same-label images of the same group are excluded.
            Integers or text; a negative integer is for no group, as in a table.
        gallery_groups: [g].
        metrics: as in `evaluate`.
        rerank: as in `evaluate`.
        chunk_size: as in `evaluate`.

    Raises:
        InputError: numbers of rows differ, NaN or infinity in an embedding, labels or groups of other types, an
            invalid k, chunk size or excluded row, an unknown metric, no query with a positive, or a re-ranking that
            needs more neighbors than there are.

    Example:
        >>> evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"], recall_at=[1]).metrics["mAP"]
        1.0
    """
    queries = gallery = UnitVectors(query_embeddings, "query")
    if gallery_embeddings is not query_embeddings:  # a set that searches itself takes half of the product
        gallery = UnitVectors(gallery_embeddings, "gallery vector", device=queries.device)
    sizes = len(queries), len(gallery)
    labels = _common_codes(query_labels, gallery_labels, sizes, "labels")
    groups: tuple[Integers | None, Integers | None] = (None, None)
    if query_groups is not None and gallery_groups is not None:
        groups = _common_codes(query_groups, gallery_groups, sizes, "groups", negative_is_none=True)
    elif query_groups is not None or gallery_groups is not None:
        raise InputError("query_groups and gallery_groups go together; give both or neither")
    excluded = np.full(len(queries), -1)
    if exclude_self is not None:
        rows = _column(exclude_self, sizes[0], "exclude_self")
        if rows.dtype.kind not in "iu":
            raise InputError(f"exclude_self is of type {rows.dtype}; give the gallery row of each query, -1 for none")
        excluded = rows.astype(np.int64)
        check_exclude_self(excluded, sizes[1])
    relevance = Relevance(*labels, exclude_self=excluded, query_groups=groups[0], gallery_groups=groups[1])
    return score_queries(
        QueryGallery(queries, gallery, excluded, chunk_size),
        {FINE: relevance},
        metrics_by_name(recall_at, metrics, max_k=len(gallery)),
        protocol=QUERY_GALLERY + ("" if groups[0] is None else OTHER_GROUPS),
        query_indices=np.arange(len(queries)),
        rerank=rerank,
        chunk_size=chunk_size,
    )


def _common_codes(
    of_queries: npt.ArrayLike,
    of_gallery: npt.ArrayLike,
    sizes: tuple[int, int],
    what: str,
    negative_is_none: bool = False,
) -> tuple[Integers, Integers]:
    """Number the names of queries and gallery images; with `negative_is_none`, negative integers stand for none, -1."""
    first, second = _column(of_queries, sizes[0], f"query {what}"), _column(of_gallery, sizes[1], f"gallery {what}")
    if _family(first) != _family(second):
        raise InputError(f"query {what} are {first.dtype}, gallery {what} are {second.dtype}; they must be alike")
    if _family(first) == "other":
        raise InputError(f"query {what} are of type {first.dtype}; all must be integers, or all text")
    # numpy promotes int64 and uint64 to float64, in which large numbers collide.
    exact = np.concatenate([first, second], dtype=object if first.dtype.kind != second.dtype.kind else None)
    codes = pd.factorize(exact)[0].astype(np.int64)
    if negative_is_none and _family(first) == "integers":
        codes[exact < 0] = -1
    return codes[: sizes[0]], codes[sizes[0] :]


def _column(values: npt.ArrayLike, rows: int, what: str) -> npt.NDArray[Any]:
    check_not_masked(values, what)
    column = np.asarray(values)
    if column.ndim != 1:
        raise InputError(f"{what} of shape {list(column.shape)}; there must be one value per embedding: [{rows}]")
    if len(column) != rows:
        raise InputError(f"{rows} embeddings, but {what} of {len(column)} rows; there must be one row each")
    return column


def _family(values: npt.NDArray[Any]) -> str:
    """The kind of values; only values of one kind can be equal; `other` for values that are not names."""
    if values.dtype.kind != "O":
        return FAMILIES.get(values.dtype.kind, "other")
    if all(map(is_integer, values)):
        return "integers"
    return "text" if all(isinstance(value, str) for value in values) else "other"
