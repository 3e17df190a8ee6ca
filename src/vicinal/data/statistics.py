"""Statistics of a table: counts of images and classes, and the fingerprint of its split."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS, is_coarse_column
from vicinal.utils.console import aligned

if TYPE_CHECKING:
    from vicinal.data.table import Table


@dataclass(frozen=True)
class Statistics:
    """Counts of a table or of one of its splits. `print` shows them as a table of text.

    Attributes:
        num_images: Number of rows.
        num_classes: Number of distinct labels; 0 without labels.
        min_per_class: Images of the smallest class.
        median_per_class: Median of the images per class.
        max_per_class: Images of the largest class.
        coarse: Number of distinct labels in each column of coarse labels.
        noise: `noisy_labels`: the fraction of rows whose `label` differs from their `label_clean`; `foreign_images`:
            the fraction of rows whose `noisy_image` is true. Each exists if the table has the columns.
        splits: The statistics of each split of the table.

    Example:
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"], "split": ["train", "train", "test"]}))
        >>> print(table.statistics())
               images  classes  per class: min  median  max
        train       2        1               2       2    2
        test        1        1               1       1    1
        all         3        2               1     1.5    2
    """

    num_images: int
    num_classes: int = 0
    min_per_class: int = 0
    median_per_class: float = 0.0
    max_per_class: int = 0
    coarse: dict[str, int] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    splits: dict[str, Statistics] = field(default_factory=dict)

    def __str__(self) -> str:
        header = ["", "images", "classes", "per class: min", "median", "max", *self.coarse]
        header += [name.replace("_", " ") for name in self.noise]
        return aligned([header, *(part._cells(split) for split, part in self.splits.items()), self._cells("all")])

    def _cells(self, name: str) -> list[str]:
        per_class = (f"{self.min_per_class:,}", f"{self.median_per_class:g}", f"{self.max_per_class:,}")
        sizes = (f"{self.num_classes:,}", *per_class) if self.num_classes else "----"
        coarse = (f"{number:,}" for number in self.coarse.values())
        noise = (f"{fraction:.1%}" for fraction in self.noise.values())
        return [name, f"{self.num_images:,}", *sizes, *coarse, *noise]


def compute_statistics(frame: pd.DataFrame) -> Statistics:
    """Count the rows of a table's frame, as a whole and for each split."""
    parts = {split: frame[frame["split"] == split] for split in SPLITS} if "split" in frame else {}
    return _count(frame, {split: _count(part, {}) for split, part in parts.items() if len(part)})


def _count(frame: pd.DataFrame, splits: dict[str, Statistics]) -> Statistics:
    coarse = {column: frame[column].nunique() for column in frame.columns if is_coarse_column(column)}
    noise = _noise(frame) if len(frame) else {}
    if "label" not in frame or not len(frame):
        return Statistics(len(frame), coarse=coarse, noise=noise, splits=splits)
    sizes = frame["label"].value_counts().to_numpy()
    return Statistics(
        num_images=len(frame),
        num_classes=len(sizes),
        min_per_class=int(sizes.min()),
        median_per_class=float(np.median(sizes)),
        max_per_class=int(sizes.max()),
        coarse=coarse,
        noise=noise,
        splits=splits,
    )


def _noise(frame: pd.DataFrame) -> dict[str, float]:
    fractions = {}
    if {"label", "label_clean"} <= set(frame.columns):
        fractions["noisy_labels"] = float((frame["label"] != frame["label_clean"]).mean())
    if "noisy_image" in frame:
        fractions["foreign_images"] = float(frame["noisy_image"].mean())
    return fractions


def split_fingerprint(table: Table) -> str:
    """Identify the images, labels and splits of a table, wherever its folder is.

    The fingerprint does not depend on the order of the rows, nor on the folder that holds all images: paths count from
    there. It depends on the name of every image, its label, its split and whether it is a query or in the gallery.

    Returns:
        16 hexadecimal digits, of a SHA-256.

    Raises:
        InputError: The table has no paths.

    Example:
        >>> from vicinal.data import Table
        >>> frame = pd.DataFrame({"path": ["a/1.png", "b/2.png"], "label": [1, 2], "split": ["train", "test"]})
        >>> split_fingerprint(Table(frame, "/data")) == split_fingerprint(Table(frame[::-1], "/home/me"))
        True
        >>> split_fingerprint(Table(frame, "/data")) == split_fingerprint(Table(frame.assign(label=[2, 1]), "/data"))
        False
    """
    names = _relative(table.paths)
    columns = [table.frame[name].tolist() for name in ("label", "split", "is_query", "is_gallery") if table.has(name)]
    rows = sorted([name, *map(str, values)] for name, *values in zip(names, *columns, strict=True))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def _relative(paths: list[str]) -> list[str]:
    """The paths from the folder that holds all of them, with slashes."""
    folders = {os.path.dirname(path) for path in paths}
    start = len(os.path.commonpath(folders)) if folders else 0
    return [path[start:].replace(os.sep, "/").lstrip("/") for path in paths]
