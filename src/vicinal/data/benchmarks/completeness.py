"""Whether a copy of a benchmark is complete: the published numbers of images and classes, and no absent image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vicinal.data.table import Table
from vicinal.utils.errors import InputError

Count = tuple[int | None, int | None]
"""Numbers of images and classes; None for a number that is not published."""

_VEHICLES: list[Count] = [(110_178, 13_134), (113_346, 13_164)]  # the paper, and the list that is handed out

COUNTS: dict[str, dict[str, Count | list[Count]]] = {
    "cub": {"train": (5_864, 100), "test": (5_924, 100)},
    "cars": {"train": (8_054, 98), "test": (8_131, 98)},
    "sop": {"train": (59_551, 11_318), "test": (60_502, 11_316)},
    "in_shop": {"train": (25_882, 3_997), "test": (26_830, 3_985)},
    "in_shop_highres": {"train": (25_882, 3_997), "test": (26_830, 3_985)},
    "inaturalist_2018": {"train": (325_846, 5_690), "test": (136_093, 2_452)},
    "mini_inaturalist_2021": {"train": (250_150, 5_003), "test": (249_850, 4_997)},
    "vehicle_id": {"train": _VEHICLES, "test": (None, 2_400)},
    "vehicle_id_medium": {"train": _VEHICLES, "test": (None, 1_600)},
    "vehicle_id_small": {"train": _VEHICLES, "test": (None, 800)},
    "mnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "fashion_mnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "kmnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "grocery": {"train": (2_179, 31), "val": (642, 10), "test": (1_234, 20)},
    "sfm_120k": {"train": (91_642, None), "val": (6_403, None)},
    "landmarks_v2": {"train": (1_580_470, 81_313)},
    "landmarks_v2_full": {"train": (4_132_914, 203_094)},
    "landmarks_v2_retrieval": {"test": (761_757 + 1_129, None)},
    "met": {"train": (397_121, 224_408)},
    "cars98n": {"train": (9_558, 98)},
    "food_101n": {"test": (51_000, 51)},
}
"""The published numbers of images and classes in each split of a benchmark; a list if there are several versions."""


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
    check_counts(name, table, folder)
    check_images(table.paths, folder)
    return table


def check_counts(name: str, table: Table, folder: Path) -> None:
    """Check the numbers of images and classes as :func:`check_complete` does, but not whether the images exist."""
    for split, published in COUNTS.get(name, {}).items():
        versions = published if isinstance(published, list) else [published]
        part = table.subset(split) if split in table.splits else None
        found = (0, 0) if part is None else (len(part), len(part.classes))
        if not any(images in (found[0], None) and classes in (found[1], None) for images, classes in versions):
            raise InputError(
                f"{folder}: the split {split} of {name} has {found[0]:,} images of {found[1]:,} classes, but "
                f"{' or '.join(map(_describe, versions))} are published; the copy is partial or another version"
            )


def _describe(count: Count) -> str:
    images, classes = count
    if images is None:
        return f"{classes:,} classes"
    return f"{images:,} images" if classes is None else f"{images:,} of {classes:,}"


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
