"""Problems of image files: unreadable files, duplicates, and bounding boxes beyond the image."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.images.decoding import read_image
from vicinal.data.table import Table
from vicinal.utils.console import counted, listed, track
from vicinal.utils.errors import InputError
from vicinal.utils.files import file_digest
from vicinal.utils.threads import thread_pool

MISSING = "no such file"  # how errors about missing files end


@dataclass(frozen=True)
class ImageFileProblems:
    """Problems of image files. `print` shows the first twenty of each kind.

    `duplicates` are groups of files of the same content, of which `num_ambiguous` have different labels; `boxes` reach
    beyond their image; `others` are the numbers of files of a folder that are not read, by suffix.
    """

    unreadable: list[str]
    duplicates: list[list[str]]
    num_ambiguous: int = 0
    boxes: list[str] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        number, groups = len(self.unreadable), len(self.duplicates)
        lines = []
        if number:
            missing = sum(error.endswith(MISSING) for error in self.unreadable)
            found = f" ({missing:,} of them missing)" if missing else ""
            lines += [f"{counted(number, 'image')} cannot be read{found}:", *listed(self.unreadable)]
        if groups:
            ambiguous = f", {self.num_ambiguous:,} with different labels" if self.num_ambiguous else ""
            files = sum(map(len, self.duplicates))
            lines.append(f"{files:,} images have the same content as another ({counted(groups, 'group')}{ambiguous}):")
            lines += listed([", ".join(group) for group in self.duplicates])
        if self.boxes:
            boxes = counted(len(self.boxes), "bounding box", "bounding boxes")
            lines += [f"{boxes} beyond the image:", *listed(self.boxes)]
        if self.others:
            others = ", ".join(f"{number:,} {suffix or 'without suffix'}" for suffix, number in self.others.items())
            lines.append(f"{counted(sum(self.others.values()), 'other file')} left out: {others}")
        return "\n".join(lines)


def check_image_files(table: Table) -> ImageFileProblems:
    """Read all images of a table, and report unreadable and duplicate images, and boxes beyond the image."""
    paths = list(dict.fromkeys(table.paths))
    with thread_pool() as pool:
        found = list(track(pool.map(_size_or_error, paths), "reading images", len(paths), sys.stderr.isatty()))
    sizes = {path: size for path, size in zip(paths, found, strict=True) if not isinstance(size, str)}
    duplicates = same_content(list(sizes))
    labels = dict(zip(table.paths, table.frame["label"], strict=True)) if table.has("label") else {}
    num_ambiguous = sum(len({labels.get(path) for path in group}) > 1 for group in duplicates)
    errors = [error for error in found if isinstance(error, str)]
    return ImageFileProblems(errors, duplicates, num_ambiguous, _boxes_beyond(table, sizes))


def _size_or_error(path: str) -> tuple[int, int] | str:
    try:
        return read_image(path).size
    except InputError as error:
        return str(error)


def _boxes_beyond(table: Table, sizes: Mapping[str, tuple[int, int]]) -> list[str]:
    if not all(map(table.has, BOX_COLUMNS)):
        return []
    rows = zip(table.paths, table.frame[list(BOX_COLUMNS)].to_numpy().tolist(), strict=True)
    known = ((path, box, *sizes[path]) for path, box in rows if path in sizes)
    return [
        f"{path}: box {', '.join(f'{edge:g}' for edge in box)}, image {width} x {height}"
        for path, box, width, height in known
        if min(box) < 0 or box[2] > width or box[3] > height  # false for the NaN of rows without a box
    ]


def same_content(paths: Sequence[str]) -> list[list[str]]:
    """Groups of files of the same content. Only files of the same size are read."""
    by_size = _groups(paths, os.path.getsize)
    return sorted(same for group in by_size if len(group) > 1 for same in _groups(group, file_digest) if len(same) > 1)


def _groups(paths: Sequence[str], key: Callable[[str], object]) -> list[list[str]]:
    groups = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    return list(groups.values())
