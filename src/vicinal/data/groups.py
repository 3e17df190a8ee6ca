"""Groups of images that are excluded from each other's rankings, such as a series of photos: by names or times."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
from PIL import ExifTags, Image

from vicinal.data.images.decoding import known_formats
from vicinal.data.images.formats import CountedFile
from vicinal.data.table import Table
from vicinal.utils.arguments import check_positive
from vicinal.utils.arrays import Integers
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file

TIMES = ((ExifTags.Base.DateTimeOriginal, ExifTags.Base.SubsecTimeOriginal),
         (ExifTags.Base.DateTimeDigitized, ExifTags.Base.SubsecTimeDigitized))  # fmt: skip
NO_GROUP = -1


def capture_time(path: str) -> float | None:
    """When a photo was taken, in seconds on the clock of its camera; None if its file does not say when.

    Times of editing, and those of the file itself, are ignored, since they differ for copies.
    """
    try:
        check_regular_file(path)
        with CountedFile(path) as file, Image.open(file, formats=known_formats()) as image:
            facts = image.getexif().get_ifd(ExifTags.IFD.Exif)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    for time, fraction in TIMES:
        try:
            moment = datetime.strptime(str(facts[time])[:19], "%Y:%m:%d %H:%M:%S")
            seconds = (moment - datetime(1970, 1, 1)).total_seconds()
            digits = str(facts.get(fraction, "")).strip("\0 ")
            return seconds + (float(f"0.{digits}") if digits.isdecimal() else 0.0)
        except (KeyError, ValueError):
            continue
    return None


def with_groups(table: Table, pattern: str | None, minutes: float | None = None) -> Table:
    """The table with a column `group`; the table itself where neither a pattern nor minutes are given.

    Images with the same text in the first parentheses of the pattern, or in all of it if it has none, are one group. An
    image that was taken at most that many minutes after another one, by the EXIF data, is in its group. Images in whose
    path the pattern is not found, or without a time, have no group.
    """
    if pattern is not None and minutes is not None:
        raise InputError("group_pattern and group_minutes both define groups; leave one of them out")
    if pattern is None and minutes is None:
        return table
    name = "group_minutes" if pattern is None else "group_pattern"
    if table.has("group"):
        raise InputError(f"{name}: the table already has a column group; leave one of them out")
    if minutes is not None:
        numbers = _groups_by_time(table.paths, minutes)
    else:
        numbers = _groups_by_pattern(table.paths, str(pattern))
    without = int((numbers == NO_GROUP).sum())
    others = f"; {counted(without, 'image')} in none" if without else ""
    log(f"{counted(int(numbers.max()) + 1, 'group')} by {name}{others}")
    return Table(table.frame.assign(group=numbers))


def _groups_by_pattern(paths: list[str], pattern: str) -> Integers:
    try:
        found = [re.search(pattern, path) for path in paths]
    except re.error as error:
        raise InputError(f"group_pattern = {pattern} is not a regular expression: {error}") from None
    texts = [None if match is None else match[1] if match.re.groups else match[0] for match in found]
    names = {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)))}
    if not names:
        raise InputError(f"group_pattern = {pattern} matches no path, such as {paths[0]}")
    return np.array([NO_GROUP if not text else names[text] for text in texts])


def _groups_by_time(paths: list[str], minutes: float) -> Integers:
    check_positive(with_groups, group_minutes=minutes)
    times = np.array([capture_time(path) for path in paths], dtype=np.float64)
    rows = np.argsort(times)[: int(np.isfinite(times).sum())]
    if not len(rows):
        raise InputError(f"group_minutes = {minutes:g}: no image has a time of capture, such as {paths[0]}")
    numbers = np.full(len(paths), NO_GROUP)
    numbers[rows] = np.cumsum(np.diff(times[rows], prepend=times[rows[0]]) > 60 * minutes)
    return numbers
