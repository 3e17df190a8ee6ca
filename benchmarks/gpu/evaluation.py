"""Every metric of a ranking beside the floor, the float32 product and the first ten by PyTorch, on the device.

The peer is pytorch-metric-learning with its own search in
PyTorch; it has precision@1, R-precision and mAP@R. Times are those of the host, which has the metrics in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.evaluation import CUTS, SMALL, Task, task
from benchmarks.gpu.kernels import with_kernels
from benchmarks.gpu.rows import FLOOR, NO_KERNELS, OURS, PEER, Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings, measured
from vicinal.data import Table
from vicinal.evaluation import evaluate, evaluate_arrays

SIZES = ("60502x512x5", "1000000x512x10x10000", "1000000x512x10")
"""As SOP; queries of a large gallery; a million that search each other."""
SMALL_SIZES = ("200x16x5", "300x16x5x20")
COMPARED = ("60502x512x5", *SMALL_SIZES)
"""Sizes at which the peer and ours without kernels are measured too."""
FLOOR_SCORES = 2**30
"""At a time, of a product."""


def measurements(settings: Settings) -> Iterator[Measurement]:
    """The floor and ours at each size, and the others."""
    for size in SMALL_SIZES if settings.small else SIZES:
        for who, run in {OURS: _ours, NO_KERNELS: _ours_without_kernels, FLOOR: _floor, PEER: _peer}.items():
            if who in (FLOOR, OURS) or size in COMPARED:
                key = Key("evaluation", "all metrics", who, size)
                yield Measurement(key, partial(_measure, run, size, settings), limit=180)
    _task.cache_clear()


def _measure(run: Callable[[Task, Tensor], object], size: str, settings: Settings) -> Numbers:
    given, vectors = _task(size, settings.device)
    few = _task_on(SMALL, settings.device)
    numbers = measured(partial(run, given, vectors), settings, warm_up=partial(run, *few), host=True)
    return {**numbers, "queries": given.queries}


@lru_cache(maxsize=1)
def _task(size: str, device: torch.device) -> tuple[Task, Tensor]:
    return _task_on(size, device)


def _task_on(size: str, device: torch.device) -> tuple[Task, Tensor]:
    given = task(size)
    return given, torch.from_numpy(given.vectors).to(device)


def _ours(given: Task, vectors: Tensor) -> object:
    cuts = [k for k in CUTS if k < len(vectors)]
    if given.queries == len(vectors):
        return evaluate(vectors, Table(pd.DataFrame({"label": given.labels})), recall_at=cuts)
    exclude_self, some = np.arange(given.queries), slice(0, given.queries)
    labels = given.labels
    return evaluate_arrays(vectors[some], labels[some], vectors, labels, exclude_self=exclude_self, recall_at=cuts)


def _ours_without_kernels(given: Task, vectors: Tensor) -> object:
    with with_kernels(False):
        return _ours(given, vectors)


def _floor(given: Task, vectors: Tensor) -> None:
    rows = max(1, FLOOR_SCORES // len(vectors))
    for start in range(0, given.queries, rows):
        (vectors[start : min(start + rows, given.queries)] @ vectors.T).topk(10)


def _peer(given: Task, vectors: Tensor) -> object:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    search: Any = CustomKNN(CosineSimilarity(), batch_size=4096)
    calculator = AccuracyCalculator(include=names, k=given.max_class_size, device=vectors.device, knn_func=search)
    labels, some = torch.from_numpy(given.labels).to(vectors.device), slice(0, given.queries)
    return calculator.get_accuracy(vectors[some], labels[some], vectors, labels, ref_includes_query=True)
