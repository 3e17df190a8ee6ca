"""What all kinds of noise need: the rows they alter, their random generators, and the columns that record them."""

from __future__ import annotations

import numpy as np

from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError


def training_rows(table: Table) -> Integers:
    """The rows of the split `train`, or all rows of a table without splits.

    Raises:
        InputError: There are none.
    """
    is_training = (table.frame["split"] == "train").to_numpy() if table.has("split") else np.ones(len(table), bool)
    if not is_training.any():
        raise InputError(f"the table has no training images to alter; its splits: {', '.join(table.splits) or 'none'}")
    return np.flatnonzero(is_training)


def noise_generator(seed: int, kind: str) -> np.random.Generator:
    """The random generator of one kind of noise; different kinds choose their rows independently."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    return np.random.default_rng([seed, *kind.encode()])


def choose_rows(num_rows: int, fraction: float, rng: np.random.Generator) -> Integers:
    """Choose a fraction of the rows 0, ..., num_rows - 1. The rows of a smaller fraction come first in a larger one."""
    check_noise_fraction(fraction)
    return rng.permutation(num_rows)[: round(fraction * num_rows)]


def check_noise_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise InputError(f"the fraction of noise is {fraction}; it must be from 0 to 1")


def mark_rows(table: Table, column: str, rows: Integers) -> Table:
    """Set a boolean column to true in some rows, and to false elsewhere if the table does not have it yet."""
    marks = table.frame[column].to_numpy(bool, copy=True) if table.has(column) else np.zeros(len(table), bool)
    marks[rows] = True
    return Table._from_valid(table.frame.assign(**{column: marks}))


def relabel(table: Table, rows: Integers, altered: Integers, new_labels: Integers) -> Table:
    """Replace the labels of some training rows, with the coarse labels that belong to them.

    The column `label_clean` keeps the labels before the first noise of any kind; `noisy_label` is true in altered rows.

    Args:
        table: The images, with labels.
        rows: The training rows, `[n]`.
        altered: Which of these get a new label, `[a]`: positions from 0 to n - 1.
        new_labels: The new labels, `[a]`, as codes of training classes. The coarse labels are those of the first
            training image of the class.
    """
    first_of_class = rows[np.unique(table.take(rows).labels, return_index=True)[1]]
    source = np.arange(len(table))
    source[rows[altered]] = first_of_class[new_labels]
    frame = table.frame if table.has("label_clean") else table.frame.assign(label_clean=table.frame["label"])
    columns = ["label", *filter(is_coarse_column, frame.columns)]
    frame = frame.assign(**{column: frame[column].iloc[source].array for column in columns})
    return mark_rows(Table._from_valid(frame), "noisy_label", rows[altered])
