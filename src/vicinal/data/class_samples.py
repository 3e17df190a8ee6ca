"""Samples of images in which classes are represented."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.utils.arrays import Integers

MIN_CLASSES = 40  # of a sample, where there are as many


def round_robin(rows: Integers, labels: Integers) -> Integers:
    """Reorder rows so that classes take turns: the first row of every class, then the second of every class, ..."""
    return rows[np.argsort(_turns(rows, labels), kind="stable")]


def sample_classes(rows: Integers, labels: Integers, max_rows: int, seed: int = 0) -> Integers:
    """Draw whole classes at random until there are `max_rows` rows; of very large classes, a part of each.

    The rows are ascending, and of at least 40 classes where there are as many.
    """
    if len(rows) <= max_rows:
        return np.sort(rows)
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(rows)
    classes = generator.permutation(np.unique(labels[rows]))
    rank = np.empty(int(labels.max()) + 1, dtype=np.int64)
    rank[classes] = np.arange(len(classes))
    per_class = -(-max_rows // min(len(classes), MIN_CLASSES))
    candidates = shuffled[_turns(shuffled, labels) < per_class]
    return np.sort(candidates[np.argsort(rank[labels[candidates]], kind="stable")][:max_rows])


def _turns(rows: Integers, labels: Integers) -> Integers:
    return pd.Series(labels[rows]).groupby(labels[rows]).cumcount().to_numpy(dtype=np.int64)
