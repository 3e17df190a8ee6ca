"""Messages and progress bars, which go to stderr so that results on stdout can be piped; numbers and tables as text."""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from vicinal.utils.launch import Launch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")

SECONDS_PER_LINE = 60.0
"""Seconds between two progress messages of a long job without a terminal."""

BIDIRECTIONAL = {"L", "R", "AL", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""The classes of format characters that change the direction of the text after them."""
MAX_LISTED = 20


@cache
def stderr() -> Console:
    """The console of all messages and progress bars."""
    from rich.console import Console  # imported on the first message, so that quick commands start quickly

    return Console(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Escape characters that would control a terminal: control characters except newline and tab, characters that
    change the direction of text, and lone surrogates. Labels and file names may hold any of them.
    """
    return "".join(each.encode("unicode_escape").decode() if _is_controlling(each) else each for each in text)


def _is_controlling(character: str) -> bool:
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Zl", "Zp"):
        return character not in "\n\t"
    return category == "Cf" and unicodedata.bidirectional(character) in BIDIRECTIONAL


def is_main_process() -> bool:
    """Whether this process prints messages and writes the files of a run: that of rank 0 on the first node."""
    return Launch.of().rank == 0


def log(message: str) -> None:
    """Print one line on stderr, without any markup; characters that would control the terminal are escaped."""
    if is_main_process():
        stderr().print(printable(message), markup=False)


@contextmanager
def condensed_retries() -> Iterator[None]:
    """In this context, all warnings of the Hub's client about failed requests become one line."""
    client, is_said = logging.getLogger("huggingface_hub.utils._http"), False

    def say_once(record: logging.LogRecord) -> bool:
        nonlocal is_said
        if not is_said:
            log("the Hugging Face Hub does not answer; trying again a few times (not with HF_HUB_OFFLINE=1)")
        is_said = True
        return False

    client.addFilter(say_once)
    try:
        yield
    finally:
        client.removeFilter(say_once)


def duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> duration(7), duration(61), duration(7300), duration(200_000)
        ('7 s', '1 min 1 s', '2 h 1 min', '55 h 33 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def progress_bar() -> Progress:
    """A progress bar with a count and the remaining time, shown on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=stderr(),
        disable=not (stderr().is_terminal and is_main_process()),
    )


def track(items: Iterable[Item], description: str, total: int | None = None, show: bool = True) -> Iterator[Item]:
    """Yield the items, with a progress bar if `show`; without a terminal a line every SECONDS_PER_LINE instead."""
    if not show:
        yield from items
        return
    if not stderr().is_terminal:
        yield from _log_progress(items, description, total)
        return
    with progress_bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)


def _log_progress(items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    """Yield the items, and log their number every SECONDS_PER_LINE."""
    begun = logged = time.monotonic()
    for number, item in enumerate(items):
        if (now := time.monotonic()) - logged >= SECONDS_PER_LINE:
            of_all = "" if total is None else f" of {total:,}"
            log(f"{description}: {number:,}{of_all} in {duration(now - begun)}")
            logged = now
        yield item


def shorten(text: str, max_length: int) -> str:
    """The text; if it is too long, the middle is left out, and slightly more of the end is kept.

    Words are kept whole if a part of the text is left on both sides.
    """
    if len(text) <= max_length:
        return text
    start, end = text[: max_length // 2 - 1], text[max_length // 2 - max_length :]
    whole_start = re.match(r".*[\W_]", start)
    whole_end = re.search(r"[\W_].*", end)
    return f"{whole_start[0] if whole_start else start}…{whole_end[0] if whole_end else end}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "image")
        ('1 query', '1,200 images')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(lines: Sequence[str]) -> list[str]:
    """The first twenty lines, indented, and how many more there are."""
    more = len(lines) - MAX_LISTED
    return [f"  {line}" for line in lines[:MAX_LISTED]] + ([f"  and {more:,} more"] if more > 0 else [])


def aligned(rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Lay out rows of cells in columns, two spaces apart: the first `num_left` aligned on the left, the others right.

    Example:
        >>> print(aligned([["", "images"], ["train", "4"], ["all", "12"]]))
               images
        train       4
        all        12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [cell.ljust(width) if column < num_left else cell.rjust(width)
         for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )  # fmt: skip
    return "\n".join("  ".join(line).rstrip() for line in lines)
