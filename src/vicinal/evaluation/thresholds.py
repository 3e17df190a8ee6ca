"""Thresholds for a chosen false-accept rate, exact, and their confidence intervals over classes.

A score is accepted if it is at least the threshold. The threshold for a rate is the lowest at which no more than that
fraction of the scores that should be refused is accepted.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from vicinal.evaluation.bootstrap import resample_weights
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling
from vicinal.utils.arguments import is_number, shown
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError


def check_rate(name: str, rate: object) -> None:
    """Check that a rate is a number between 0 and 1.

    Raises:
        InputError: it is not.
    """
    if not (is_number(rate) and 0 < rate < 1):
        raise InputError(f"{name} = {shown(rate)} is impossible; use one between 0 and 1, such as 0.01")


def num_allowed(num_scores: int, rate: float) -> int:
    """The number of scores that may be accepted at a rate, which is read as the decimal number that Python prints.

    Example:
        >>> num_allowed(100, 0.29), int(100 * 0.29)
        (29, 28)
    """
    return math.floor(num_scores * Fraction(repr(float(rate))))


def threshold_at(scores: Floats, rate: float) -> float:
    """The lowest threshold at which at most the fraction `rate` of the scores is accepted.

    Args:
        scores: float32 [n], of what should be refused.
        rate: between 0 and 1.

    Raises:
        InputError: there are no scores, or the rate is impossible.

    Example:
        >>> scores = np.array([0.5, 0.25, 0.0, -0.25], np.float32)
        >>> 0.25 < threshold_at(scores, 0.25) < 0.2501, 0.5 < threshold_at(scores, 0.2) < 0.5001
        (True, True)
    """
    check_rate("rate", rate)
    if not len(scores):
        raise InputError("there is no score that should be refused; a threshold needs at least one")
    descending = np.sort(scores)[::-1]
    return just_above(descending[num_allowed(len(scores), rate)])


def threshold_interval(
    scores: Floats, units: Integers, rate: float, resampling: Resampling = DEFAULT_RESAMPLING
) -> tuple[float, float]:
    """Percentile bootstrap interval of :func:`threshold_at`, from resampled classes.

    Args:
        scores: float32 [n], of what should be refused.
        units: int64 [n], the class of each, which is resampled with all its scores.
        rate: between 0 and 1.
        resampling: how often, and the confidence level.

    Returns:
        The lower and the upper bound.
    """
    names, codes = np.unique(units, return_inverse=True)
    order = np.argsort(-scores, kind="stable")
    descending, codes = scores[order], codes[order]
    rng, thresholds = np.random.default_rng(resampling.seed), []
    for size in resampling.batches(len(scores)):
        accepted = resample_weights(rng, size, len(names))[:, codes].cumsum(axis=1)
        allowed = np.floor(accepted[:, -1:] * rate * (1 + 1e-12))
        thresholds.append(descending[(accepted > allowed).argmax(axis=1)])
    tail = (1 - resampling.confidence_level) / 2
    bounds: Doubles = np.quantile(np.concatenate(thresholds), [tail, 1 - tail], method="nearest")
    return just_above(bounds[0]), just_above(bounds[1])


def just_above(score: np.floating) -> float:
    """The next number of float32 above a score."""
    return float(np.nextafter(np.float32(score), np.float32(np.inf)))
