"""Who searches whom, and the scores of the whole: leave-one-out within one set, or queries against a gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.columns import TRUTHS
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.hierarchy import coarse_levels
from vicinal.evaluation.metrics import Metric, first_rank, metric_of
from vicinal.evaluation.ranking import Ranks, Relevance, level_ranks
from vicinal.retrieval.rerank import Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk, check_exclude, check_same_dim
from vicinal.retrieval.sides import Sides

LEAVE_ONE_OUT, QUERY_GALLERY = "leave-one-out", "query/gallery"
RECALL_AT = (1, 2, 4, 8)
ALWAYS = ("mAP@R", "R-precision", "mAP")
FINE = ""  # the level of the labels themselves; others are named by their column

Integers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation.

    Attributes:
        metrics: `recall@1`, ..., `mAP@R`, `R-precision`, `mAP` and what else was asked for -> mean over the queries
            with a positive, from 0 to 1. At coarse levels `coarse/recall@1`, ..., `coarse_2/mAP`.
        protocol: `leave-one-out` or `query/gallery`.
        queries: how many queries there are.
        gallery: how many gallery images there are.
        without_positive: queries without any image to be found; they count in no metric.
        per_query: name -> float64 [queries], NaN where there is no positive.
        query_rows: int64 [queries], the row of each query in what was evaluated.
        ties: how many positives (at the level of the labels) have exactly the score of an image that is none for the
            query. Equal scores rank in the order of the gallery, so that results can be reproduced; but where there are
            many, they are an accident of that order. Printed if there is more than one for a hundred queries.
        first_ranks: int64 [queries], the rank of each query's first positive, 0 where there is none.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> print(evaluate_arrays(np.eye(4), labels, np.eye(4)[[1, 0, 2, 3]], labels, recall_at=(1, 2)))
        query/gallery: 4 queries, 4 gallery images (4 positives tied with other images)
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
    ties: int = 0
    first_ranks: Integers = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)

    def cmc(self, most: int) -> Scores:
        """The cumulative matching characteristic: for k = 1 to `most`, the share of queries with a positive in first k.

        Its value at k is recall@k. Queries without a positive do not count.

        Args:
            most: the last k.

        Returns:
            float64 [most].

        Raises:
            InputError: `most` is not from 1 to the number of gallery images.

        Example:
            >>> labels = np.array([0, 0, 1, 1])
            >>> evaluate_arrays(np.eye(4), labels, np.eye(4)[[2, 0, 1, 3]], labels[[0, 0, 2, 2]]).cmc(3)
            array([0.5 , 0.75, 1.  ])
        """
        if not 1 <= most <= self.gallery:
            raise InputError(f"CMC up to {most} is impossible with {self.gallery} gallery images; use 1 to that")
        ranks = self.first_ranks[self.first_ranks > 0]
        within = np.bincount(ranks[ranks <= most], minlength=most + 1)[1:]
        return np.cumsum(within) / len(ranks)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single queries, ready for JSON."""
        return {
            "protocol": self.protocol,
            "queries": self.queries,
            "gallery": self.gallery,
            "without_positive": self.without_positive,
            "ties": self.ties,
            "metrics": dict(self.metrics),
        }

    def __str__(self) -> str:
        width = max(len(name) for name in self.metrics)
        lines = [f"{self.protocol}: {self.queries:,} queries, {self.gallery:,} gallery images"]
        if self.without_positive:
            lines[0] += f" ({self.without_positive:,} queries without a positive left out)"
        if 100 * self.ties > self.queries:  # a few are chance, of the digits of float32
            lines[0] += f" ({self.ties:,} positives tied with other images)"
        lines += [f"{name:<{width}}   {100 * value:6.2f} %" for name, value in self.metrics.items()]
        return "\n".join(lines)


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
        metrics: more of them, by name: `precision@10`, `found@10` (the share of positives found, Eq. (1) of RS@k),
            `mAP@1000` (divided by min(k, R)), `MRR`; :mod:`~vicinal.evaluation.metrics` defines them.
        hierarchy: whether to score each coarse level too, whose positives are the images of the same `coarse`,
            `coarse_2`, ... in the same rankings (Table 9 of the paper of the contextual loss: fine, mid, coarse).

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
    groups = table.codes("group") if table.has("group") else np.full(len(table), -1)
    places = _places(query_rows, gallery_rows, len(table))
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
        metrics: as in :func:`evaluate`.

    Raises:
        InputError: other numbers of rows, NaN or infinity in an embedding, an impossible k, chunk or row to exclude, an
            unknown metric, no query with anything to be found, or a re-ranking that asks for more neighbours than there
            are.

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


def _chosen(recall_at: Sequence[int] | None, more: Sequence[str], largest: int) -> dict[str, Metric]:
    """The metrics to be had, by name."""
    recalls = [k for k in RECALL_AT if k <= largest] if recall_at is None else recall_at
    for k in recalls:
        if not isinstance(k, (int, np.integer)):
            raise InputError(f"recall@{k} is impossible; k must be an integer")
    if isinstance(more, str):
        raise InputError(f"metrics is {more!r}; give a list of names, such as [{more!r}]")
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
    without = int(np.isnan(scored.per_query["mAP"]).sum())
    if without == len(query_rows):
        raise InputError(
            f"none of the {without} queries has another image of its class to find; "
            "evaluation needs at least one class with two images"
        )
    metrics = {name: _mean(values, name) for name, values in scored.per_query.items()}
    return Evaluation(
        metrics,
        protocol,
        len(query_rows),
        gallery,
        without,
        scored.per_query,
        query_rows,
        scored.ties,
        scored.first_ranks,
    )


def _mean(values: Scores, name: str) -> float:
    if np.isnan(values).all():
        raise InputError(f"{name}: no query has another image of its coarse label to find; give a coarser level")
    return float(np.nanmean(values))
