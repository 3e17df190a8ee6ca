"""Noise and want of data, put into a table on purpose: how well does a method bear wrong labels and few classes?

Each kind is a function from table to table. In a table with splits it alters the split `train` alone, else all rows.
What it does is a function of the rows and a seed; a larger share alters what a smaller one does, in the same way, and
more. A column says which rows are altered, and another keeps what their labels were.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.console import log
from vicinal.data.label_noise import Confusions, confused_labels, random_labels
from vicinal.data.noise_rows import chosen, generator, marked, training_rows
from vicinal.data.open_set_noise import CLUSTER_SIZE, open_set_labels
from vicinal.data.table import Table
from vicinal.errors import InputError


def add_noise(
    table: Table,
    classes: float | None = None,
    label_share: float = 0.0,
    foreign: str | Path | None = None,
    foreign_share: float = 0.0,
    foreign_root: str | Path | None = None,
    confusions: Confusions | None = None,
    confused_share: float = 0.0,
    open_set_share: float = 0.0,
    cluster_size: float = CLUSTER_SIZE,
    seed: int = 0,
) -> Table:
    """All that is asked for, in this order.

    1. :func:`first_classes`
    2. :func:`confused_labels`, before the classes that it names may be gone
    3. :func:`open_set_labels`
    4. :func:`random_labels`, which so brings back no class that was dissolved
    5. :func:`foreign_images`

    Each takes the labels as the one before left them. Their shares add up to a little more than the share of wrong
    labels: several kinds may choose the same image, and the last of them may draw its true label.
    `Table.statistics()` counts those that are wrong in the end.

    Args:
        table: the images.
        classes: how many of the training classes stay, as a share or a number; None: all.
        label_share: share of the training images that get another class's label, drawn at random.
        foreign: where the foreign images are, anything that :meth:`Table.load` reads.
        foreign_share: share of the training images that give way to them.
        foreign_root: folder that the paths of such a table start from, or that holds such a benchmark's files.
        confusions: what is mistaken for what, as a mapping or a CSV file.
        confused_share: share of the training images of such classes that get the label of the other class.
        open_set_share: share of the training images whose classes are dissolved into clusters.
        cluster_size: mean images of such a cluster.
        seed: of the choice of rows, labels and foreign images; not negative.

    Raises:
        InputError: a share without what it takes or the other way round, or what one of the kinds refuses.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png", "d.png"], "label": ["x", "x", "y", "z"]}))
        >>> add_noise(table, classes=2, label_share=1.0).frame["label"].tolist()
        ['y', 'y', 'x']
    """
    if (foreign is None) != (foreign_share == 0):
        raise InputError("foreign images take both a source (foreign) and a share above 0 (foreign share)")
    if foreign is None and foreign_root is not None:
        raise InputError("the folder of foreign images (foreign root) is given without their source (foreign)")
    if (confusions is None) != (confused_share == 0):
        raise InputError("confused labels take both a list (confusions) and a share above 0 (confused labels)")
    if open_set_share == 0 and cluster_size != CLUSTER_SIZE:
        raise InputError("the size of open-set clusters is given without a share of open-set labels above 0")
    if classes is not None:
        table = first_classes(table, classes)
    if confusions is not None:
        table = confused_labels(table, confusions, confused_share, seed)
    if open_set_share != 0:
        table = open_set_labels(table, open_set_share, cluster_size, seed=seed)
    if label_share != 0:
        table = random_labels(table, label_share, seed)
    if foreign is not None:
        table = foreign_images(table, Table.load(foreign, root=foreign_root, label_column=None), foreign_share, seed)
    return table


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
    rows, rng = training_rows(table), generator(seed, "images")
    altered = chosen(len(rows), share, rng)
    paths, pool = np.array(table.paths, dtype=object), np.unique(np.array(foreign.paths, dtype=object))
    own = np.intersect1d(paths, pool)
    if len(own):
        raise InputError(f"{own[0]} is no foreign image: it is one of the table's own; take others")
    if len(pool) < len(altered):
        raise InputError(
            f"{share} of {len(rows)} training images are {len(altered)}, but there are only {len(pool)} foreign images"
        )
    paths[rows[altered]] = rng.permutation(pool)[: len(altered)]
    log(f"put foreign images in the place of {len(altered):,} of {len(rows):,} training images")
    frame = table.frame.assign(path=pd.Series(paths, dtype=table.frame["path"].dtype))
    return marked(frame, "noisy_image", rows[altered])


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
    rows = training_rows(table)
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
