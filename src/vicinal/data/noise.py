"""Noise and want of data, put into a table on purpose: how well does a method bear wrong labels and few classes?

Each kind is a function from table to table. In a table with splits it alters the split `train` alone, else all rows.
What it does is a function of the rows and a seed; a larger share alters what a smaller one does, in the same way, and
more. A column says which rows are altered.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.console import log
from vicinal.data.columns import TRUTHS, is_coarse_column
from vicinal.data.table import Table
from vicinal.errors import InputError

Rows = npt.NDArray[np.int64]


def add_noise(
    table: Table,
    classes: float | None = None,
    label_share: float = 0.0,
    foreign: str | Path | None = None,
    foreign_share: float = 0.0,
    foreign_root: str | Path | None = None,
    seed: int = 0,
) -> Table:
    """All that is asked for, in this order: :func:`first_classes`, :func:`random_labels`, :func:`foreign_images`.

    Args:
        table: the images.
        classes: how many of the training classes stay, as a share or a number; None: all.
        label_share: share of the training images that get another class's label.
        foreign: where the foreign images are, anything that :meth:`Table.load` reads.
        foreign_share: share of the training images that give way to them.
        foreign_root: folder that the paths of such a table start from, or that holds such a benchmark's files.
        seed: of the choice of rows, labels and foreign images; not negative.

    Raises:
        InputError: `foreign` without `foreign_share` or the other way round, or what the three refuse.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png", "d.png"], "label": ["x", "x", "y", "z"]}))
        >>> add_noise(table, classes=2, label_share=1.0).frame["label"].tolist()
        ['y', 'y', 'x']
    """
    if (foreign is None) != (foreign_share == 0):
        raise InputError("foreign images take both a source (foreign) and a share above 0 (foreign share)")
    if foreign is None and foreign_root is not None:
        raise InputError("the folder of foreign images (foreign root) is given without their source (foreign)")
    if classes is not None:
        table = first_classes(table, classes)
    if label_share != 0:
        table = random_labels(table, label_share, seed)
    if foreign is not None:
        table = foreign_images(table, Table.load(foreign, root=foreign_root, label_column=None), foreign_share, seed)
    return table


def random_labels(table: Table, share: float, seed: int = 0) -> Table:
    """Give a share of the training images the label of another class, drawn at random among the training classes.

    Label noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao,
    Tsiligkaridis, Kulis, ICML 2023), 4.4, there 5, 10 and 20 %. The paper does not say whether a label may be drawn
    that is the image's own; here it may not, so that the share of wrong labels is the share asked for. With the
    label come the coarse labels of its class (of the class's first image).

    Args:
        table: the images, with labels.
        share: from 0 to 1, of the training images; rounded to whole images.
        seed: not negative.

    Returns:
        The table, with a column `noisy_label` that is true in the rows that were altered.

    Raises:
        InputError: no labels, no training image, fewer than two training classes, or an impossible share or seed.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["a", "a", "b", "b"], "coarse": ["A", "A", "B", "B"]}))
        >>> sorted(random_labels(table, 0.25, seed=1).frame["noisy_label"])
        [False, False, False, True]
    """
    rows, rng = _training_rows(table), _generator(seed, "labels")
    training = table.take(rows)
    if len(training.classes) < 2:
        raise InputError(f"random labels take two training classes or more; there is only {training.classes[0]!r}")
    chosen = _chosen(len(rows), share, rng)
    others = rng.integers(1, len(training.classes), len(chosen))  # how many classes further
    wrong = (training.labels[chosen] + others) % len(training.classes)
    first_of_class = rows[np.unique(training.labels, return_index=True)[1]]
    source = np.arange(len(table))
    source[rows[chosen]] = first_of_class[wrong]
    columns = ["label", *filter(is_coarse_column, table.frame.columns)]
    frame = table.frame.assign(**{column: table.frame[column].iloc[source].array for column in columns})
    log(f"gave {len(chosen):,} of {len(rows):,} training images the label of another class")
    return _marked(frame, "noisy_label", rows[chosen])


def foreign_images(table: Table, foreign: Table, share: float, seed: int = 0) -> Table:
    """Put images of another table in the place of a share of the training images; labels and all else stay.

    Image noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao,
    Tsiligkaridis, Kulis, ICML 2023), 4.4, there 5, 10 and 20 %.

    Args:
        table: the images.
        foreign: the images to take from, whatever their labels and splits; none is taken twice.
        share: from 0 to 1, of the training images; rounded to whole images.
        seed: not negative.

    Returns:
        The table, with a column `noisy_image` that is true in the rows that were altered.

    Raises:
        InputError: too few foreign images, foreign images that are the table's own, no paths, no training image, or an
            impossible share or seed.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["a", "b"]}))
        >>> noisy = foreign_images(table, Table(pd.DataFrame({"path": ["x.png", "y.png"]})), 0.5)
        >>> noisy.classes, sorted(noisy.frame["noisy_image"])
        (['a', 'b'], [False, True])
    """
    rows, rng = _training_rows(table), _generator(seed, "images")
    chosen = _chosen(len(rows), share, rng)
    paths, pool = np.array(table.paths, dtype=object), np.unique(np.array(foreign.paths, dtype=object))
    own = np.intersect1d(paths, pool)
    if len(own):
        raise InputError(f"{own[0]} is no foreign image: it is one of the table's own; take others")
    if len(pool) < len(chosen):
        raise InputError(
            f"{share} of {len(rows)} training images are {len(chosen)}, but there are only {len(pool)} foreign images"
        )
    paths[rows[chosen]] = rng.permutation(pool)[: len(chosen)]
    log(f"put foreign images in the place of {len(chosen):,} of {len(rows):,} training images")
    frame = table.frame.assign(path=pd.Series(paths, dtype=table.frame["path"].dtype))
    return _marked(frame, "noisy_image", rows[chosen])


def first_classes(table: Table, first: float) -> Table:
    """Keep only the first training classes, in sorted order of their names; the rows of the others are left out.

    Limited data of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao,
    Tsiligkaridis, Kulis, ICML 2023), 4.4: the first 50, 60, 70, 80 and 90 of CUB's 100 training classes.

    Args:
        table: the images, with labels.
        first: up to 1, the share of the training classes that stays, rounded to whole classes; above 1, their number.

    Raises:
        InputError: no labels, no training image, a share that leaves no class, or no such number of classes.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d"], "split": ["train", "train", "train", "test"]}))
        >>> first_classes(table, 2).frame["label"].tolist()
        ['a', 'b', 'd']
    """
    rows = _training_rows(table)
    training = table.take(rows)
    number = _whole_classes(first, len(training.classes))
    left_out = rows[training.labels >= number]
    log(f"kept the first {number:,} of {len(training.classes):,} training classes; left out {len(left_out):,} images")
    return table.take(np.delete(np.arange(len(table)), left_out))


def _whole_classes(first: float, there_are: int) -> int:
    number = round(first * there_are) if first <= 1 else first
    if not 1 <= number <= there_are or number != int(number):
        raise InputError(
            f"first classes are {first:g} of {there_are}; give a share up to 1 that leaves some, or a number of classes"
        )
    return int(number)


def _training_rows(table: Table) -> Rows:
    is_training = (table.frame["split"] == "train").to_numpy() if table.has("split") else np.ones(len(table), bool)
    if not is_training.any():
        raise InputError(f"the table has no training images to alter; its splits: {', '.join(table.splits) or 'none'}")
    return np.flatnonzero(is_training)


def _generator(seed: int, kind: str) -> np.random.Generator:
    """One for each kind of noise, so that two kinds choose their rows without regard to each other."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    return np.random.default_rng([seed, *kind.encode()])


def _chosen(number: int, share: float, rng: np.random.Generator) -> Rows:
    """A share of 0, ..., number - 1; a larger share begins with those of a smaller one."""
    if not 0 <= share <= 1:
        raise InputError(f"the share of noise is {share}; it must be from 0 to 1")
    return rng.permutation(number)[: round(share * number)]


def _marked(frame: pd.DataFrame, column: str, rows: Rows) -> Table:
    """The table of a frame, with a column that is true for these rows and where it was so before."""
    marks = np.zeros(len(frame), bool)
    if column in frame:  # a CSV file gives it back as text
        marks |= frame[column].map(lambda value: TRUTHS.get(str(value).lower(), False)).to_numpy(bool)
    marks[rows] = True
    return Table._of(frame.assign(**{column: marks}))
