"""The size of batches where a recipe leaves it to the data."""

from __future__ import annotations

import math
from typing import NamedTuple

from vicinal.data import Table
from vicinal.training.recipes.base_settings import BaseSettings
from vicinal.training.recipes.settings import TrainingSettings
from vicinal.utils.arrays import Booleans

BATCH_SIZE, SAMPLES_PER_CLASS = 128, 4
MAX_DROPPED = 0.1  # fraction of the classes that a larger number of samples per class may leave out


class BatchSize(NamedTuple):
    """The number of images in a batch, over all processes, and of each class; 0 for any."""

    batch_size: int
    samples_per_class: int


def fit_batches(settings: BaseSettings, table: Table) -> BatchSize:
    """The batch size and the samples per class of a run: as given, or else as near 128 and 4 as the data allow.

    The number of samples per class is the largest up to 4 for which at most a tenth of the classes with two images have
    too few. The batch is the largest up to 128 images that has equally many classes of every process and of every
    coarse class.

    Args:
        settings: `batch_size` and `samples_per_class` may be None.
        table: the training split, with labels.

    Returns:
        The sizes. A value that was given stays as it is, even if it does not fit; where there is too little data, the
        smallest possible batch does not fit either.

    Example:
        >>> import pandas as pd
        >>> fit_batches(TrainingSettings(), Table(pd.DataFrame({"label": 3 * ["cat", "dog"]})))
        BatchSize(batch_size=6, samples_per_class=3)
    """
    samples, size = settings.samples_per_class, settings.batch_size
    if samples is None:
        samples = _fit_samples(settings, table)
    if size is None:
        size = _fit_size(settings, table, samples)
    return BatchSize(size, samples)


def _fit_samples(settings: BaseSettings, table: Table) -> int:
    size, counts = settings.batch_size, table.class_counts
    divisors = [each for each in range(SAMPLES_PER_CLASS, 1, -1) if size is None or (size % each == 0 and size > each)]
    if settings.small_classes == "drop":
        enough = max(2, (1 - MAX_DROPPED) * (counts >= 2).sum())
        divisors = [each for each in divisors if (counts >= each).sum() >= enough] or divisors[-1:]
    return divisors[0] if divisors else SAMPLES_PER_CLASS  # which the settings refuse for such a size


def _fit_size(settings: BaseSettings, table: Table, samples: int) -> int:
    if samples == 0:
        return _largest_multiple(settings.num_processes, min(BATCH_SIZE, len(table)))
    is_used = (table.class_counts >= samples) | (settings.small_classes == "replace")
    groups, column = 1, None
    if isinstance(settings, TrainingSettings) and settings.coarse_classes_per_batch > 0:
        groups, column = settings.coarse_classes_per_batch, settings.coarse_column
    classes = min(BATCH_SIZE // samples, _max_classes(table, is_used, groups, column))
    return samples * _largest_multiple(math.lcm(settings.num_processes, groups), classes)


def _largest_multiple(divisor: int, limit: int) -> int:
    """The largest multiple of a number up to a limit, or the smallest that is 2 or more."""
    return max(limit // divisor, -(-2 // divisor)) * divisor


def _max_classes(table: Table, is_used: Booleans, groups: int, column: str | None) -> int:
    """The largest number of classes in a batch with so many coarse classes, of the column of the table.

    So many coarse classes must have enough classes each; smaller ones are merged by the sampler.
    """
    if column is None or not table.has(column):
        return int(is_used.sum())
    sizes = table.frame[is_used[table.labels]].groupby(column)["label"].nunique().sort_values(ascending=False)
    return groups * int(sizes.iloc[groups - 1]) if len(sizes) >= groups else int(is_used.sum())
