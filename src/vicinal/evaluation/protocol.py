"""Who searches whom, and the scores of the whole: leave-one-out within one set, or queries against a gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.arguments import check_list, is_whole
from vicinal.data.columns import TRUTHS
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.hierarchy import coarse_levels
from vicinal.evaluation.metrics import Metric, first_rank, metric_of
from vicinal.evaluation.ranking import Ranks, Relevance, level_ranks
from vicinal.evaluation.relevance import group_codes
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.rerank import Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk, check_exclude, check_same_dim
from vicinal.retrieval.sides import Sides

LEAVE_ONE_OUT, QUERY_GALLERY = "leave-one-out", "query/gallery"
RECALL_AT = (1, 2, 4, 8)
ALWAYS = ("mAP@R", "R-precision", "mAP")
FAMILIES = {"i": "integers", "u": "integers", "b": "truths", "U": "text", "S": "text"}  # by the kinds of numpy
FINE = ""  # the level of the labels themselves; others are named by their column

Integers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

__all__ = ["LEAVE_ONE_OUT", "QUERY_GALLERY", "Evaluation", "evaluate", "evaluate_arrays", "wrong_labels"]


def evaluate(
    embeddings: Array,
    table: Table,
    recall_at: Sequence[int] | None = None,
    chunk: int | None = None,
    rerank: Reranking | None = None,
    *,
    metrics: Sequence[str] = (),
    hierarchy: bool = False,
) -> Evaluation:
    """Score how well images of one class find each other.

    With columns `is_query` and `is_gallery` the queries search the gallery, and an image that is both, in one row or by
    its path in two, is left out of its own ranking. Without them every image searches all others (leave-one-out). With
    a column `group`, images of the query's own class and group are neither to be found nor in the way: they are left
    out of its ranking; a negative integer is for no group. A negative label is a class like any other. Queries without
    anything to be found count in no metric; their number is reported.

    Args:
        embeddings: float [rows, dim], compared by cosine similarity; equal ones rank in the order of the table.
        table: one row an embedding, with labels.
        recall_at: the k of each recall@k; None: those of 1, 2, 4 and 8 that the gallery is large enough for.
        chunk: queries a block; by default chosen so that scores take about 64 MB, whatever the number of rows.
        rerank: such as `ContextualReranking()`: every ranking is re-ranked first, as a whole. What is left out of a
            ranking, by its group, may still be a neighbour by which others are judged: re-ranking sees no labels.
        metrics: more of them, by name: `precision@10`, `found@10` (the share of positives found, Eq. (1) of RS@k),
            `mAP@1000` (divided by min(k, R)), `MRR`; :mod:`~vicinal.evaluation.metrics` defines them.
        hierarchy: whether to score each coarse level too, whose positives are the images of the same `coarse`,
            `coarse_2`, ... in the same rankings (Table 9 of the paper of the contextual loss: fine, mid, coarse). The
            only image of its class counts at those levels where others share its label.

    Raises:
        InputError: other numbers of rows, no labels, NaN or infinity in an embedding, an impossible k or chunk, an
            unknown metric, no query with anything to be found, no coarse labels where they are asked for, or a
            re-ranking that asks for more neighbours than there are.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> evaluate(embeddings, table, recall_at=[1], metrics=["MRR"]).metrics
        {'recall@1': 1.0, 'mAP@R': 1.0, 'R-precision': 1.0, 'mAP': 1.0, 'MRR': 1.0}
    """
    _check_rows(len(embeddings), len(table), "table")
    queries, gallery = _sides(table)
    protocol = LEAVE_ONE_OUT if queries is None and gallery is None else QUERY_GALLERY
    everything = np.arange(len(table))
    query_rows = everything if queries is None else queries
    gallery_rows = everything if gallery is None else gallery
    groups = group_codes(table)
    places = _places(table, query_rows, gallery_rows)
    relevance = Relevance(
        table.labels[query_rows],
        table.labels[gallery_rows],
        places,
        groups[query_rows],
        groups[gallery_rows],
    )
    levels = {FINE: relevance} | (coarse_levels(table, relevance, query_rows, gallery_rows) if hierarchy else {})
    unit_queries = UnitVectors(embeddings, "embedding", queries)
    unit_gallery = unit_queries if queries is gallery else UnitVectors(embeddings, "embedding", gallery)
    largest = len(gallery_rows) - (protocol == LEAVE_ONE_OUT)
    sides = Sides(unit_queries, unit_gallery, places, chunk)
    scored = _scores(sides, levels, _chosen(recall_at, metrics, largest), chunk, rerank)
    return _summary(scored, protocol, query_rows, len(gallery_rows))


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
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Score queries against a gallery, both given as arrays; the level below :func:`evaluate`.

    Args:
        query_embeddings: float [q, dim]. All is computed on their device.
        query_labels: [q], integers or text; a negative number is a class like any other.
        gallery_embeddings: float [g, dim].
        gallery_labels: [g]; an image whose label no query has is a distractor.
        exclude: int [q], the gallery row that is the query itself, -1 for none.
        query_groups: [q], together with `gallery_groups` [g]: same-label images of the same group are left out.
            Integers or text; a negative integer is for no group, as in a table.
        gallery_groups: see there.
        recall_at: the k of each recall@k; None: those of 1, 2, 4 and 8 that the gallery is large enough for.
        chunk: queries a block, as in :func:`evaluate`.
        rerank: as in :func:`evaluate`.
        metrics: as in :func:`evaluate`.

    Raises:
        InputError: other numbers of rows, NaN or infinity in an embedding, labels or groups of another type, an
            impossible k, chunk or row to exclude, an unknown metric, no query with anything to be found, or a
            re-ranking that asks for more neighbours than there are.

    Example:
        >>> evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"], recall_at=[1]).metrics["mAP"]
        1.0
    """
    queries = gallery = UnitVectors(query_embeddings, "query")
    if gallery_embeddings is not query_embeddings:  # what searches itself takes half of the product
        gallery = UnitVectors(gallery_embeddings, "gallery vector", device=queries.device)
    labels = _common_codes(query_labels, gallery_labels, len(queries), len(gallery), "labels")
    groups: tuple[Integers | None, Integers | None] = (None, None)
    if query_groups is not None and gallery_groups is not None:
        groups = _common_codes(query_groups, gallery_groups, len(queries), len(gallery), "groups", none_below_zero=True)
    elif query_groups is not None or gallery_groups is not None:
        raise InputError("query_groups and gallery_groups go together; give both or neither")
    itself = None if exclude is None else _rows_to_exclude(exclude, len(queries), len(gallery))
    chosen = _chosen(recall_at, metrics, len(gallery))
    sides = Sides(queries, gallery, np.full(len(queries), -1) if itself is None else itself, chunk)
    scored = _scores(sides, {FINE: Relevance(*labels, itself, *groups)}, chosen, chunk, rerank)
    return _summary(scored, QUERY_GALLERY, np.arange(len(queries)), len(gallery))


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


def _places(table: Table, query_rows: Integers, gallery_rows: Integers) -> Integers:
    """Where in the gallery each query itself is, -1 if it is not there: the same row, or else the same path."""
    places = np.full(len(table), -1)
    places[gallery_rows] = np.arange(len(gallery_rows))
    places = places[query_rows]
    elsewhere = places < 0
    if elsewhere.any() and table.has("path"):
        paths = table.frame["path"].iloc[gallery_rows]
        found = dict(zip(paths[::-1], range(len(paths) - 1, -1, -1), strict=True))  # the first of several
        asked = table.frame["path"].iloc[query_rows[elsewhere]]
        places[elsewhere] = [found.get(path, -1) for path in asked]
    return places


def _rows_to_exclude(exclude: npt.ArrayLike, queries: int, gallery: int) -> Integers:
    rows = _column(exclude, queries, "exclude")
    if rows.dtype.kind not in "iu":
        raise InputError(f"exclude is of type {rows.dtype}; give the gallery row of each query, -1 for none")
    check_exclude(rows.astype(np.int64), gallery)
    return rows.astype(np.int64)


def _common_codes(
    of_queries: npt.ArrayLike,
    of_gallery: npt.ArrayLike,
    queries: int,
    gallery: int,
    what: str,
    none_below_zero: bool = False,
) -> tuple[Integers, Integers]:
    first, second = _column(of_queries, queries, f"query {what}"), _column(of_gallery, gallery, f"gallery {what}")
    if _family(first) != _family(second):
        raise InputError(f"query {what} are {first.dtype}, gallery {what} are {second.dtype}; they must be alike")
    if _family(first) == "other":
        raise InputError(f"query {what} are of type {first.dtype}; all must be integers, or all text")
    # Of int64 and uint64 numpy makes float64, in which large numbers collide.
    exact = np.concatenate([first, second], dtype=object if first.dtype.kind != second.dtype.kind else None)
    codes = pd.factorize(exact)[0].astype(np.int64)
    if none_below_zero and _family(first) == "integers":
        codes[exact < 0] = -1
    return codes[:queries], codes[queries:]


def _column(values: npt.ArrayLike, rows: int, what: str) -> npt.NDArray[Any]:
    column = np.asarray(values)
    if column.ndim != 1:
        raise InputError(f"{what} of shape {list(column.shape)}; there must be one value an embedding: [{rows}]")
    _check_rows(rows, len(column), what)
    return column


def _family(values: npt.NDArray[Any]) -> str:
    """Which kinds of values can be equal; `other` are no names."""
    if values.dtype.kind != "O":
        return FAMILIES.get(values.dtype.kind, "other")
    if all(map(is_whole, values)):
        return "integers"
    return "text" if all(isinstance(value, str) for value in values) else "other"


def _check_rows(embeddings: int, rows: int, what: str) -> None:
    if embeddings != rows:
        raise InputError(f"{embeddings} embeddings, but {what} of {rows} rows; there must be one row an embedding")


def _chosen(recall_at: Sequence[int] | None, more: Sequence[str], largest: int) -> dict[str, Metric]:
    """The metrics to be had, by name."""
    recall_at = [k for k in RECALL_AT if k <= largest] if recall_at is None else recall_at
    check_list("recall_at", recall_at, "k, such as [1, 5]")
    check_list("metrics", more, "names, such as ['MRR']")
    recalls = list(recall_at)
    for k in recalls:
        if not is_whole(k):
            raise InputError(f"recall@{k} is impossible; k must be an integer")
    return {name: metric_of(name, largest) for name in [*(f"recall@{k}" for k in recalls), *ALWAYS, *more]}


@dataclass(frozen=True)
class _Scored:
    """What one pass over the similarities tells of every query."""

    per_query: dict[str, Scores]
    first_ranks: Integers
    ties: int


def _scores(
    sides: Sides,
    levels: Mapping[str, Relevance],
    metrics: Mapping[str, Metric],
    chunk: int | None,
    rerank: Reranking | None,
) -> _Scored:
    """Every metric of every query at every level, from one pass over the similarities."""
    check_chunk(chunk)
    queries, gallery = sides.queries, sides.gallery
    if not (len(queries) and len(gallery)):
        raise InputError(f"{len(queries)} queries and {len(gallery)} gallery images; evaluation needs some of both")
    check_same_dim(queries, gallery)
    reranked = None if rerank is None else rerank.apply(sides)
    if reranked is not None:
        queries, gallery = reranked.queries, reranked.gallery
    blocks: list[dict[str, Scores]] = []
    firsts: list[Integers] = []
    ties = 0
    for ranks in level_ranks(queries, gallery, list(levels.values()), chunk, reranked):
        blocks.append(_metrics(dict(zip(levels, ranks, strict=True)), metrics))
        firsts.append(first_rank(ranks[0]))
        ties += ranks[0].ties
    per_query = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    return _Scored(per_query, np.concatenate(firsts), ties)


def _metrics(levels: Mapping[str, Ranks], metrics: Mapping[str, Metric]) -> dict[str, Scores]:
    return {
        f"{level}/{name}" if level else name: metric(ranks)
        for level, ranks in levels.items()
        for name, metric in metrics.items()
    }


def _summary(scored: _Scored, protocol: str, query_rows: Integers, gallery: int) -> Evaluation:
    if not scored.first_ranks.any():
        raise InputError(
            f"none of the {len(query_rows)} queries has another image of its class to find; "
            "evaluation needs at least one class with two images"
        )
    for name, values in scored.per_query.items():
        if np.isnan(values).all():
            raise InputError(f"{name}: no query has another image of its coarse label to find; give a coarser level")
    return Evaluation.of_queries(
        scored.per_query, protocol, query_rows, gallery, ties=scored.ties, first_ranks=scored.first_ranks
    )
