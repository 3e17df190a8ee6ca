"""Open-set identification (1:N): queries whose class may not be in the gallery.

A search accepts the best match of a query if its score reaches a threshold. Every query is tried twice: as a known one,
searching the gallery without itself; and as an unknown one, searching the gallery without its class, as if each class
were a fold of its own (leave-one-class-out). Definitions of NIST's FRVT (Grother, Ngan & Hanaoka, "Face Recognition
Vendor Test, part 2: identification", NISTIR 8271, section 3), for rank 1:

- **FPIR**, false positive identification rate: the fraction of unknown queries whose best match is accepted.
- **FNIR**, false negative identification rate: the fraction of known queries whose best match is of another class, or
  is not accepted.
- **DIR**, detection and identification rate: 1 - FNIR (Phillips, Grother & Micheals, Handbook of Face Recognition,
  2011, section 21.3.2).
- **open-set AUROC**: the probability that a known query scores higher than an unknown one, ties counting half, whether
  its match is right or not.

A known query whose best match ties with an image of another class counts as wrong. All rates depend on the gallery: the
larger it is, the more similar is the best match of an unknown query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.protocol import own_gallery_rows, query_gallery_rows
from vicinal.evaluation.relevance import Relevance, class_group_codes
from vicinal.evaluation.thresholds import just_above, threshold_at
from vicinal.retrieval.by_class import ClassSimilarities, class_similarities
from vicinal.retrieval.calibration import LOWEST_SIMILARITY, SCORE_KINDS, Pooling, ScoreKind
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class OpenSetScores:
    """The scores of the best matches of queries of known and unknown classes.

    Attributes:
        known: float32 [known], of queries whose class is in the gallery.
        is_right: bool [known], whether the best match is of the query's class.
        known_classes: int64 [known].
        unknown: float32 [unknown], of queries whose class is left out of the gallery.
        unknown_classes: int64 [unknown].
        unknown_matches: int64 [unknown], the class of the best match; -1 if there is none.
        unknown_without_match: float32 [unknown], the scores if that class were left out of the gallery too.
        num_gallery: the number of gallery images.
    """

    known: Floats
    is_right: Booleans
    known_classes: Integers
    unknown: Floats
    unknown_classes: Integers
    unknown_matches: Integers
    unknown_without_match: Floats
    num_gallery: int


def open_set_scores(
    embeddings: Array, table: Table, score: ScoreKind = "similarity", pooling: Pooling = "best"
) -> OpenSetScores:
    """Search for every query as a known and as an unknown one, exactly, in bounded memory.

    Queries, gallery and groups are those of :func:`~vicinal.evaluation.evaluate`. A query whose class has no other
    image in the gallery is an unknown one only.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        score: the cosine `similarity` of the best match; or the `margin` by which it is more similar than the best
            image of any other class.
        pooling: how the images of a class are pooled, see :func:`~vicinal.retrieval.class_similarities`; the best match
            is then the most similar class.

    Raises:
        InputError: numbers of rows differ, no labels, NaN or infinity in an embedding, or too few classes in the
            gallery.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> scores = open_set_scores(np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]), table)
        >>> scores.known, scores.is_right, scores.unknown.round(1)
        (array([1., 1.], dtype=float32), array([ True,  True]), array([0.6, 0.6, 0.6], dtype=float32))
    """
    if score not in SCORE_KINDS:
        raise InputError(f"score = {score!r} is unknown; use similarity or margin")
    check_rows(embeddings, table)
    query_rows, gallery_rows = query_gallery_rows(table)
    labels = table.labels
    _check_classes(labels[query_rows], labels[gallery_rows], needed=1 if score == "similarity" else 2)
    similarities = class_similarities(
        UnitVectors(embeddings, "embedding", query_rows),
        UnitVectors(embeddings, "embedding", gallery_rows),
        labels[query_rows],
        labels[gallery_rows],
        same_image_or_group(table, query_rows, gallery_rows),
        num_others=3,
        pooling=pooling,
    )
    has_own = similarities.own > -np.inf
    if table.has("group") and not has_own.any():
        own_row = own_gallery_rows(table, query_rows, gallery_rows)
        Relevance(labels[query_rows], labels[gallery_rows], own_row).check_any_positive(has_own)
    known, unknown, without_match = _scores(similarities, score)
    return OpenSetScores(
        known=known[has_own],
        is_right=(similarities.own > similarities.others[:, 0])[has_own],
        known_classes=labels[query_rows][has_own],
        unknown=unknown,
        unknown_classes=labels[query_rows],
        unknown_matches=similarities.other_labels[:, 0],
        unknown_without_match=without_match,
        num_gallery=len(gallery_rows),
    )


def ood_scores(
    ood: Array, embeddings: Array, table: Table, score: ScoreKind = "similarity", pooling: Pooling = "best"
) -> Floats:
    """The scores of the best matches of queries that are out of distribution, float32 [queries].

    Args:
        ood: float [queries, dim], such as embeddings of other kinds of things.
        embeddings: float [rows, dim], of which the gallery images are searched.
        table: one row per embedding, with labels.
        score: as for :func:`open_set_scores`.
        pooling: as for :func:`open_set_scores`.
    """
    rows = query_gallery_rows(table)[1]
    queries, gallery = UnitVectors(ood, "query"), UnitVectors(embeddings, "embedding", rows)
    labels = np.full(len(queries), table.labels.max() + 1)
    similarities = class_similarities(queries, gallery, labels, table.labels[rows], num_others=3, pooling=pooling)
    return _scores(similarities, score)[1]


def _scores(similarities: ClassSimilarities, score: ScoreKind) -> tuple[Floats, Floats, Floats]:
    """The scores of queries as known ones, as unknown ones, and without the class of their best match too."""
    first, second, third = similarities.others.T
    if score == "similarity":
        return similarities.best, first, second
    third = np.maximum(third, LOWEST_SIMILARITY)  # where there are only two other classes
    return similarities.best - similarities.runner_up, first - second, second - third


def same_image_or_group(table: Table, query_rows: Integers, gallery_rows: Integers) -> Exclusions:
    """The exclusions of each query: itself, and images of its class and group."""
    groups, own_row = class_group_codes(table), own_gallery_rows(table, query_rows, gallery_rows)
    return Exclusions(len(query_rows), len(gallery_rows), own_row, groups[query_rows], groups[gallery_rows])


def _check_classes(query_labels: Integers, gallery_labels: Integers, needed: int) -> None:
    classes = np.unique(gallery_labels)
    num_others = len(classes) - int(np.isin(query_labels, classes).any())
    if num_others < needed:
        raise InputError(
            f"the gallery has {len(classes)} classes; queries of unknown classes need {needed} besides their own"
        )


def open_set_auroc(scores: OpenSetScores) -> float:
    """The area under the ROC curve that tells queries of known classes from those of unknown ones.

    Raises:
        InputError: no query is of a known class.

    Example:
        >>> scores = open_set_scores(np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": [0, 0, 1, 1]})))
        >>> open_set_auroc(scores)
        1.0
    """
    _check_known(scores)
    return auroc(scores.known, scores.unknown)


def fnir_at_fpir(scores: OpenSetScores, fpir: float) -> float:
    """FNIR at the lowest threshold at which FPIR is not above `fpir`.

    Raises:
        InputError: no query is of a known class, or `fpir` is not between 0 and 1.

    Example:
        >>> scores = open_set_scores(np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": [0, 0, 1, 1]})))
        >>> fnir_at_fpir(scores, 0.01)
        0.0
    """
    _check_known(scores)
    return 1 - float(identified(scores, threshold_at(scores.unknown, fpir)).mean())


def identified(scores: OpenSetScores, threshold: float) -> Booleans:
    """Whether the best match of each query of a known class is right and accepted, bool [known]."""
    return scores.is_right & (scores.known >= threshold)


def identification_curve(scores: OpenSetScores) -> pd.DataFrame:
    """The detection and identification rate at every false positive identification rate that occurs.

    Returns:
        One row per threshold, from that which accepts no unknown query to that which accepts all, with the columns
        `threshold`, `fpir` and `dir` (float64).

    Raises:
        InputError: no query is of a known class.

    Example:
        >>> scores = open_set_scores(np.eye(2)[[0, 0, 1, 1]], Table(pd.DataFrame({"label": [0, 0, 1, 1]})))
        >>> identification_curve(scores)[["fpir", "dir"]].to_numpy().tolist()
        [[0.0, 1.0], [1.0, 1.0]]
    """
    _check_known(scores)
    unknown = np.sort(scores.unknown)
    distinct = np.unique(unknown)[::-1]
    thresholds = np.concatenate([[just_above(distinct[0])], distinct.astype(np.float64)])
    right = np.sort(scores.known[scores.is_right])
    num_refused = np.searchsorted(unknown, thresholds.astype(np.float32), "left")
    num_lost = np.searchsorted(right, thresholds.astype(np.float32), "left")
    return pd.DataFrame(
        {
            "threshold": thresholds,
            "fpir": 1 - num_refused / len(unknown),
            "dir": (len(right) - num_lost) / len(scores.known),
        }
    )


def _check_known(scores: OpenSetScores) -> None:
    if not len(scores.known):
        raise InputError("no query has another image of its class in the gallery; use classes of two images or more")


def auroc(positives: Floats, negatives: Floats) -> float:
    """The probability that a positive scores higher than a negative, ties counting half (Mann-Whitney)."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.sum(dtype=np.float64) / (2 * len(positives) * len(negatives)))
