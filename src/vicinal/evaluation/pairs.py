"""Verification of listed pairs, as in LFW: accuracy over ten folds, true-accept rates at false-accept rates.

Huang et al., "Labeled Faces in the Wild", University of Massachusetts, technical report 07-49, 2007, section 5: the
threshold of each fold is the one that is most accurate on the other nine, and the estimate is the mean accuracy over
the folds with its standard error, the standard deviation over the square root of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.evaluation.auroc import auroc
from vicinal.evaluation.thresholds import threshold_at
from vicinal.evaluation.verification import RATES
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers
from vicinal.utils.errors import InputError

NUM_FOLDS = 10


@dataclass(frozen=True)
class PairsEvaluation:
    """How well pairs of the same class are told from pairs of different ones.

    Attributes:
        accuracy: the mean over the folds.
        standard_error: of that mean.
        folds: one row per fold, with the columns `fold`, `accuracy`, `threshold` and `num_pairs`.
        auroc: the probability that a pair of the same class is more similar than one of different classes.
        rates: one row per rate, with the columns `false_accept_rate`, `threshold` and `true_accept_rate`, over all
            pairs.
        num_same: the number of pairs of the same class.
        num_different: the number of pairs of different classes.
    """

    accuracy: float
    standard_error: float
    folds: pd.DataFrame
    auroc: float
    rates: pd.DataFrame
    num_same: int
    num_different: int

    def to_dict(self) -> dict[str, object]:
        """Return plain values, ready for JSON."""
        return {
            "accuracy": self.accuracy,
            "standard_error": self.standard_error,
            "auroc": self.auroc,
            "num_same": self.num_same,
            "num_different": self.num_different,
            "rates": self.rates.to_dict("records"),
            "folds": self.folds.to_dict("records"),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.num_same:,} pairs of the same class, {self.num_different:,} of different ones, "
            f"{len(self.folds)} folds",
            f"accuracy        {100 * self.accuracy:6.2f} % ± {100 * self.standard_error:.2f} (standard error)",
            f"AUROC           {100 * self.auroc:6.2f} %",
        ]
        for rate, threshold, accepted in self.rates.to_numpy(dtype=np.float64):
            lines.append(f"{f'TAR@FAR={rate:g}':15s} {100 * accepted:6.2f} %   threshold {threshold:.4f}")
        return "\n".join(lines)


def evaluate_pairs(
    scores: Floats,
    is_same: Booleans,
    folds: npt.ArrayLike | None = None,
    false_accept_rates: Sequence[float] = RATES,
) -> PairsEvaluation:
    """Evaluate the similarities of pairs.

    Args:
        scores: float32 [pairs].
        is_same: bool [pairs], whether a pair is of the same class.
        folds: [pairs], the fold of each pair; None divides the pairs of the same class, and those of different ones,
            into ten parts in their order, which gives the folds of LFW's list.
        false_accept_rates: each between 0 and 1.

    Raises:
        InputError: other numbers of values, NaN or infinity in a score, fewer than two folds, or pairs of one kind only
            outside of some fold.

    Example:
        >>> scores = np.array([0.9, 0.8, 0.1, 0.2], np.float32)
        >>> evaluate_pairs(scores, np.array([True, True, False, False]), folds=[0, 1, 0, 1]).accuracy
        1.0
    """
    scores, is_same = np.asarray(scores, np.float32), np.asarray(is_same, bool)
    folds = default_folds(is_same) if folds is None else np.asarray(folds)
    if not scores.shape == is_same.shape == folds.shape == (len(scores),):
        raise InputError(f"{len(scores)} scores, {len(is_same)} pairs, {len(folds)} folds; there must be one each")
    if not np.isfinite(scores).all():
        raise InputError("a score is NaN or infinity; every pair needs a finite one")
    results = []
    for fold in np.unique(folds):
        is_here = folds == fold
        if len(np.unique(is_same[~is_here])) < 2:
            raise InputError(f"outside of fold {fold} are no pairs of both kinds; use two folds or more with both")
        threshold = most_accurate_threshold(scores[~is_here], is_same[~is_here])
        accuracy = float(((scores[is_here] >= threshold) == is_same[is_here]).mean())
        results.append((fold, accuracy, threshold, int(is_here.sum())))
    frame = pd.DataFrame(results, columns=["fold", "accuracy", "threshold", "num_pairs"])
    same, different = scores[is_same], scores[~is_same]
    return PairsEvaluation(
        accuracy=float(frame["accuracy"].mean()),
        standard_error=float(frame["accuracy"].std(ddof=1) / np.sqrt(len(frame))),
        folds=frame,
        auroc=auroc(same, different),
        rates=_rates(same, different, false_accept_rates),
        num_same=len(same),
        num_different=len(different),
    )


def most_accurate_threshold(scores: Floats, is_same: Booleans) -> float:
    """The threshold at which most pairs are told right, halfway between two scores; of several, the lowest.

    Example:
        >>> most_accurate_threshold(np.array([0.25, 0.75, 0.5], np.float32), np.array([False, True, False]))
        0.625
    """
    values, codes = np.unique(scores, return_inverse=True)
    change = np.bincount(codes, weights=np.where(is_same, -1.0, 1.0))  # of the number right, when a score is refused
    num_right: Doubles = np.concatenate([[0.0], np.cumsum(change)])
    ends = np.concatenate([values[:1] - 1, values, values[-1:] + 1]).astype(np.float64)
    best = int(num_right.argmax())
    return float((ends[best] + ends[best + 1]) / 2)


def default_folds(is_same: Booleans, num_folds: int = NUM_FOLDS) -> Integers:
    """The fold of each pair: pairs of one kind in their order are divided into parts of equal size.

    Example:
        >>> default_folds(np.array([True, True, False, False]), num_folds=2).tolist()
        [0, 1, 0, 1]
    """
    folds = np.empty(len(is_same), np.int64)
    for kind in (True, False):
        rows = np.flatnonzero(is_same == kind)
        folds[rows] = np.arange(len(rows)) * num_folds // max(len(rows), 1)
    return folds


def _rates(same: Floats, different: Floats, false_accept_rates: Sequence[float]) -> pd.DataFrame:
    thresholds = [threshold_at(different, rate) for rate in false_accept_rates]
    accepted = [float((same >= threshold).mean()) for threshold in thresholds]
    return pd.DataFrame(
        {"false_accept_rate": list(false_accept_rates), "threshold": thresholds, "true_accept_rate": accepted}
    )
