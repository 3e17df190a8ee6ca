"""Messages and progress bars. They go to stderr, so that results on stdout can be piped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")


@cache
def stderr() -> Console:
    """The console of all messages and progress bars."""
    from rich.console import Console  # imported on the first message, so that quick commands start quickly

    return Console(stderr=True, highlight=False, soft_wrap=True)


def is_main_process() -> bool:
    """Whether this process prints messages; a launcher numbers the others in LOCAL_RANK."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def log(message: str) -> None:
    """Print one line on stderr, without any markup."""
    if is_main_process():
        stderr().print(message, markup=False)


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
    """Yield the items, with a progress bar if `show`."""
    if not show:
        yield from items
        return
    with progress_bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
