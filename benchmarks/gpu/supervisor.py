"""Keeps the process that measures alive: one that crashes, or takes too long, costs the measurement it was at only."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.gpu.rows import Rows, key_of

RESTART = 75
"""Exit status of a process that has written its result, but cannot use the device any more."""


def supervise(command: Sequence[str], rows: Rows, until: float, grace: float = 30.0, poll: float = 0.1) -> int:
    """Run a command that measures, repeatedly until it has nothing left, and return its exit status.

    After an error of the device no kernel of its process runs any more, so the next process goes on after it.

    Args:
        command: measures what has no result yet, and marks what it is at.
        rows: where the results are, and the result of a measurement that ended its process is written.
        until: the time after which the command is to start no further measurement.
        grace: seconds more after which it is ended, without a result.
        poll: seconds between two polls of it.
    """
    while True:
        rows.unmark()
        process = subprocess.Popen(command)
        try:
            problem = _wait(process, rows, until + grace, poll)
        finally:
            process.kill()
            process.wait()
        mark = rows.marked()
        rows.unmark()
        if problem is None or process.returncode == 0:
            return 0
        if problem and mark is None:
            return process.returncode
        if problem and mark is not None:
            rows.append(key_of(mark), problem, {}, mark["context"])
            print(f"{' | '.join(key_of(mark))}: {problem}", file=sys.stderr, flush=True)


def _wait(process: subprocess.Popen[bytes], rows: Rows, until: float, poll: float) -> str | None:
    """Wait for the end: what went wrong, nothing, or None if the time is over."""
    mark, since = None, time.time()
    while process.poll() is None:
        time.sleep(poll)
        if time.time() > until:
            return None
        now = rows.marked()
        if now != mark:
            mark, since = now, time.time()
        if mark is not None and time.time() - since > mark["limit"]:
            return f"took longer than {mark['limit']:.0f} s"
    return "" if process.returncode in (0, RESTART) else f"ended its process with status {process.returncode}"
