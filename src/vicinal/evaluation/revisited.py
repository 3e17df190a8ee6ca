"""The protocol of ROxford and RParis (Radenovic et al., "Revisiting Oxford and Paris", CVPR 2018).

For every query some images are easy positives, some hard positives, and some junk, which may be retrieved or not. The
positives, and the images that are removed from the ranking before it is scored, depend on the difficulty:

- easy: easy images are positives, hard and junk images are removed;
- medium: easy and hard images are positives, junk images are removed;
- hard: hard images are positives, easy and junk images are removed.

Queries without positives are left out. With R positives at the positions r_1 < ... < r_R, counted from 0:

- mAP: 1/R times the sum of (p_i + q_i) / 2 with p_i = (i - 1) / r_i, 1 where r_i is 0, and q_i = i / (r_i + 1): the
  area under the precision-recall curve by trapezoids. The mean precision at the positives, which `mAP` stands for
  elsewhere in Vicinal, is larger.
- mP@k: the fraction of positives among the first k or, if the last positive comes earlier, up to that one.

Both are as in the published code, with which the published numbers were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.scores import (
    BLOCK_ROWS,
    TILE_ROWS,
    Array,
    ScoreBuffer,
    UnitVectors,
    check_same_dim,
    round_up,
    rows_within_budget,
)
from vicinal.utils.arguments import check_list, is_integer
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data.benchmarks.revisited import GroundTruth

POSITIVES = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}
REMOVED = {"easy": ("junk", "hard"), "medium": ("junk",), "hard": ("junk", "easy")}
PRECISION_AT = (1, 5, 10)
Metric = Callable[[Integers], float]
"""A metric of one query, given the positions of its positives: counted from 0, ascending, at least one."""


def evaluate_revisited(
    query_embeddings: Array,
    gallery_embeddings: Array,
    ground_truth: GroundTruth,
    *,
    distractors: Array | None = None,
    precision_at: Sequence[int] = PRECISION_AT,
) -> dict[str, Evaluation]:
    """Evaluate by the revisited protocol.

    Args:
        query_embeddings: float [q, dim], in the order of `ground_truth.queries`, of images cropped to their boxes.
            Everything is computed on their device.
        gallery_embeddings: float [g, dim], in the order of `ground_truth.images`.
        ground_truth: the positives and junk images of every query.
        distractors: float [d, dim], images that are positives of no query, such as the million of R1M. They are
            compared in blocks, so that a memory map will do.
        precision_at: the k of each mP@k.

    Returns:
        `easy`, `medium` and `hard`, each with the metrics mAP and mP@k. Equal similarities rank in the order of the
        gallery, distractors behind it; `num_ties` and `first_positive_ranks` are those of the ranking without the
        removed images. To compare models at one difficulty, give them to :func:`~vicinal.evaluation.compare_models`
        and resample queries, since there are no classes.

    Raises:
        InputError: numbers of rows or dimensions differ, NaN or infinity, an invalid k, or no positives.

    Example:
        >>> from vicinal.data.benchmarks.revisited import GroundTruth
        >>> ground_truth = GroundTruth.from_dict({
        ...     "imlist": ["a", "b", "c"], "qimlist": ["d"],
        ...     "gnd": [{"bbx": [0, 0, 9, 9], "easy": [1], "hard": [2], "junk": [0]}],
        ... })
        >>> found = evaluate_revisited(np.eye(3)[:1], np.array([[9.0, 0, 0], [1, 9, 0], [2, 0, 9]]), ground_truth)
        >>> {name: each.metrics["mAP"] for name, each in found.items()}
        {'easy': 1.0, 'medium': 1.0, 'hard': 1.0}
    """
    check_list("precision_at", precision_at, "k, such as [1, 5]")
    precision_at = list(precision_at)
    queries = UnitVectors(query_embeddings, "query")
    gallery = UnitVectors(gallery_embeddings, "gallery vector", device=queries.device)
    others = None if distractors is None else UnitVectors(distractors, "distractor", device=queries.device)
    _check(queries, gallery, ground_truth, precision_at)
    metrics: dict[str, Metric] = {"mAP": trapezoidal_precision}
    metrics |= {f"mP@{k}": partial(precision_at_k, k=k) for k in precision_at}
    ranking = _rank_gallery(queries, gallery, others)
    num_gallery = len(gallery) + (0 if others is None else len(others))
    return {
        difficulty: _evaluate_difficulty(difficulty, ranking, ground_truth, metrics=metrics, num_gallery=num_gallery)
        for difficulty in POSITIVES
    }


def merge_difficulties(parts: Mapping[str, Evaluation]) -> Evaluation:
    """Easy, medium and hard as one evaluation of the same queries: `easy/mAP`, `medium/mP@10`, ...

    Its ties, first ranks and queries without positives are those of medium.

    Args:
        parts: as :func:`evaluate_revisited` returns them.

    Example:
        >>> from vicinal.data.benchmarks.revisited import GroundTruth
        >>> ground_truth = GroundTruth.from_dict({
        ...     "imlist": ["a", "b"], "qimlist": ["c"],
        ...     "gnd": [{"bbx": [0, 0, 9, 9], "easy": [0], "hard": [1], "junk": []}],
        ... })
        >>> found = evaluate_revisited(np.eye(2)[:1], np.eye(2), ground_truth, precision_at=[1])
        >>> merge_difficulties(found).metrics
        {'easy/mAP': 1.0, 'easy/mP@1': 1.0, 'medium/mAP': 1.0, 'medium/mP@1': 1.0, 'hard/mAP': 1.0, 'hard/mP@1': 1.0}
    """
    metrics = {f"{part}/{name}": value for part, each in parts.items() for name, value in each.metrics.items()}
    per_query = {f"{part}/{name}": scores for part, each in parts.items() for name, scores in each.per_query.items()}
    return replace(parts["medium"], metrics=metrics, per_query=per_query, protocol="revisited")


def evaluate_revisited_table(embeddings: Array, table: Table, ground_truth: GroundTruth) -> Evaluation:
    """Evaluate the table of ROxford or RParis at all difficulties.

    Args:
        embeddings: float [rows, dim].
        table: as :func:`~vicinal.data.benchmarks.revisited.roxford` or
            :func:`~vicinal.data.benchmarks.revisited.roxford_1m` returns it: first the gallery images, then the
            queries, then distractors, if any (`is_gallery` is true for them).
        ground_truth: as :func:`~vicinal.data.benchmarks.revisited.revisited_ground_truth` returns it.

    Raises:
        InputError: as :func:`evaluate_revisited`.
    """
    num_images, num_queries = len(ground_truth.images), len(ground_truth.queries)
    first_distractor = num_images + num_queries
    distractors = table.frame.iloc[first_distractor:]
    has_distractors = len(distractors) > 0 and table.has("is_gallery") and bool(distractors["is_gallery"].all())
    if not len(embeddings) == len(table) or (len(table) != first_distractor and not has_distractors):
        raise InputError(
            f"{len(embeddings)} embeddings, but the ground truth has {num_images} gallery images and then "
            f"{num_queries} queries, after which there may be distractors (is_gallery)"
        )
    evaluations = evaluate_revisited(
        embeddings[num_images:first_distractor],
        embeddings[:num_images],
        ground_truth,
        distractors=embeddings[first_distractor:] if has_distractors else None,
    )
    return replace(merge_difficulties(evaluations), query_indices=num_images + np.arange(num_queries))


def trapezoidal_precision(positions: Integers) -> float:
    """Average precision by trapezoids, as published."""
    num_before = np.arange(len(positions))
    precision_before = np.where(positions == 0, 1.0, num_before / np.maximum(positions, 1))
    precision_after = (num_before + 1) / (positions + 1)
    return float((precision_before + precision_after).sum() / (2 * len(positions)))


def precision_at_k(positions: Integers, k: int) -> float:
    """The fraction of positives among the first k, or up to the last positive if it comes earlier."""
    k = min(int(positions.max()) + 1, k)
    return float((positions < k).sum() / k)


@dataclass(frozen=True, eq=False)
class _Ranking:
    """The ranking of each query's gallery images."""

    positions: Integers  # [q, g], how many images rank before, distractors included
    scores: Floats  # [q, g]
    is_tied: Booleans  # [q, g], whether a distractor has the same score


def _check(queries: UnitVectors, gallery: UnitVectors, ground_truth: GroundTruth, precision_at: Sequence[int]) -> None:
    for vectors, images, what in (
        (queries, ground_truth.queries, "queries"),
        (gallery, ground_truth.images, "gallery images"),
    ):
        if len(vectors) != len(images):
            raise InputError(f"{len(vectors)} embeddings of {what}, but the ground truth has {len(images)}")
    check_same_dim(queries, gallery)
    for k in precision_at:
        if not (is_integer(k) and k >= 1):
            raise InputError(f"mP@{k} is invalid; k must be an integer from 1 up")


def _rank_gallery(queries: UnitVectors, gallery: UnitVectors, distractors: UnitVectors | None) -> _Ranking:
    block = ScoreBuffer(len(queries), len(gallery), queries.device)
    scores: Floats = block.fill(queries.block(0, len(queries)), gallery, 0, len(gallery)).cpu().numpy()
    order = np.argsort(-scores, axis=1, kind="stable")
    num_before = np.tile(np.arange(len(gallery)), (len(queries), 1))
    is_equal = np.zeros(num_before.shape, dtype=bool)
    if distractors is not None:
        num_distractors, is_equal = _distractors_before(queries, distractors, np.take_along_axis(scores, order, axis=1))
        num_before += num_distractors
    positions, is_tied = np.empty_like(num_before), np.empty_like(is_equal)
    np.put_along_axis(positions, order, num_before, axis=1)
    np.put_along_axis(is_tied, order, is_equal, axis=1)
    return _Ranking(positions, scores, is_tied)


def _distractors_before(queries: UnitVectors, distractors: UnitVectors, falling: Floats) -> tuple[Integers, Booleans]:
    """How many distractors rank before each gallery image, and whether one has the same score, both [q, g].

    The gallery images of each query are in the order of `falling`, their scores.
    """
    check_same_dim(queries, distractors)
    rising = np.ascontiguousarray(falling[:, ::-1])
    bins = np.zeros((len(rising), rising.shape[1] + 1), dtype=np.int64)
    is_equal = np.zeros(rising.shape, dtype=bool)
    rows, limit = round_up(len(queries), TILE_ROWS), max(len(distractors), BLOCK_ROWS)
    columns = rows_within_budget(rows, BLOCK_ROWS, limit, queries.device)
    vectors, block = queries.block(0, len(queries)), ScoreBuffer(len(queries), columns, queries.device)
    for start in range(0, len(distractors), columns):
        scores = block.fill(vectors, distractors, start, min(start + columns, len(distractors))).cpu().numpy()
        for query, (row, values) in enumerate(zip(rising, scores, strict=True)):
            positions = np.searchsorted(row, values)
            bins[query] += np.bincount(positions, minlength=bins.shape[1])
            is_equal[query] |= np.isin(row, row[positions[row.take(positions, mode="clip") == values]])
    # A distractor in bin b is larger than the b smallest gallery scores, that is than the i-th largest from g - b on.
    return np.cumsum(bins[:, :0:-1], axis=1), is_equal[:, ::-1]


def _evaluate_difficulty(
    difficulty: str, ranking: _Ranking, ground_truth: GroundTruth, *, metrics: Mapping[str, Metric], num_gallery: int
) -> Evaluation:
    positives, removed = (
        _concatenate_lists(ground_truth, POSITIVES[difficulty]),
        _concatenate_lists(ground_truth, REMOVED[difficulty]),
    )
    positions = [_positions_without(*each) for each in zip(ranking.positions, positives, removed, strict=True)]
    if not any(map(len, positions)):
        raise InputError(f"{difficulty}: no query has a positive; the ground truth must name some")
    per_query = {
        name: np.array([metric(each) if len(each) else np.nan for each in positions])
        for name, metric in metrics.items()
    }
    return Evaluation.from_queries(
        per_query,
        protocol=f"revisited, {difficulty}",
        query_indices=np.arange(len(positions)),
        num_gallery=num_gallery,
        num_ties=sum(map(_num_ties, ranking.scores, ranking.is_tied, positives, removed)),
        first_positive_ranks=np.array([each[0] + 1 if len(each) else 0 for each in positions], dtype=np.int64),
    )


def _concatenate_lists(ground_truth: GroundTruth, lists: tuple[str, ...]) -> list[Integers]:
    return [np.concatenate(each) for each in zip(*(getattr(ground_truth, name) for name in lists), strict=True)]


def _positions_without(positions: Integers, positives: Integers, removed: Integers) -> Integers:
    """The positions of one query's positives, ascending, after images were removed from its ranking."""
    kept = np.sort(positions[positives])
    return kept - np.searchsorted(np.sort(positions[removed]), kept)


def _num_ties(scores: Floats, is_tied: Booleans, positives: Integers, removed: Integers) -> int:
    """The number of one query's positives that have the score of an image that is neither positive nor removed."""
    others = np.delete(scores, np.concatenate([positives, removed]))
    return int((is_tied[positives] | np.isin(scores[positives], others)).sum())
