"""Which rows noise alters, a function of the table, a share and a seed; and the columns that tell of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.errors import InputError

Rows = npt.NDArray[np.int64]


def training_rows(table: Table) -> Rows:
    """The rows of the split `train`; all in a table without splits.

    Raises:
        InputError: there are none.
    """
    is_training = (table.frame["split"] == "train").to_numpy() if table.has("split") else np.ones(len(table), bool)
    if not is_training.any():
        raise InputError(f"the table has no training images to alter; its splits: {', '.join(table.splits) or 'none'}")
    return np.flatnonzero(is_training)


def generator(seed: int, kind: str) -> np.random.Generator:
    """One for each kind of noise, so that two kinds choose their rows without regard to each other."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    return np.random.default_rng([seed, *kind.encode()])


def chosen(number: int, share: float, rng: np.random.Generator) -> Rows:
    """A share of 0, ..., number - 1; a larger share begins with those of a smaller one."""
    require_share(share)
    return rng.permutation(number)[: round(share * number)]


def require_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise InputError(f"the share of noise is {share}; it must be from 0 to 1")


def marked(frame: pd.DataFrame, column: str, rows: Rows) -> Table:
    """The table of a frame, with a column that is true for these rows and where it was so before."""
    marks = frame[column].to_numpy(bool, copy=True) if column in frame else np.zeros(len(frame), bool)
    marks[rows] = True
    return Table._of(frame.assign(**{column: marks}))


def relabelled(table: Table, rows: Rows, altered: Rows, wrong: Rows) -> Table:
    """The table, with other labels in some of its training rows, and with the columns that every label noise leaves.

    `label_clean` keeps what the labels of all rows were before the first noise of any kind; `noisy_label` is true in
    the rows that were altered.

    Args:
        table: the images, with labels.
        rows: the training rows, `[n]`.
        altered: which of these get another label, `[a]`, positions from 0 to n - 1.
        wrong: their new labels, `[a]`, codes of training classes. With the label come the coarse labels of the class
            (of its first training image).
    """
    first_of_class = rows[np.unique(table.take(rows).labels, return_index=True)[1]]
    source = np.arange(len(table))
    source[rows[altered]] = first_of_class[wrong]
    frame = table.frame if table.has("label_clean") else table.frame.assign(label_clean=table.frame["label"])
    columns = ["label", *filter(is_coarse_column, frame.columns)]
    frame = frame.assign(**{column: frame[column].iloc[source].array for column in columns})
    return marked(frame, "noisy_label", rows[altered])
