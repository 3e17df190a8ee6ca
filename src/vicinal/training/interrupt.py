"""How a run ends: the first Ctrl-C or SIGTERM stops it after its step, the second at once; no process is left."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends
SAME_SECONDS = 1.0  # in which a second signal is the first one: a terminal and torchrun send one each


class StopRequest:
    """While this context is open, the first SIGINT or SIGTERM sets `requested` instead of ending the process."""

    def __init__(self) -> None:
        self.requested = False
        self._requested_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._requested_at = True, time.monotonic()
        elif time.monotonic() - self._requested_at > SAME_SECONDS:
            raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def start_worker(worker: int) -> None:
    """Prepare a worker of a data loader: it ignores signals to the whole group, and ends with the trainer's process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; only Linux can."""
    set_death_signal = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    if set_death_signal is not None:
        set_death_signal(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def killing_children() -> Iterator[None]:
    """At the end of the block, kill the processes that were started within it and still run.

    Workers of a data loader ignore SIGTERM, so that Python would wait for them for ever when it exits.
    """
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()
