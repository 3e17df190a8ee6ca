"""What is wrong with the image files of a table: those that cannot be read, and those that are there twice."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vicinal.data.decoding import read_image
from vicinal.data.table import Table
from vicinal.utils.console import track
from vicinal.utils.errors import InputError

MAX_LISTED = 20


@dataclass(frozen=True)
class ImageFileProblems:
    """What is wrong with image files. `print` shows the first twenty of each kind.

    Attributes:
        unreadable: The message of each image that cannot be read.
        duplicates: Groups of paths whose files have the same content.
        num_ambiguous: The number of these groups whose images have different labels.

    Example:
        >>> print(ImageFileProblems(["a.png: no such file"], [["b.png", "c.png"]]))
        1 image cannot be read:
          a.png: no such file
        2 images have the content of another (1 group):
          b.png, c.png
    """

    unreadable: list[str]
    duplicates: list[list[str]]
    num_ambiguous: int = 0

    def __str__(self) -> str:
        number, groups = len(self.unreadable), len(self.duplicates)
        lines = []
        if number:
            lines += [f"{count(number, 'image')} cannot be read:", *listed(self.unreadable)]
        if groups:
            ambiguous = f", {self.num_ambiguous:,} with different labels" if self.num_ambiguous else ""
            files = sum(map(len, self.duplicates))
            lines.append(f"{files:,} images have the content of another ({count(groups, 'group')}{ambiguous}):")
            lines += listed([", ".join(group) for group in self.duplicates])
        return "\n".join(lines)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> count(1, "image"), count(1200, "image")
        ('1 image', '1,200 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(lines: Sequence[str]) -> list[str]:
    """The first twenty lines, indented, and how many more there are."""
    more = len(lines) - MAX_LISTED
    return [f"  {line}" for line in lines[:MAX_LISTED]] + ([f"  and {more:,} more"] if more > 0 else [])


def check_image_files(table: Table) -> ImageFileProblems:
    """Read all images of a table, and report those that cannot be read and those that are there twice.

    Raises:
        InputError: The table has no paths.

    Example:
        >>> import pandas as pd
        >>> check_image_files(Table(pd.DataFrame({"path": ["/lost.png"]}))).unreadable
        ['/lost.png: no such file']
    """
    paths = list(dict.fromkeys(table.paths))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            errors = list(track(pool.map(_error, paths), "reading images", len(paths), sys.stderr.isatty()))
        except BaseException:  # Ctrl-C: do not read the remaining images first
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    readable = [path for path, error in zip(paths, errors, strict=True) if error is None]
    duplicates = _duplicates(readable)
    labels = dict(zip(table.paths, table.frame["label"], strict=True)) if table.has("label") else {}
    num_ambiguous = sum(len({labels.get(path) for path in group}) > 1 for group in duplicates)
    return ImageFileProblems([error for error in errors if error is not None], duplicates, num_ambiguous)


def _error(path: str) -> str | None:
    try:
        read_image(path)
    except InputError as error:
        return str(error)
    return None


def _duplicates(paths: Sequence[str]) -> list[list[str]]:
    """Groups of files of the same content. Only files of the same size are read."""
    by_size = _groups(paths, os.path.getsize)
    return sorted(same for group in by_size if len(group) > 1 for same in _groups(group, _digest) if len(same) > 1)


def _groups(paths: Sequence[str], key: Callable[[str], object]) -> list[list[str]]:
    groups = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    return list(groups.values())


def _digest(path: str) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.digest()
