"""Identification of individuals, only some of them enrolled: who they are, who is new, how the new ones are grouped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.clustering import cluster_agreement
from vicinal.evaluation.open_set import same_image_or_group
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.resampling import check_confidence_level
from vicinal.retrieval.by_class import class_similarities
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.linkage import cluster_photos
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import check_seed, is_number, shown
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class IdentificationEvaluation:
    """The result of :func:`evaluate_identification`.

    Attributes:
        per_query: metric -> float64 [rows], NaN for rows that are not among its queries.

            - `closed_set_accuracy`: of photos of enrolled identities, whether the nearest identity is right.
            - `identification_rate`: of these, whether it is right and accepted.
            - `known_as_new`: of these, whether it is not accepted.
            - `unknown_rate`: of photos of unknown identities, whether they are said to be new.
        set_metrics: `new_ARI` and `new_F1`, the adjusted Rand index and the pairwise F1 of the grouping of the photos
            of unknown identities: photos called new are grouped by their proposed identity, the others by the identity
            they were taken for.
        set_intervals: their confidence intervals, by the jackknife over unknown identities.
    """

    per_query: dict[str, Doubles]
    set_metrics: dict[str, float]
    set_intervals: dict[str, tuple[float, float]]


def evaluate_identification(
    embeddings: Array,
    table: Table,
    calibration: Calibration,
    known_fraction: float = 0.5,
    seed: int = 0,
    confidence_level: float = 0.95,
) -> IdentificationEvaluation:
    """Enroll some identities, identify the other photos as :func:`~vicinal.retrieval.identify` does, and compare.

    With the columns `is_query` and `is_gallery`, the photos of the gallery are enrolled, and the queries that are not
    among them are identified. Otherwise :func:`enrolled_rows` divides the photos. Photos of the query's own class and
    group are left out, as in every evaluation.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        calibration: its thresholds and its pooling; from other classes.
        known_fraction: the fraction of the identities that are enrolled, between 0 and 1.
        seed: of the identities that are enrolled, and of their photos.
        confidence_level: of the intervals.

    Raises:
        InputError: numbers of rows differ, no labels, a fraction that is invalid, or no photo of a known or of an
            unknown identity to be identified.

    Example:
        >>> from vicinal.retrieval.calibration import example_calibration
        >>> rng, labels = np.random.default_rng(0), np.arange(20).repeat(4)
        >>> vectors = rng.normal(size=(20, 16))[labels] + 0.1 * rng.normal(size=(80, 16))
        >>> found = evaluate_identification(vectors, Table(pd.DataFrame({"label": labels})), example_calibration())
        >>> {name: float(np.nanmean(values)) for name, values in found.per_query.items()}
        {'closed_set_accuracy': 1.0, 'identification_rate': 1.0, 'known_as_new': 0.0, 'unknown_rate': 1.0}
        >>> found.set_metrics
        {'new_ARI': 1.0, 'new_F1': 1.0}
    """
    check_rows(embeddings, table)
    check_confidence_level(confidence_level)
    gallery, queries = _split_rows(table, known_fraction, seed)
    labels = table.labels
    vectors = UnitVectors(embeddings, "embedding", queries)
    similarities = class_similarities(
        vectors, UnitVectors(embeddings, "embedding", gallery), labels[queries], labels[gallery],
        same_image_or_group(table, queries, gallery), pooling=calibration.pooling,
    )  # fmt: skip
    is_right = similarities.own > similarities.others[:, 0]
    scores = similarities.best - similarities.runner_up if calibration.score == "margin" else similarities.best
    is_new = ~calibration.accepts(scores)
    is_known = similarities.own > -np.inf
    is_unknown = ~np.isin(labels[queries], labels[gallery])
    if not (is_known.any() and is_unknown.any()):
        raise InputError(
            f"{is_known.sum()} photos of known and {is_unknown.sum()} of unknown identities are left to be identified; "
            "use more classes, of two images or more"
        )
    groups = np.where(is_right, labels[queries], similarities.other_labels[:, 0])
    new = np.flatnonzero(is_new)
    threshold = calibration.threshold if calibration.cluster_threshold is None else calibration.cluster_threshold
    groups[new] = len(table.classes) + cluster_photos(vectors.take(new).cpu().numpy(), threshold)
    outcomes = {
        "closed_set_accuracy": (is_known, is_right),
        "identification_rate": (is_known, is_right & ~is_new),
        "known_as_new": (is_known, is_new),
        "unknown_rate": (is_unknown, is_new),
    }
    per_query = {}
    for name, (is_counted, outcome) in outcomes.items():
        per_query[name] = np.full(len(table), np.nan)
        per_query[name][queries[is_counted]] = outcome[is_counted]
    classes, clusters = labels[queries][is_unknown], groups[is_unknown]
    values, intervals = cluster_agreement(classes, clusters), jackknife(classes, clusters, confidence_level)
    named = {f"new_{name}": value for name, value in values.items()}
    return IdentificationEvaluation(per_query, named, {f"new_{name}": each for name, each in intervals.items()})


def _split_rows(table: Table, known_fraction: float, seed: int) -> tuple[Integers, Integers]:
    """The rows that are enrolled, and those that are identified."""
    if table.has("is_query") or table.has("is_gallery"):
        queries, gallery = query_gallery_rows(table)
        return gallery, np.setdiff1d(queries, gallery)
    gallery = enrolled_rows(table, known_fraction, seed)
    return gallery, np.setdiff1d(np.arange(len(table)), gallery)


def enrolled_rows(table: Table, known_fraction: float = 0.5, seed: int = 0) -> Integers:
    """The rows of half of the photos, rounded down but at least one, of random identities, int64 [n], ascending.

    Args:
        table: with labels.
        known_fraction: the fraction of the identities, between 0 and 1.
        seed: of the random numbers.

    Raises:
        InputError: the fraction is not between 0 and 1, the seed is invalid, or there are fewer than two identities.

    Example:
        >>> len(enrolled_rows(Table(pd.DataFrame({"label": ["Ada"] * 5 + ["Bo"] * 5}))))
        2
    """
    num_classes = len(table.classes)
    if not (is_number(known_fraction) and 0 < known_fraction < 1):
        raise InputError(f"known_fraction = {shown(known_fraction)} is invalid; use one between 0 and 1, such as 0.5")
    if num_classes < 2:
        raise InputError("identification needs two identities or more, of which some are unknown")
    check_seed(enrolled_rows, seed)
    rng = np.random.default_rng(seed)
    number = min(max(round(known_fraction * num_classes), 1), num_classes - 1)
    is_known = np.zeros(num_classes, dtype=bool)
    is_known[rng.permutation(num_classes)[:number]] = True
    order = rng.permutation(len(table))
    turn = pd.Series(table.labels[order]).groupby(table.labels[order]).cumcount().to_numpy()
    quota = np.maximum(table.class_counts // 2, 1) * is_known
    return np.sort(order[turn < quota[table.labels[order]]])


def jackknife(classes: Integers, clusters: Integers, confidence_level: float) -> dict[str, tuple[float, float]]:
    """Confidence intervals of :func:`~vicinal.evaluation.cluster_agreement`, by leaving out one class at a time.

    A bootstrap would compare classes with copies of themselves. Intervals are those of Student's t (Tukey, "Bias and
    confidence in not-quite large samples", Ann. Math. Stat. 29, 1958), within the range of the metric.
    """
    from scipy.special import stdtrit

    names = np.unique(classes)
    full_metrics, num_classes = cluster_agreement(classes, clusters), len(names)
    if num_classes < 2:
        return dict.fromkeys(full_metrics, (np.nan, np.nan))
    replicates = [
        cluster_agreement(classes[is_kept], clusters[is_kept]) for name in names for is_kept in [classes != name]
    ]
    intervals = {}
    for metric, value in full_metrics.items():
        values = np.array([each[metric] for each in replicates])
        error = np.sqrt((num_classes - 1) / num_classes * ((values - values.mean()) ** 2).sum())
        half = float(stdtrit(num_classes - 1, (1 + confidence_level) / 2) * error)
        intervals[metric] = (max(value - half, -0.5 if metric == "ARI" else 0.0), min(value + half, 1.0))
    return intervals
