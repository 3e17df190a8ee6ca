"""The options of studies. Importing this module loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vicinal.utils.errors import InputError

Sampler = Literal["tpe", "random", "sobol"]


@dataclass(frozen=True)
class TuneSettings:
    """The options of a search.

    Args:
        trials: number of trials, those of earlier commands on this study included.
        sampler: how settings are proposed: "tpe", the tree-structured Parzen estimator, learns from the trials before;
            "random" does not; "sobol" does not either, and covers numbers more evenly than "random" with few trials.
        prune: end trials early whose validation scores are worse than the median at the same epoch, or by Hyperband,
            which gives many trials few epochs and few trials all; with several folds, the first one decides.
        held_out: the classes that validate: "half", the second half of the training classes in order, while the first
            half trains; "val", the split val of the data; or a number of folds, each of which validates once.
        seeds: number of seeds with which the best trials are trained; their mean decides which one is best.
        top: number of the best trials that are trained with further seeds.
        replay: then train once on all training classes, with the best settings, until the epoch that was the best one,
            and evaluate that model once on the test split.
        recall_at: with replay, the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: with replay, names of further metrics: precision@K, mAP@K, positives_recall@K, MRR.
        hierarchy: with replay, score the coarse labels of the table too.
        clusters: with replay, compare k-means clusters with the classes too: NMI, AMI and F1.
        keep_weights: keep the weights of all trials.
        jobs: number of runs at a time, each on a GPU of its own if there are several.
    """

    trials: int = 20
    sampler: Sampler = "tpe"
    prune: Literal["none", "median", "hyperband"] = "none"
    held_out: str = "half"
    seeds: int = 1
    top: int = 3
    replay: bool = False
    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    keep_weights: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in ("trials", "seeds", "top", "jobs"):
            _require_positive(self, name)
        folds = self.held_out.isdecimal() and int(self.held_out) >= 2
        if not folds and self.held_out not in ("half", "val"):
            raise InputError(f"held_out = {self.held_out} must be half, val, or a number of folds from 2 up")


@dataclass(frozen=True)
class SweepSettings:
    """The options of a grid.

    Args:
        seeds: number of seeds with which each cell is trained.
        metric: the metric of the picture; None: that of the recipe's validation.
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: names of further metrics: precision@K, mAP@K, positives_recall@K, MRR.
        hierarchy: score the coarse labels of the table too.
        clusters: compare k-means clusters with the classes too: NMI, AMI and F1.
        jobs: number of runs at a time, each on a GPU of its own if there are several.
    """

    seeds: int = 1
    metric: str | None = None
    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs"):
            _require_positive(self, name)


def _require_positive(settings: object, name: str) -> None:
    if getattr(settings, name) < 1:
        raise InputError(f"{name} = {getattr(settings, name)} must be at least 1")
