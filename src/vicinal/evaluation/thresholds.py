"""Thresholds for a chosen false-accept rate, exact, and their confidence intervals over classes.

A score is accepted if it is at least the threshold. The threshold for a rate is the lowest at which no more than that
fraction of the scores that should be refused is accepted.

Classes are the sample: the rates of two classes differ far more than those of two queries of one class. From few
classes a bootstrap says too little about others, because the most similar pairs of classes may not be among them. The
bounds here need no such sample: of n independent classes whose rates have the mean p, the mean rate is at most r with
a probability of at most exp(-n KL(r, p)), whatever the distribution of the rates (Hoeffding, "Probability inequalities
for sums of bounded random variables", JASA 58, 1963, theorem 1). A threshold that is the lowest for a fixed rate keeps
the bound for that rate (Bates et al., "Distribution-free, risk-controlling prediction sets", J. ACM 68, 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from vicinal.evaluation.bootstrap import resample_weights, student_tails
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling
from vicinal.utils.arguments import is_number, shown
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError

BISECTIONS = 60
MIN_RATE = 1e-12  # at which no score is accepted


def check_rate(name: str, rate: object) -> None:
    if not (is_number(rate) and 0 < rate < 1):
        raise InputError(f"{name} = {shown(rate)} is invalid; use one between 0 and 1, such as 0.01")


def num_allowed(num_scores: int, rate: float) -> int:
    """The number of scores that may be accepted at a rate, which is read as the decimal number that Python prints.

    Example:
        >>> num_allowed(100, 0.29), int(100 * 0.29)
        (29, 28)
    """
    return math.floor(num_scores * Fraction(repr(float(rate))))


def threshold_at(scores: Floats, rate: float) -> float:
    """The lowest threshold at which at most the fraction `rate` of the scores, which should be refused, is accepted."""
    check_rate("rate", rate)
    if not len(scores):
        raise InputError("a threshold needs at least one score that should be refused")
    descending = np.sort(scores)[::-1]
    return just_above(descending[num_allowed(len(scores), rate)])


def threshold_interval(
    scores: Floats, units: Integers, rate: float, resampling: Resampling = DEFAULT_RESAMPLING
) -> tuple[float, float]:
    """Bootstrap interval of :func:`threshold_at`, with tails as wide as those of Student's t.

    The `units`, the class of each score, are resampled with all their scores.
    """
    names, codes = np.unique(units, return_inverse=True)
    order = np.argsort(-scores, kind="stable")
    descending, codes = scores[order], codes[order]
    rng, thresholds = np.random.default_rng(resampling.seed), []
    for size in resampling.batches(len(scores)):
        accepted = resample_weights(rng, size, len(names))[:, codes].cumsum(axis=1)
        allowed = np.floor(accepted[:, -1:] * rate * (1 + 1e-12))
        thresholds.append(descending[(accepted > allowed).argmax(axis=1)])
    from scipy.special import ndtr

    tails = ndtr(student_tails(resampling.confidence_level, len(names)))
    bounds: Doubles = np.quantile(np.concatenate(thresholds), tails, method="nearest")
    return just_above(bounds[0]), just_above(bounds[1])


def just_above(score: np.floating) -> float:
    """The next number of float32 above a score."""
    return float(np.nextafter(np.float32(score), np.float32(np.inf)))


def rate_bound(rate: float, num_classes: float, confidence_level: float = 0.95) -> float:
    """The upper confidence bound of the rate of all classes, where the mean of :func:`effective_classes` is `rate`."""
    limit = _divergence_limit(num_classes, confidence_level)
    return _bisect(lambda bound: _divergence(rate, bound) <= limit, rate, 1.0)[1]


def rate_for_bound(bound: float, num_classes: float, confidence_level: float = 0.95) -> float:
    """The highest rate whose :func:`rate_bound` is not above `bound`."""
    limit = _divergence_limit(num_classes, confidence_level)
    if _divergence(0.0, bound) < limit:
        raise InputError(
            f"a rate of {bound:g} with {100 * confidence_level:g} % confidence needs "
            f"{classes_needed(bound, confidence_level):,} classes of equal size; these are worth {num_classes:.3g}, "
            f"enough for one above {rate_bound(0.0, num_classes, confidence_level):.3f}"
        )
    return max(_bisect(lambda rate: _divergence(rate, bound) >= limit, 0.0, bound)[0], MIN_RATE)


def classes_needed(bound: float, confidence_level: float = 0.95) -> int:
    """The least number of classes, none of whose scores are accepted, for which :func:`rate_bound` is `bound`."""
    return math.ceil(math.log(1 - confidence_level) / math.log(1 - bound))


def effective_classes(units: Integers) -> float:
    """The number of classes of equal size whose mean rate varies as much (Kish, "Survey sampling", 1965).

    Example:
        >>> effective_classes(np.array([0, 0, 1, 1])), effective_classes(np.array([0, 0, 0, 1]))
        (2.0, 1.6)
    """
    counts = np.unique(units, return_counts=True)[1]
    return float(counts.sum() ** 2 / (counts**2).sum())


def _divergence_limit(num_classes: float, confidence_level: float) -> float:
    return -math.log(1 - confidence_level) / num_classes


def _divergence(first: float, second: float) -> float:
    """The Kullback-Leibler divergence of two probabilities, KL(first, second)."""
    terms = ((first, second), (1 - first, 1 - second))
    return sum(p * math.log(p / q) if q > 0 else math.inf for p, q in terms if p > 0)


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The place between two numbers up to which a condition holds."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high
