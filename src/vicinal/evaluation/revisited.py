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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vicinal.arguments import is_whole
from vicinal.data.benchmarks.revisited import GroundTruth
from vicinal.errors import InputError
from vicinal.evaluation.protocol import Evaluation
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
        queries: float [q, dim], in the order of `truth.queries`, of images cropped to their boxes.
        gallery: float [g, dim], in the order of `truth.images`.
        truth: what is to be found.
        distractors: float [d, dim], images that no query seeks, such as the million of R1M; they are compared in
            blocks, so that a memory map will do.
        precision_at: the k of each mP@k.

    Returns:
        `easy`, `medium` and `hard`, each with the metrics mAP and mP@k. Equal similarities rank in the order of the
        gallery, distractors behind it.

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
    unit_queries, unit_gallery = UnitVectors(queries, "query"), UnitVectors(gallery, "gallery vector")
    _check(unit_queries, unit_gallery, truth, precision_at)
    scores = _scores(unit_queries, unit_gallery)
    order = np.argsort(-scores, axis=1, kind="stable")
    before = np.tile(np.arange(len(unit_gallery)), (len(unit_queries), 1))
    images = len(unit_gallery)
    if distractors is not None:
        others = UnitVectors(distractors, "distractor", device=unit_queries.device)
        before += _larger_distractors(unit_queries, others, np.take_along_axis(scores, order, axis=1))
        images += len(others)
    places = np.empty_like(before)
    np.put_along_axis(places, order, before, axis=1)
    return {difficulty: _evaluation(difficulty, places, truth, precision_at, images) for difficulty in SOUGHT}


def trapezoidal_precision(places: Integers, sought: int) -> float:
    """Average precision by trapezoids, as published.

    Args:
        places: int64 [found], of what was sought, counted from 0, ascending.
        sought: how many are sought.

    Example:
        >>> trapezoidal_precision(np.array([0, 2]), 2)  # ((1 + 1) / 2 + (1/2 + 2/3) / 2) / 2
        0.7916666666666666
    """
    found = np.arange(len(places))
    left = np.where(places == 0, 1.0, found / np.maximum(places, 1))
    right = (found + 1) / (places + 1)
    return float((left + right).sum() / (2 * sought))


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


def _scores(queries: UnitVectors, gallery: UnitVectors) -> Floats:
    """All scores, float32 [q, g]: 70 queries and some thousand images."""
    block = ScoreBlock(len(queries), len(gallery), queries.device)
    return _filled(block, queries.block(0, len(queries)), gallery, 0, len(gallery))


def _filled(block: ScoreBlock, queries: Tensor, gallery: UnitVectors, start: int, stop: int) -> Floats:
    scores: Floats = block.fill(queries, gallery, start, stop).cpu().numpy()
    return scores


def _larger_distractors(queries: UnitVectors, distractors: UnitVectors, falling: Floats) -> Integers:
    """How many distractors rank before each gallery image, int64 [q, g], whose scores fall along the row."""
    check_same_dim(queries, distractors)
    rising = np.ascontiguousarray(falling[:, ::-1])
    bins = np.zeros((len(rising), rising.shape[1] + 1), dtype=np.int64)
    columns = rows_within_budget(round_up(len(queries), TILE_ROWS), BLOCK_ROWS, max(len(distractors), BLOCK_ROWS))
    vectors, block = queries.block(0, len(queries)), ScoreBlock(len(queries), columns, queries.device)
    for start in range(0, len(distractors), columns):
        scores = _filled(block, vectors, distractors, start, min(start + columns, len(distractors)))
        for counts, row, values in zip(bins, rising, scores, strict=True):
            counts += np.bincount(np.searchsorted(row, values), minlength=len(counts))
    # A distractor in bin b is larger than the b smallest gallery scores, that is than the i-th largest from g - b on.
    return np.cumsum(bins[:, :0:-1], axis=1)


def _evaluation(
    difficulty: str, places: Integers, truth: GroundTruth, precision_at: Sequence[int], images: int
) -> Evaluation:
    names = ["mAP", *(f"mP@{k}" for k in precision_at)]
    rows = [_query_scores(difficulty, places[query], truth, query, precision_at) for query in range(len(places))]
    per_query = {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    without = int(np.isnan(per_query["mAP"]).sum())
    if without == len(rows):
        raise InputError(f"{difficulty}: no query has an image to be found; the ground truth must name some")
    return Evaluation(
        metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
        protocol=f"revisited, {difficulty}",
        queries=len(rows),
        gallery=images,
        without_positive=without,
        per_query=per_query,
        query_rows=np.arange(len(rows)),
    )


def _query_scores(
    difficulty: str, places: Integers, truth: GroundTruth, query: int, precision_at: Sequence[int]
) -> list[float]:
    sought, taken_out = (
        np.concatenate([getattr(truth, name)[query] for name in names[difficulty]]) for names in (SOUGHT, TAKEN_OUT)
    )
    if not len(sought):
        return [np.nan] * (1 + len(precision_at))
    found = np.sort(places[sought])
    found = found - np.searchsorted(np.sort(places[taken_out]), found)
    return [trapezoidal_precision(found, len(sought)), *(precision_at_k(found, k) for k in precision_at)]
