"""Whether a copy of a benchmark is complete: the published numbers of images and classes, and no absent image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vicinal.data.table import Table
from vicinal.utils.errors import InputError

COUNTS: dict[str, dict[str, tuple[int, int]]] = {
    "cub": {"train": (5_864, 100), "test": (5_924, 100)},
    "cars": {"train": (8_054, 98), "test": (8_131, 98)},
    "sop": {"train": (59_551, 11_318), "test": (60_502, 11_316)},
    "in_shop": {"train": (25_882, 3_997), "test": (26_830, 3_985)},
}
"""The published numbers of images and classes in each split of a benchmark."""


def check_complete(name: str, table: Table, folder: Path) -> Table:
    """Return the table of a benchmark if its copy is complete.

    Args:
        name: The benchmark, a key of `COUNTS`; without an entry there, only the images are checked.
        table: Its table.
        folder: The folder of the copy, for messages.

    Raises:
        InputError: A split has other numbers of images or classes than published, or images are absent; the message
            says how many, and names the first three.
    """
    for split, (images, classes) in COUNTS.get(name, {}).items():
        part = table.subset(split) if split in table.splits else None
        found = (0, 0) if part is None else (len(part), len(part.classes))
        if found != (images, classes):
            raise InputError(
                f"{folder}: the split {split} of {name} has {found[0]:,} images of {found[1]:,} classes, but "
                f"{images:,} of {classes:,} are published; the copy is partial or another version"
            )
    check_images(table.paths, folder)
    return table


def check_images(paths: Sequence[str], folder: Path) -> None:
    """Raise InputError, with the number of absent images and the first three, unless all exist."""

    @cache
    def names(directory: str) -> frozenset[str]:  # one listing per directory is far faster than one lookup per image
        try:
            return frozenset(os.listdir(directory))
        except OSError:
            return frozenset()

    absent = [path for path in paths if os.path.basename(path) not in names(os.path.dirname(path))]
    if absent:
        first = ", ".join(os.path.relpath(path, folder) for path in absent[:3])
        more = ", ..." if len(absent) > 3 else ""
        raise InputError(
            f"{folder}: {len(absent):,} of {len(paths):,} images that its lists name are absent: {first}{more}"
        )
