"""Validation scores of runs over the epochs, their mean over folds and seeds, and the epoch at which it is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vicinal.utils.run_log import read_log

Curve = Mapping[int, float]
"""Number of finished epochs -> score on the validation classes; the scores before training are left out."""


class Best(NamedTuple):
    """The best score, and the number of epochs after which it was reached first."""

    score: float
    epoch: int


def read_curve(path: Path, metric: str) -> dict[int, float]:
    """The scores of a run by its `metrics.csv`; a run that was just started has none."""
    log = read_log(path)
    if metric not in log or "epoch" not in log:
        return {}
    log = log.dropna(subset=["epoch", metric])
    return {int(epoch): float(score) for epoch, score in zip(log["epoch"], log[metric], strict=True) if epoch >= 1}


def mean_curve(curves: Sequence[Curve]) -> dict[int, float]:
    """The mean over runs, at the epochs that all of them have; runs may stop early.

    Example:
        >>> mean_curve([{1: 0.5, 2: 0.75}, {1: 0.25, 2: 0.75, 3: 1.0}])
        {1: 0.375, 2: 0.75}
    """
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {epoch: sum(curve[epoch] for curve in curves) / len(curves) for epoch in common}


def best_of(curve: Curve) -> Best:
    """The best score of a curve.

    Example:
        >>> best_of({1: 0.5, 2: 0.75, 3: 0.75})
        Best(score=0.75, epoch=2)
    """
    epoch = max(curve, key=lambda each: (curve[each], -each))
    return Best(curve[epoch], epoch)
