"""Who searches whom, and the scores of the whole: leave-one-out within one set, or queries against a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.columns import TRUTHS
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.metrics import average_precision, map_at_r, r_precision, recall_at_k
from vicinal.evaluation.ranking import Ranks, Relevance, positive_ranks
from vicinal.retrieval.rerank import Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk, check_exclude, check_same_dim
from vicinal.retrieval.sides import Sides

LEAVE_ONE_OUT, QUERY_GALLERY = "leave-one-out", "query/gallery"
RECALL_AT = (1, 2, 4, 8)

Integers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation.

    Attributes:
        metrics: `recall@1`, ..., `mAP@R`, `R-precision`, `mAP` -> mean over the queries with a positive, from 0 to 1.
        protocol: `leave-one-out` or `query/gallery`.
        queries: how many queries there are.
        gallery: how many gallery images there are.
        without_positive: queries without any image to be found; they count in no metric.
        per_query: name -> float64 [queries], NaN where there is no positive.
        query_rows: int64 [queries], the row of each query in what was evaluated.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> print(evaluate_arrays(np.eye(4), labels, np.eye(4)[[1, 0, 2, 3]], labels, recall_at=(1, 2)))
        query/gallery: 4 queries, 4 gallery images
        recall@1      100.00 %
        recall@2      100.00 %
        mAP@R          75.00 %
        R-precision    75.00 %
        mAP            87.50 %
    """

    metrics: dict[str, float]
    protocol: str
    queries: int
    gallery: int
    without_positive: int
    per_query: dict[str, Scores] = field(repr=False)
    query_rows: Integers = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single queries, ready for JSON."""
        return {
            "protocol": self.protocol,
            "queries": self.queries,
            "gallery": self.gallery,
            "without_positive": self.without_positive,
            "metrics": dict(self.metrics),
        }

    def __str__(self) -> str:
        width = max(len(name) for name in self.metrics)
        lines = [f"{self.protocol}: {self.queries:,} queries, {self.gallery:,} gallery images"]
        if self.without_positive:
            lines[0] += f" ({self.without_positive:,} queries without a positive left out)"
        lines += [f"{name:<{width}}   {100 * value:6.2f} %" for name, value in self.metrics.items()]
        return "\n".join(lines)


def evaluate(
    embeddings: Array,
    table: Table,
    recall_at: Sequence[int] | None = None,
    chunk: int | None = None,
    rerank: Reranking | None = None,
) -> Evaluation:
    """Score how well images of one class find each other.

    With columns `is_query` and `is_gallery` the queries search the gallery, and an image that is both is left out of
    its own ranking. Without them every image searches all others (leave-one-out). With a column `group`, images of the
    query's own class and group are neither to be found nor in the way: they are left out of its ranking. Queries
    without anything to be found count in no metric; their number is reported.

    Args:
        embeddings: float [rows, dim], compared by cosine similarity; equal ones rank in the order of the table.
        table: one row an embedding, with labels.
        recall_at: the k of each recall@k; None: those of 1, 2, 4 and 8 that the gallery is large enough for.
        chunk: queries a block; by default chosen so that scores take about 64 MB, whatever the number of rows.
        rerank: such as `ContextualReranking()`: every ranking is re-ranked first, as a whole. What is left out of a
            ranking, by its group, may still be a neighbour by which others are judged: re-ranking sees no labels.

    Raises:
        InputError: other numbers of rows, no labels, NaN or infinity in an embedding, an impossible k or chunk, no
            query with anything to be found, or a re-ranking that asks for more neighbours than there are.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> evaluate(embeddings, table, recall_at=[1]).metrics["recall@1"]
        1.0
    """
    _check_rows(len(embeddings), len(table), "table")
    queries, gallery = _sides(table)
    protocol = LEAVE_ONE_OUT if queries is None and gallery is None else QUERY_GALLERY
    everything = np.arange(len(table))
    query_rows = everything if queries is None else queries
    gallery_rows = everything if gallery is None else gallery
    groups = table.codes("group") if table.has("group") else np.full(len(table), -1)
    places = _places(query_rows, gallery_rows, len(table))
    relevance = Relevance(
        table.labels[query_rows],
        table.labels[gallery_rows],
        places,
        groups[query_rows],
        groups[gallery_rows],
    )
    unit_queries = UnitVectors(embeddings, "embedding", queries)
    unit_gallery = unit_queries if queries is gallery else UnitVectors(embeddings, "embedding", gallery)
    largest = len(gallery_rows) - (protocol == LEAVE_ONE_OUT)
    sides = Sides(unit_queries, unit_gallery, places, chunk)
    per_query = _scores(sides, relevance, _checked_recall(recall_at, largest), chunk, rerank)
    return _summary(per_query, protocol, query_rows, len(gallery_rows))


def evaluate_arrays(
    query_embeddings: Array,
    query_labels: npt.ArrayLike,
    gallery_embeddings: Array,
    gallery_labels: npt.ArrayLike,
    *,
    exclude: npt.ArrayLike | None = None,
    query_groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    recall_at: Sequence[int] | None = None,
    chunk: int | None = None,
    rerank: Reranking | None = None,
) -> Evaluation:
    """Score queries against a gallery, both given as arrays; the level below :func:`evaluate`.

    Args:
        query_embeddings: float [q, dim].
        query_labels: [q], integers or text.
        gallery_embeddings: float [g, dim].
        gallery_labels: [g]; an image whose label no query has is a distractor.
        exclude: int [q], the gallery row that is the query itself, -1 for none.
        query_groups: [q], together with `gallery_groups` [g]: same-label images of the same group are left out.
        gallery_groups: see there.
        recall_at: the k of each recall@k; None: those of 1, 2, 4 and 8 that the gallery is large enough for.
        chunk: queries a block, as in :func:`evaluate`.
        rerank: as in :func:`evaluate`.

    Raises:
        InputError: other numbers of rows, NaN or infinity in an embedding, an impossible k, chunk or row to exclude, no
            query with anything to be found, or a re-ranking that asks for more neighbours than there are.

    Example:
        >>> evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"], recall_at=[1]).metrics["mAP"]
        1.0
    """
    queries, gallery = UnitVectors(query_embeddings, "query"), UnitVectors(gallery_embeddings, "gallery vector")
    labels = _common_codes(query_labels, gallery_labels, len(queries), len(gallery), "labels")
    groups: tuple[Integers | None, Integers | None] = (None, None)
    if query_groups is not None and gallery_groups is not None:
        groups = _common_codes(query_groups, gallery_groups, len(queries), len(gallery), "groups")
    elif query_groups is not None or gallery_groups is not None:
        raise InputError("query_groups and gallery_groups go together; give both or neither")
    itself = None if exclude is None else np.asarray(exclude, dtype=np.int64)
    if itself is not None:
        _check_rows(len(queries), len(itself), "exclude")
        check_exclude(itself, len(gallery))
    recalls = _checked_recall(recall_at, len(gallery))
    sides = Sides(queries, gallery, np.full(len(queries), -1) if itself is None else itself, chunk)
    per_query = _scores(sides, Relevance(*labels, itself, *groups), recalls, chunk, rerank)
    return _summary(per_query, QUERY_GALLERY, np.arange(len(queries)), len(gallery))


def wrong_labels(table: Table) -> tuple[int, int]:
    """How many of the labels that are evaluated were made wrong on purpose, and how many are evaluated.

    The former are those of the rows whose column `noisy_label` is true (:func:`~vicinal.data.random_labels`).

    Raises:
        InputError: the table has one of the columns `is_query` and `is_gallery` only, or no query or gallery image.

    Example:
        >>> wrong_labels(Table(pd.DataFrame({"label": ["a", "a", "b"], "noisy_label": [True, False, False]})))
        (1, 3)
    """
    queries, gallery = _sides(table)
    rows = np.arange(len(table)) if queries is None or gallery is None else np.union1d(queries, gallery)
    if "noisy_label" not in table.frame:
        return 0, len(rows)
    marks = table.frame["noisy_label"].iloc[rows].map(lambda mark: TRUTHS.get(str(mark).lower(), False))
    return int(marks.sum()), len(rows)


def _sides(table: Table) -> tuple[Integers | None, Integers | None]:
    """The rows of the queries and of the gallery; None for all."""
    has_query, has_gallery = table.has("is_query"), table.has("is_gallery")
    if has_query != has_gallery:
        there, lacking = ("is_query", "is_gallery") if has_query else ("is_gallery", "is_query")
        raise InputError(f"the table has a column {there} but no {lacking}; give both or neither")
    if not has_query:
        return None, None
    sides = [np.flatnonzero(table.frame[side].to_numpy(dtype=bool)) for side in ("is_query", "is_gallery")]
    for rows, side in zip(sides, ("is_query", "is_gallery"), strict=True):
        if not len(rows):
            raise InputError(f"the table has no row with {side} true; there must be at least one")
    return sides[0], sides[1]


def _places(query_rows: Integers, gallery_rows: Integers, rows: int) -> Integers:
    """Where in the gallery each query itself is, -1 if it is not there."""
    places = np.full(rows, -1)
    places[gallery_rows] = np.arange(len(gallery_rows))
    return places[query_rows]


def _common_codes(
    of_queries: npt.ArrayLike, of_gallery: npt.ArrayLike, queries: int, gallery: int, what: str
) -> tuple[Integers, Integers]:
    first, second = np.asarray(of_queries), np.asarray(of_gallery)
    _check_rows(queries, len(first), f"query {what}")
    _check_rows(gallery, len(second), f"gallery {what}")
    if (first.dtype.kind in "iu") != (second.dtype.kind in "iu"):
        raise InputError(f"query {what} are {first.dtype}, gallery {what} are {second.dtype}; they must be alike")
    codes = pd.factorize(np.concatenate([first, second]))[0].astype(np.int64)
    return codes[:queries], codes[queries:]


def _check_rows(embeddings: int, rows: int, what: str) -> None:
    if embeddings != rows:
        raise InputError(f"{embeddings} embeddings, but {what} of {rows} rows; there must be one row an embedding")


def _checked_recall(recall_at: Sequence[int] | None, largest: int) -> Sequence[int]:
    if recall_at is None:
        return [k for k in RECALL_AT if k <= largest]
    for k in recall_at:
        if not isinstance(k, (int, np.integer)):
            raise InputError(f"recall@{k} is impossible; k must be an integer")
        if not 1 <= k <= largest:
            raise InputError(
                f"recall@{k} is impossible with {largest} gallery images to rank; use k from 1 to {largest}"
            )
    return recall_at


def _scores(
    sides: Sides, relevance: Relevance, recall_at: Sequence[int], chunk: int | None, rerank: Reranking | None
) -> dict[str, Scores]:
    """Every metric of every query, from one pass over the ranks."""
    check_chunk(chunk)
    queries, gallery = sides.queries, sides.gallery
    if not (len(queries) and len(gallery)):
        raise InputError(f"{len(queries)} queries and {len(gallery)} gallery images; evaluation needs some of both")
    check_same_dim(queries, gallery)
    reranked = None if rerank is None else rerank.apply(sides)
    if reranked is not None:
        queries, gallery = reranked.queries, reranked.gallery
    blocks = [_metrics(ranks, recall_at) for ranks in positive_ranks(queries, gallery, relevance, chunk, reranked)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _metrics(ranks: Ranks, recall_at: Sequence[int]) -> dict[str, Scores]:
    return {
        **{f"recall@{k}": recall_at_k(ranks, k) for k in recall_at},
        "mAP@R": map_at_r(ranks),
        "R-precision": r_precision(ranks),
        "mAP": average_precision(ranks),
    }


def _summary(per_query: dict[str, Scores], protocol: str, query_rows: Integers, gallery: int) -> Evaluation:
    without = int(np.isnan(per_query["mAP"]).sum())
    if without == len(query_rows):
        raise InputError(
            f"none of the {without} queries has another image of its class to find; "
            "evaluation needs at least one class with two images"
        )
    metrics = {name: float(np.nanmean(values)) for name, values in per_query.items()}
    return Evaluation(metrics, protocol, len(query_rows), gallery, without, per_query, query_rows)
