"""The protocol of ROxford and RParis (Radenovic et al., "Revisiting Oxford and Paris", CVPR 2018).

For every query some images are easy to find, some hard, and some junk, which may be found or not. What is sought, and
what is taken out of the ranking before it is scored:

- easy: easy images are sought, hard and junk ones taken out;
- medium: easy and hard images are sought, junk taken out;
- hard: hard images are sought, easy and junk ones taken out.

Queries with nothing to be found are left out. With R images sought, found at the places r_1 < ... < r_R counted from 0:

- mAP: 1/R times the sum of (p_i + q_i) / 2 with p_i = (i - 1) / r_i, 1 where r_i is 0, and q_i = i / (r_i + 1): the
  area under the curve of precision over recall by trapezoids. The mean precision at the found images, which is what
  `mAP` stands for elsewhere in Vicinal, is larger.
- mP@k: the share of sought images among the first k or, if the last of them comes earlier, up to that one.

Both are as in the published code, with which the published numbers were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vicinal.arguments import check_list, is_whole
from vicinal.data.benchmarks.revisited import GroundTruth
from vicinal.errors import InputError
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.scores import (
    BLOCK_ROWS,
    TILE_ROWS,
    Array,
    ScoreBlock,
    UnitVectors,
    check_same_dim,
    round_up,
    rows_within_budget,
)

SOUGHT = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}
TAKEN_OUT = {"easy": ("junk", "hard"), "medium": ("junk",), "hard": ("junk", "easy")}
PRECISION_AT = (1, 5, 10)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Truths = npt.NDArray[np.bool_]


def evaluate_revisited(
    queries: Array,
    gallery: Array,
    truth: GroundTruth,
    distractors: Array | None = None,
    precision_at: Sequence[int] = PRECISION_AT,
) -> dict[str, Evaluation]:
    """Score a model by the revisited protocol.

    Of the table that :func:`~vicinal.data.benchmarks.revisited.roxford` gives, the gallery comes first.

    Args:
        queries: float [q, dim], in the order of `truth.queries`, of images cropped to their boxes. All is computed on
            their device.
        gallery: float [g, dim], in the order of `truth.images`.
        truth: what is to be found.
        distractors: float [d, dim], images that no query seeks, such as the million of R1M; they are compared in
            blocks, so that a memory map will do.
        precision_at: the k of each mP@k.

    Returns:
        `easy`, `medium` and `hard`, each with the metrics mAP and mP@k. Equal similarities rank in the order of the
        gallery, distractors behind it; `ties` and `first_ranks` are of the ranking without what is taken out. To
        compare models at one difficulty give them to :func:`~vicinal.evaluation.compare_models`, by queries, for there
        are no classes.

    Raises:
        InputError: other numbers of rows, other dimensions, NaN or infinity, an impossible k, or nothing to be found.

    Example:
        >>> truth = GroundTruth.from_dict({
        ...     "imlist": ["a", "b", "c"], "qimlist": ["d"],
        ...     "gnd": [{"bbx": [0, 0, 9, 9], "easy": [1], "hard": [2], "junk": [0]}],
        ... })
        >>> found = evaluate_revisited(np.eye(3)[:1], np.array([[9.0, 0, 0], [1, 9, 0], [2, 0, 9]]), truth)
        >>> {name: each.metrics["mAP"] for name, each in found.items()}
        {'easy': 1.0, 'medium': 1.0, 'hard': 1.0}
    """
    check_list("precision_at", precision_at, "k, such as [1, 5]")
    precision_at = list(precision_at)
    unit_queries = UnitVectors(queries, "query")
    unit_gallery = UnitVectors(gallery, "gallery vector", device=unit_queries.device)
    _check(unit_queries, unit_gallery, truth, precision_at)
    others = None if distractors is None else UnitVectors(distractors, "distractor", device=unit_queries.device)
    images = len(unit_gallery) + (0 if others is None else len(others))
    ranking = _ranked(unit_queries, unit_gallery, others)
    return {difficulty: _evaluation(difficulty, ranking, truth, precision_at, images) for difficulty in SOUGHT}


def all_difficulties(parts: Mapping[str, Evaluation]) -> Evaluation:
    """Easy, medium and hard as one evaluation of the same queries: `easy/mAP`, `medium/mP@10`, ...

    Its ties, first ranks and queries without anything to be found are those of medium.

    Args:
        parts: as :func:`evaluate_revisited` gives them.

    Example:
        >>> truth = GroundTruth.from_dict({
        ...     "imlist": ["a", "b"], "qimlist": ["c"],
        ...     "gnd": [{"bbx": [0, 0, 9, 9], "easy": [0], "hard": [1], "junk": []}],
        ... })
        >>> all_difficulties(evaluate_revisited(np.eye(2)[:1], np.eye(2), truth, precision_at=[1])).metrics
        {'easy/mAP': 1.0, 'easy/mP@1': 1.0, 'medium/mAP': 1.0, 'medium/mP@1': 1.0, 'hard/mAP': 1.0, 'hard/mP@1': 1.0}
    """
    metrics = {f"{part}/{name}": value for part, each in parts.items() for name, value in each.metrics.items()}
    per_query = {f"{part}/{name}": values for part, each in parts.items() for name, values in each.per_query.items()}
    return replace(parts["medium"], metrics=metrics, per_query=per_query, protocol="revisited")


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Where each query's gallery images stand, all [q, g]: before how many others, of what score, level with what."""

    places: Integers  # how many images rank before, distractors among them
    scores: Floats
    tied: Truths  # whether a distractor has the same score


def trapezoidal_precision(places: Integers) -> float:
    """Average precision by trapezoids, as published.

    Args:
        places: int64 [sought], of what is sought, counted from 0, ascending.

    Example:
        >>> trapezoidal_precision(np.array([0, 2]))  # ((1 + 1) / 2 + (1/2 + 2/3) / 2) / 2
        0.7916666666666666
    """
    found = np.arange(len(places))
    left = np.where(places == 0, 1.0, found / np.maximum(places, 1))
    right = (found + 1) / (places + 1)
    return float((left + right).sum() / (2 * len(places)))


def precision_at_k(places: Integers, k: int) -> float:
    """The share of what is sought among the first k, or up to the last of them if it comes earlier.

    Example:
        >>> precision_at_k(np.array([0, 2]), 2), precision_at_k(np.array([0, 2]), 10)
        (0.5, 0.6666666666666666)
    """
    k = min(int(places.max()) + 1, k)
    return float((places < k).sum() / k)


def _check(queries: UnitVectors, gallery: UnitVectors, truth: GroundTruth, precision_at: Sequence[int]) -> None:
    for vectors, images, side in ((queries, truth.queries, "queries"), (gallery, truth.images, "gallery images")):
        if len(vectors) != len(images):
            raise InputError(f"{len(vectors)} embeddings of {side}, but the ground truth has {len(images)}")
    check_same_dim(queries, gallery)
    for k in precision_at:
        if not (is_whole(k) and k >= 1):
            raise InputError(f"mP@{k} is impossible; k must be a whole number, at least 1")


def _ranked(queries: UnitVectors, gallery: UnitVectors, distractors: UnitVectors | None) -> _Ranking:
    scores = _scores(queries, gallery)
    order = np.argsort(-scores, axis=1, kind="stable")
    before = np.tile(np.arange(len(gallery)), (len(queries), 1))
    level = np.zeros(before.shape, dtype=bool)
    if distractors is not None:
        larger, level = _distractors_before(queries, distractors, np.take_along_axis(scores, order, axis=1))
        before += larger
    places, tied = np.empty_like(before), np.empty_like(level)
    np.put_along_axis(places, order, before, axis=1)
    np.put_along_axis(tied, order, level, axis=1)
    return _Ranking(places, scores, tied)


def _scores(queries: UnitVectors, gallery: UnitVectors) -> Floats:
    """All scores, float32 [q, g]: 70 queries and some thousand images."""
    block = ScoreBlock(len(queries), len(gallery), queries.device)
    return _filled(block, queries.block(0, len(queries)), gallery, 0, len(gallery))


def _filled(block: ScoreBlock, queries: Tensor, gallery: UnitVectors, start: int, stop: int) -> Floats:
    scores: Floats = block.fill(queries, gallery, start, stop).cpu().numpy()
    return scores


def _distractors_before(queries: UnitVectors, distractors: UnitVectors, falling: Floats) -> tuple[Integers, Truths]:
    """How many distractors rank before each gallery image, and whether one is level with it, both [q, g].

    The gallery images of each query stand in the order in which their scores fall.
    """
    check_same_dim(queries, distractors)
    rising = np.ascontiguousarray(falling[:, ::-1])
    bins = np.zeros((len(rising), rising.shape[1] + 1), dtype=np.int64)
    level = np.zeros(rising.shape, dtype=bool)
    columns = rows_within_budget(round_up(len(queries), TILE_ROWS), BLOCK_ROWS, max(len(distractors), BLOCK_ROWS))
    vectors, block = queries.block(0, len(queries)), ScoreBlock(len(queries), columns, queries.device)
    for start in range(0, len(distractors), columns):
        scores = _filled(block, vectors, distractors, start, min(start + columns, len(distractors)))
        for query, (row, values) in enumerate(zip(rising, scores, strict=True)):
            places = np.searchsorted(row, values)
            bins[query] += np.bincount(places, minlength=bins.shape[1])
            level[query] |= np.isin(row, row[places[row.take(places, mode="clip") == values]])
    # A distractor in bin b is larger than the b smallest gallery scores, that is than the i-th largest from g - b on.
    return np.cumsum(bins[:, :0:-1], axis=1), level[:, ::-1]


def _evaluation(
    difficulty: str, ranking: _Ranking, truth: GroundTruth, precision_at: Sequence[int], images: int
) -> Evaluation:
    sought, taken_out = _joined(truth, SOUGHT[difficulty]), _joined(truth, TAKEN_OUT[difficulty])
    places = [_places_left(*each) for each in zip(ranking.places, sought, taken_out, strict=True)]
    if not any(len(each) for each in places):
        raise InputError(f"{difficulty}: no query has an image to be found; the ground truth must name some")
    metrics: dict[str, Callable[[Integers], float]] = {"mAP": trapezoidal_precision}
    metrics |= {f"mP@{k}": partial(precision_at_k, k=k) for k in precision_at}
    return Evaluation.of_queries(
        {
            name: np.array([metric(each) if len(each) else np.nan for each in places])
            for name, metric in metrics.items()
        },
        protocol=f"revisited, {difficulty}",
        query_rows=np.arange(len(places)),
        gallery=images,
        ties=sum(map(_ties, ranking.scores, ranking.tied, sought, taken_out)),
        first_ranks=np.array([each[0] + 1 if len(each) else 0 for each in places], dtype=np.int64),
    )


def _joined(truth: GroundTruth, lists: tuple[str, ...]) -> list[Integers]:
    """The images of some of the lists, query by query."""
    return [np.concatenate(each) for each in zip(*(getattr(truth, name) for name in lists), strict=True)]


def _places_left(places: Integers, sought: Integers, taken_out: Integers) -> Integers:
    """Where one query's sought images stand, ascending, once others are taken out of its ranking."""
    found = np.sort(places[sought])
    return found - np.searchsorted(np.sort(places[taken_out]), found)


def _ties(scores: Floats, tied: Truths, sought: Integers, taken_out: Integers) -> int:
    """How many of one query's sought images are level with an image that is neither sought nor taken out."""
    others = np.delete(scores, np.concatenate([sought, taken_out]))
    return int((tied[sought] | np.isin(scores[sought], others)).sum())
