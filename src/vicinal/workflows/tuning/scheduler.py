"""Several tasks at a time in one thread: each goes on a little whenever it is its turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from vicinal.utils.errors import InterruptedRunError
from vicinal.workflows.tuning.processes import Result, Task

PAUSE = 0.2  # seconds between two turns


class Waiting:
    """There is no task now, but others of this study, in this command or another, are under way."""


WAITING = Waiting()

NextTask = Callable[[int], "Task[None] | Waiting | None"]
"""Gives the next task for a slot; None if there is none any more."""


def run_tasks(next_task: NextTask, num_slots: int, is_stopping: Callable[[], bool]) -> None:
    """Run tasks until there are none any more, at most so many at a time.

    Args:
        next_task: gives the next task for a slot, a number from 0 on that no other running task has.
        num_slots: the largest number of tasks at a time.
        is_stopping: whether no more tasks are to be started. Those that run are waited for.

    Raises:
        InterruptedRunError: `is_stopping`, after the last task has ended.
    """
    running: dict[int, Task[None]] = {}
    try:
        while True:
            is_last = is_stopping() or not _fill(running, next_task, num_slots)
            if is_last and not running:
                break
            for slot, task in list(running.items()):
                if next(task, StopIteration) is StopIteration:
                    del running[slot]
            time.sleep(PAUSE)
    finally:
        for task in running.values():
            task.close()
    if is_stopping():
        raise InterruptedRunError("stopped; the same command continues the study")


def run_task(task: Task[Result]) -> Result:
    """Run one task to its end, and return its result."""
    while True:
        try:
            next(task)
        except StopIteration as end:
            return end.value
        time.sleep(PAUSE)


def _fill(running: dict[int, Task[None]], next_task: NextTask, num_slots: int) -> bool:
    """Give every free slot a task; returns whether there may be more tasks later."""
    for slot in range(num_slots):
        if slot in running:
            continue
        task = next_task(slot)
        if task is None:
            return False
        if isinstance(task, Waiting):
            return True
        running[slot] = task
    return True
