"""Calibration of the scores of a search on queries of known and unknown classes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation import thresholds
from vicinal.evaluation.bootstrap import bootstrap_bounds
from vicinal.evaluation.clustering import cluster_threshold
from vicinal.evaluation.open_set import OpenSetScores, identified, open_set_scores
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling, UnitTotals
from vicinal.retrieval.calibration import MAX_KNOTS, Calibration, Pooling, ScoreKind
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers
from vicinal.utils.errors import InputError

MIN_CLASSES = 4  # two to choose a threshold on, two to try it on
RATES = (0.01, 0.05, 0.1)


def calibrate(
    embeddings: Array,
    table: Table,
    false_accept_rate: float = 0.01,
    *,
    score: ScoreKind = "similarity",
    unknown_fraction: float = 0.5,
    threshold_by: Literal["rate", "bound"] = "rate",
    resampling: Resampling = DEFAULT_RESAMPLING,
    fingerprint: str | None = None,
    scores: OpenSetScores | None = None,
    ood: Floats | None = None,
    pooling: Pooling = "best",
) -> Calibration:
    """Choose a threshold for "match or none", and find the probability that the best match of a search is right.

    The classes should be ones that the model was not trained on: images of its training classes are closer together
    than any that it will see later. Every query searches for a match twice, see
    :func:`~vicinal.evaluation.open_set_scores`: with its class in the gallery, and without. The threshold is the lowest
    at which at most the fraction `false_accept_rate` of searches without the class are accepted; or, for `bound`, the
    lowest at which an upper confidence bound of this fraction for other classes is at most that rate (Bates et al.,
    "Distribution-free, risk-controlling prediction sets", J. ACM 68, 2021). How well it holds for other classes is also
    measured by leaving out each class in turn, from the queries and from the gallery, and applying the threshold to it.
    Probabilities are fitted by isotonic regression (Zadrozny & Elkan, "Transforming classifier scores into accurate
    multiclass probability estimates", KDD 2002).

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels; columns `is_query`, `is_gallery` and `group` as in
            :func:`~vicinal.evaluation.evaluate`.
        false_accept_rate: the fraction of queries of unknown classes that may be accepted, between 0 and 1.
        score: the cosine `similarity` of the best match, or the `margin` to the best image of any other class.
        unknown_fraction: the fraction of queries of unknown classes in use, from 0 to 1, by which the probabilities are
            weighted.
        threshold_by: whether `false_accept_rate` limits the `rate` on these classes, or the confidence `bound` for
            others.
        resampling: of classes, for confidence intervals and bounds.
        fingerprint: identifies the model and the steps after it.
        scores: those of :func:`~vicinal.evaluation.open_set_scores`, if they are known already.
        ood: the scores of out-of-distribution queries, see :func:`~vicinal.evaluation.ood_scores`; the rate limits
            their acceptance too.
        pooling: how the images of a class are pooled, see :func:`~vicinal.retrieval.class_similarities`.

    Raises:
        InputError: as :func:`~vicinal.evaluation.open_set_scores`; a rate or fraction is invalid; there are fewer
            than four classes, or too few for the bound; or `resampling` resamples single queries.

    Example:
        >>> rng, labels = np.random.default_rng(0), np.arange(40).repeat(5)
        >>> embeddings = rng.normal(size=(40, 16))[labels] + 0.3 * rng.normal(size=(200, 16))
        >>> calibration = calibrate(embeddings, Table(pd.DataFrame({"label": labels})))
        >>> calibration.accepts([0.5, 0.95]), calibration.probability([0.5, 0.95])
        (array([False,  True]), array([0., 1.]))
    """
    _check_settings(false_accept_rate, unknown_fraction, threshold_by, resampling)
    scores = scores or open_set_scores(embeddings, table, score, pooling)
    num_classes = _check_classes(scores)
    classes = thresholds.effective_classes(scores.unknown_classes)
    level, rate = resampling.confidence_level, false_accept_rate
    if threshold_by == "bound":
        rate = thresholds.rate_for_bound(false_accept_rate, classes, level)
    floor = _threshold_of_ood(ood, rate)
    low, high = thresholds.threshold_interval(scores.unknown, scores.unknown_classes, rate, resampling)
    threshold = max(thresholds.threshold_at(scores.unknown, rate), floor)
    held_out, missed = held_out_accepts(scores, rate, floor), ~identified(scores, threshold)
    knots, probabilities = fit_probabilities(scores, unknown_fraction)
    queries = query_gallery_rows(table)[0]
    return Calibration(
        score=score,
        threshold=threshold,
        threshold_interval=(max(low, floor), max(high, floor)),
        false_accept_rate=float(false_accept_rate),
        held_out_false_accept_rate=float(held_out.mean()),
        held_out_false_accept_rate_interval=rate_interval(held_out, scores.unknown_classes, resampling),
        false_accept_rate_bound=thresholds.rate_bound(rate, classes, level),
        false_reject_rate=float(missed.mean()),
        false_reject_rate_interval=rate_interval(missed, scores.known_classes, resampling),
        scores=tuple(knots.tolist()),
        probabilities=tuple(probabilities.tolist()),
        unknown_fraction=float(unknown_fraction),
        confidence_level=resampling.confidence_level,
        num_queries=len(scores.unknown),
        num_classes=num_classes,
        num_gallery=scores.num_gallery,
        fingerprint=fingerprint,
        pooling=pooling,
        cluster_threshold=cluster_threshold(embeddings[queries], table.take(queries)),
    )


def _check_settings(rate: float, unknown_fraction: float, threshold_by: str, resampling: Resampling) -> None:
    thresholds.check_rate("false_accept_rate", rate)
    if threshold_by not in ("rate", "bound"):
        raise InputError(f"threshold_by = {threshold_by!r} is unknown; use rate or bound")
    if not 0 <= unknown_fraction <= 1:
        raise InputError(f"unknown_fraction = {unknown_fraction} is invalid; use one from 0 to 1")
    if resampling.resample_by != "classes":
        raise InputError("a calibration is for other classes; resample classes, not queries")


def _check_classes(scores: OpenSetScores) -> int:
    """Check the number of classes, and return that of the unknown queries."""
    num_classes = len(np.unique(scores.unknown_classes))
    if num_classes < MIN_CLASSES or len(np.unique(scores.known_classes)) < 2:
        raise InputError(
            f"queries of {num_classes} classes are too few to calibrate with; use at least {MIN_CLASSES}, two of them "
            "with two images or more"
        )
    return num_classes


def _threshold_of_ood(ood: Floats | None, rate: float) -> float:
    """The lowest threshold at which at most this fraction of out-of-distribution queries is accepted."""
    return -np.inf if ood is None else thresholds.threshold_at(ood, rate)


def held_out_accepts(scores: OpenSetScores, rate: float, floor: float = -np.inf) -> Booleans:
    """Whether each query of an unknown class is accepted by the threshold of the other classes, bool [unknown].

    Each class is left out in turn, from the queries and from the gallery: if it stayed in the gallery, a similar class
    would raise the threshold. No threshold is below `floor`.
    """
    order = np.argsort(-scores.unknown, kind="stable")
    accepted = np.empty(len(order), dtype=bool)
    for held_out in np.unique(scores.unknown_classes):
        is_own, is_match = scores.unknown_classes == held_out, scores.unknown_matches == held_out
        allowed = thresholds.num_allowed(int((~is_own).sum()), rate)
        # The best scores decide: as many as may be accepted, and those that fall when the class is left out.
        best = order[: allowed + 1 + int((is_own | is_match).sum())]
        others = np.where(is_match, scores.unknown_without_match, scores.unknown)[best][~is_own[best]]
        threshold = max(thresholds.just_above(np.sort(others)[::-1][allowed]), floor)
        accepted[is_own] = scores.unknown[is_own] >= threshold
    return accepted


def rate_interval(outcomes: Booleans, classes: Integers, resampling: Resampling) -> tuple[float, float]:
    """Confidence interval of the fraction of outcomes [n] that are true, from resampled classes [n]."""
    codes = np.unique(classes, return_inverse=True)[1]
    sums, counts = np.bincount(codes, weights=outcomes), np.bincount(codes)
    totals = UnitTotals(sums[:, None].astype(np.float64), counts[:, None].astype(np.float64))
    low, high = bootstrap_bounds(totals, resampling)
    return float(low[0]), float(high[0])


def fit_probabilities(scores: OpenSetScores, unknown_fraction: float) -> tuple[Doubles, Doubles]:
    """Scores and the probability at each that the best match is right, by isotonic regression, both float64 [knots].

    A query of an unknown class has no right match. Known and unknown queries are weighted so that the latter are the
    fraction `unknown_fraction`.
    """
    from sklearn.isotonic import IsotonicRegression

    values = np.concatenate([scores.known, scores.unknown]).astype(np.float64)
    is_right = np.concatenate([scores.is_right, np.zeros(len(scores.unknown), dtype=bool)])
    sizes = len(scores.known), len(scores.unknown)
    weights = np.repeat([(1 - unknown_fraction) / sizes[0], unknown_fraction / sizes[1]], sizes) * sum(sizes)
    used = weights > 0
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
        values[used], is_right[used].astype(np.float64), weights[used]
    )
    kept = np.unique(np.linspace(0, len(fitted.X_thresholds_) - 1, MAX_KNOTS).round().astype(np.int64))
    return fitted.X_thresholds_[kept], np.clip(fitted.y_thresholds_, 0.0, 1.0)[kept]


def operating_points(
    scores: OpenSetScores, rates: tuple[float, ...] = RATES, ood: Floats | None = None
) -> pd.DataFrame:
    """The threshold of each false-accept rate, and the fractions that it rejects.

    Args:
        scores: of queries of known and unknown classes.
        rates: between 0 and 1.
        ood: the scores of out-of-distribution queries.

    Returns:
        One row per rate, with the columns `false_accept_rate`, `threshold`, `held_out_false_accept_rate`, of each class
        by the threshold of the others; `false_reject_rate`; and, if `ood` is given, `ood_accepted`.

    Example:
        >>> rng, labels = np.random.default_rng(0), np.arange(40).repeat(5)
        >>> vectors = rng.normal(size=(40, 16))[labels] + 0.6 * rng.normal(size=(200, 16))
        >>> points = operating_points(open_set_scores(vectors, Table(pd.DataFrame({"label": labels}))))
        >>> points["false_reject_rate"].round(3).tolist()
        [0.565, 0.295, 0.18]
    """
    rows = []
    for rate in rates:
        floor = _threshold_of_ood(ood, rate)
        threshold = max(thresholds.threshold_at(scores.unknown, rate), floor)
        row = {
            "false_accept_rate": rate,
            "threshold": threshold,
            "held_out_false_accept_rate": float(held_out_accepts(scores, rate, floor).mean()),
            "false_reject_rate": float(1 - identified(scores, threshold).mean()),
        }
        rows.append(row | ({} if ood is None else {"ood_accepted": float((ood >= threshold).mean())}))
    return pd.DataFrame(rows)
