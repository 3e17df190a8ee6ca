"""What people see while a job runs: messages and progress bars, on stderr so that results can be piped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")

stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def is_first_process() -> bool:
    """Whether this process speaks for all; a launcher tells the others their number."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def log(message: str) -> None:
    """Print one line for people, on stderr, as it is."""
    if is_first_process():
        stderr.print(message, markup=False)


def progress_bar() -> Progress:
    """A progress bar with count and time left, shown only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=stderr,
        disable=not (stderr.is_terminal and is_first_process()),
    )


def track(items: Iterable[Item], description: str, total: int | None = None, show: bool = True) -> Iterator[Item]:
    """Yield the items, showing how many are done and the time left."""
    if not show:
        yield from items
        return
    with progress_bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
