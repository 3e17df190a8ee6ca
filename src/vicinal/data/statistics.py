"""What is in a table, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS, is_coarse_column


@dataclass(frozen=True)
class Statistics:
    """Counts of a table or of one of its splits; printing it gives a block of text.

    Attributes:
        images: rows.
        classes: distinct labels, 0 without labels.
        smallest: images of the smallest class.
        median: median of images per class.
        largest: images of the largest class.
        coarse: column of coarse labels -> distinct labels in it.
        noise: `wrong_labels` -> share of the rows whose `label` is not their `label_clean`, from 0 to 1;
            `foreign_images` -> share of those whose `noisy_image` is true; only where the table has these columns.
        splits: split -> its own statistics, for the splits that are there.

    Example:
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"], "split": ["train", "train", "test"]}))
        >>> print(table.statistics())
               images  classes  per class: min  median  max
        train       2        1               2       2    2
        test        1        1               1       1    1
        all         3        2               1     1.5    2
    """

    images: int
    classes: int = 0
    smallest: int = 0
    median: float = 0.0
    largest: int = 0
    coarse: dict[str, int] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    splits: dict[str, Statistics] = field(default_factory=dict)

    def __str__(self) -> str:
        header = ["", "images", "classes", "per class: min", "median", "max", *self.coarse]
        header += [name.replace("_", " ") for name in self.noise]
        rows = [header, *(part._cells(split) for split, part in self.splits.items()), self._cells("all")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            row[0].ljust(widths[0])
            + "".join(cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        )
        return "\n".join(lines)

    def _cells(self, name: str) -> list[str]:
        sizes = (f"{self.classes:,}", f"{self.smallest:,}", f"{self.median:g}", f"{self.largest:,}")
        coarse = (f"{number:,}" for number in self.coarse.values())
        noise = (f"{share:.1%}" for share in self.noise.values())
        return [name, f"{self.images:,}", *(sizes if self.classes else "----"), *coarse, *noise]


def statistics_of(frame: pd.DataFrame) -> Statistics:
    """Count the frame of a table, whole and by split."""
    splits = {split: frame[frame["split"] == split] for split in SPLITS} if "split" in frame else {}
    return _counted(frame, {split: _counted(part, {}) for split, part in splits.items() if len(part)})


def _counted(frame: pd.DataFrame, splits: dict[str, Statistics]) -> Statistics:
    coarse = {column: frame[column].nunique() for column in frame.columns if is_coarse_column(column)}
    noise = _noise(frame) if len(frame) else {}
    if "label" not in frame or not len(frame):
        return Statistics(len(frame), coarse=coarse, noise=noise, splits=splits)
    sizes = frame["label"].value_counts().to_numpy()
    return Statistics(
        len(frame), len(sizes), int(sizes.min()), float(np.median(sizes)), int(sizes.max()), coarse, noise, splits
    )


def _noise(frame: pd.DataFrame) -> dict[str, float]:
    shares = {}
    if {"label", "label_clean"} <= set(frame.columns):
        shares["wrong_labels"] = float((frame["label"] != frame["label_clean"]).mean())
    if "noisy_image" in frame:
        shares["foreign_images"] = float(frame["noisy_image"].mean())
    return shares
