"""Ctrl-C and SIGTERM ask a run to stop after its step; a second Ctrl-C stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While this context is open, the first SIGINT or SIGTERM sets `asked` instead of ending the process."""

    def __init__(self) -> None:
        self.asked = False
        self._former: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)


def ignore_interrupts(worker: int) -> None:
    """For processes that load data: signals to a group reach them too, and only the trainer is to answer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
