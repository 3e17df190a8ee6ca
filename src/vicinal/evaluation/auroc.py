"""The area under the ROC curve, exact, with ties."""

from __future__ import annotations

import numpy as np

from vicinal.utils.arrays import Floats


def auroc(positives: Floats, negatives: Floats) -> float:
    """The probability that a positive scores higher than a negative, ties counting half (Mann-Whitney).

    Args:
        positives: float32 [p], at least one score.
        negatives: float32 [n], at least one score.

    Example:
        >>> auroc(np.array([0.5, 1.0], np.float32), np.array([0.0, 0.5], np.float32))
        0.875
    """
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.sum(dtype=np.float64) / (2 * len(positives) * len(negatives)))
