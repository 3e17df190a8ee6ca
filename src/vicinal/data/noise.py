"""The noise that the settings of a dataset ask for, foreign images, and fewer classes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data import label_noise
from vicinal.data.columns import BOX_COLUMNS, PUBLISHED_BOX_COLUMNS
from vicinal.data.loading import load_table
from vicinal.data.settings import NoiseSettings
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError


def add_noise(table: Table, noise: NoiseSettings, seed: int = 0) -> Table:
    """Add all kinds of noise that the settings ask for, in this order.

    1. :func:`first_classes`
    2. :func:`confused_labels`, before a class that it names may be dissolved
    3. :func:`open_set_labels`
    4. :func:`random_labels`, which therefore never uses the label of a dissolved class
    5. :func:`foreign_images`

    Each takes the labels as the previous one left them. The sum of the fractions is slightly more than the fraction of
    noisy labels, since several kinds may choose the same image and the last one may restore its true label;
    `Table.statistics()` counts the labels that are noisy in the end.

    Args:
        table: The images.
        noise: The kinds of noise and their fractions.
        seed: The seed of the random choices of rows, labels and foreign images; not negative.

    Raises:
        InputError: One of the kinds cannot be added.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png", "d.png"], "label": ["x", "x", "y", "z"]}))
        >>> add_noise(table, NoiseSettings(classes=2, random_labels=1.0)).frame["label"].tolist()
        ['y', 'y', 'x']
    """
    if noise.classes is not None:
        table = first_classes(table, noise.classes)
    if noise.confusions is not None:
        table = label_noise.confused_labels(table, noise.confusions, noise.confused_labels, seed)
    if noise.open_set_labels > 0:
        table = label_noise.open_set_labels(table, noise.open_set_labels, noise.open_set_cluster_size, seed=seed)
    if noise.random_labels > 0:
        table = label_noise.random_labels(table, noise.random_labels, seed)
    if noise.foreign is not None:
        foreign = load_foreign(noise)
        table = foreign_images(table, foreign, noise.foreign_fraction, seed)
    return table


def load_foreign(noise: NoiseSettings) -> Table:
    """The foreign images that the settings name."""
    assert noise.foreign is not None
    return load_table(noise.foreign, root=noise.foreign_root, label_column=None)


def check_foreign(table: Table, foreign: Table) -> None:
    """Raise InputError if foreign images are in the table itself."""
    own = np.intersect1d(table.paths, foreign.paths)
    if len(own):
        raise InputError(f"{own[0]} is not a foreign image: it is one of the table's own; use others")


def foreign_images(table: Table, foreign: Table, fraction: float, seed: int = 0) -> Table:
    """Replace a fraction of the training images by images of another table. Labels and all other columns stay.

    Reference: image noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization"
    (Liao, Tsiligkaridis, Kulis, ICML 2023), Section 4.4, with 5, 10 and 20 %.

    Args:
        table: The images.
        foreign: The images to take from; their labels and splits do not matter. No image is taken twice.
        fraction: The fraction of the training images, from 0 to 1; rounded to whole images.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with a column `noisy_image` that is true in the altered rows.

    Raises:
        InputError: There are too few foreign images, foreign images are in the table itself, a table has no paths,
            there is no training image, or the fraction or seed is out of range.

    Example:
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["a", "b"]}))
        >>> noisy = foreign_images(table, Table(pd.DataFrame({"path": ["x.png", "y.png"]})), 0.5)
        >>> noisy.classes, sorted(noisy.frame["noisy_image"])
        (['a', 'b'], [False, True])
    """
    rows, rng = label_noise.training_rows(table), label_noise.noise_generator(seed, "images")
    altered = label_noise.choose_rows(len(rows), fraction, rng)
    paths, candidates = np.array(table.paths, dtype=object), np.unique(np.array(foreign.paths, dtype=object))
    check_foreign(table, foreign)
    if len(candidates) < len(altered):
        raise InputError(
            f"{fraction} of {len(rows)} training images are {len(altered)}, "
            f"but there are only {len(candidates)} foreign images"
        )
    paths[rows[altered]] = rng.permutation(candidates)[: len(altered)]
    log(f"replaced {len(altered):,} of {len(rows):,} training images by foreign images")
    frame = table.frame.assign(path=pd.Series(paths, dtype=table.frame["path"].dtype))
    for columns in (BOX_COLUMNS, PUBLISHED_BOX_COLUMNS):
        if set(columns) <= set(frame):
            frame.loc[rows[altered], list(columns)] = np.nan  # they were boxes in the replaced images
    return label_noise.mark_rows(Table._from_valid(frame), "noisy_image", rows[altered])


def first_classes(table: Table, classes: float) -> Table:
    """Keep only the first training classes, in sorted order of their names, and drop the rows of the others.

    Reference: limited data of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization"
    (Liao, Tsiligkaridis, Kulis, ICML 2023), Section 4.4, with the first 50, 60, 70, 80 and 90 of CUB's 100 training
    classes.

    Args:
        table: The images, with labels.
        classes: Up to 1, the fraction of the training classes to keep, rounded to whole classes; above 1, their number.

    Raises:
        InputError: The table has no labels or no training image, no class would be left, or there are fewer classes.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d"], "split": ["train", "train", "train", "test"]}))
        >>> first_classes(table, 2).frame["label"].tolist()
        ['a', 'b', 'd']
    """
    rows = label_noise.training_rows(table)
    training = table.take(rows)
    num_classes = _number_of_classes(classes, len(training.classes))
    dropped = rows[training.labels >= num_classes]
    kept = f"kept the first {num_classes:,} of {len(training.classes):,} training classes"
    log(f"{kept}; left out {len(dropped):,} images")
    return table.take(np.delete(np.arange(len(table)), dropped))


def _number_of_classes(classes: float, num_available: int) -> int:
    number = round(classes * num_available) if classes <= 1 else classes
    if not 1 <= number <= num_available or number != int(number):
        raise InputError(
            f"classes is {classes:g}, of {num_available} training classes; give a fraction up to 1 that leaves some, "
            "or a number of classes"
        )
    return int(number)
