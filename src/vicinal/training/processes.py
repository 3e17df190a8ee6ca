"""The processes of a run: how they are started by torchrun's agent, asked to stop, and end with one error.

The first Ctrl-C or SIGTERM stops a run after its step, the second one at once. A process that fails ends all. Rank 0
prints its own error; another rank leaves its error in a file, and the process that started them prints it, unless rank
0 failed for a reason of its own.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from vicinal.utils.console import printable
from vicinal.utils.errors import InputError, explained, is_lost_connection, one_line
from vicinal.utils.launch import SUPERVISOR, Launch

PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends
SAME_SECONDS = 1.0  # in which a second signal is the first one: a terminal and torchrun send one each
MIN_CPU_PROCESSES = 8  # allowed regardless of the number of cores
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the environment variable in which the agent names the file of a process
INTERRUPTED = 130


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

    def __exit__(self, *_: object) -> None:
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

    Workers of a data loader ignore SIGTERM, so that Python would wait for them forever when it exits.
    """
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()


def needs_processes(devices: int | None) -> bool:
    """Whether a command with this setting must start its own processes because no launcher did."""
    return (devices or 1) > 1 and Launch.of().launcher is None


def run_in_processes(words: Sequence[str], number: int, hint: str = "") -> None:
    """Run a command of Vicinal in several processes of this machine, and wait for all of them.

    If one fails, its error is printed, and SystemExit has its status; if it was killed, `hint` says how to resume.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    limit = max(MIN_CPU_PROCESSES, os.cpu_count() or 1, torch.cuda.device_count())
    if number > limit:
        raise InputError(f"devices = {number} must be at most {limit} on this machine")
    os.environ[SUPERVISOR] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="vicinal_") as folder:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=number, max_restarts=0, rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", logs_specs=DefaultLogsSpecs(log_dir=folder),
        )  # fmt: skip
        logging.disable(logging.CRITICAL)  # leaves out the agent's messages about processes that end
        try:
            elastic_launch(config, sys.executable)("-m", "vicinal", *words)
        except ChildFailedError as error:
            failures = {rank: (failure.exitcode, failure.error_file) for rank, failure in error.failures.items()}
            raise SystemExit(_print_failure(failures, hint)) from None
        except SignalException:
            if not any(_read(path).get("printed") for path in Path(folder).rglob("error.json")):
                _print_error("interrupted")
            raise SystemExit(INTERRUPTED) from None
        finally:
            logging.disable(logging.NOTSET)
            os.environ.pop(SUPERVISOR, None)


def leave_error(error: BaseException) -> int | None:
    """Leave an error of this process to the one that started it, and return the exit status.

    None: this process must print the error itself, since it was not started by another one, or is rank 0 and failed for
    a reason of its own.
    """
    path = os.environ.get(ERROR_FILE)
    if SUPERVISOR not in os.environ or path is None or isinstance(error, SystemExit):
        return None
    is_lost = is_lost_connection(error)
    is_printed = Launch.of().rank == 0 and not is_lost
    known = explained(error)
    line, status = known or (f"{type(error).__name__}: {one_line(error)}", 1)
    trace = "" if known or is_lost else "".join(traceback.format_exception(error))
    report = {
        "printed": is_printed, "lost": is_lost, "line": line, "trace": trace, "status": status, "time": time.time()
    }  # fmt: skip
    Path(path).write_text(json.dumps({"message": json.dumps(report), "timestamp": int(time.time())}))
    return None if is_printed else status


def end_with_supervisor() -> None:
    """Let this process end when the one that started it ends; only Linux can."""
    end_with_parent()
    if os.getppid() != int(os.environ[SUPERVISOR]):
        os._exit(1)  # it has ended already


def _print_failure(failures: dict[int, tuple[int, str]], hint: str) -> int:
    """Print the error of the process that failed first, unless rank 0 has printed its own; return the exit status."""
    reports = {rank: _read(path) for rank, (_, path) in failures.items()}
    for report in reports.values():
        if report.get("printed"):
            return int(report["status"])  # the agent may have ended the process while it printed
    killed = [rank for rank, (status, _) in failures.items() if status < 0 and not reports[rank]]
    caused = [rank for rank, report in reports.items() if report and not report["lost"]]
    if not caused:
        rank = (killed or list(failures))[0]
        status = failures[rank][0]
        how = f"was killed ({signal.Signals(-status).name})" if status < 0 else "has ended"
        _print_error(f"the process of rank {rank} {how}, so the run has ended{f'; {hint}' if hint else ''}")
        return 1
    rank = min(caused, key=lambda each: reports[each]["time"])
    report = reports[rank]
    print(printable(report["trace"]), end="", file=sys.stderr)
    _print_error(f"rank {rank}: {report['line']}" if report["trace"] else report["line"])
    return int(report["status"])


def _read(path: str | Path) -> dict[str, Any]:
    """The report that a process has left; empty without one."""
    try:
        return dict(json.loads(json.loads(Path(path).read_text())["message"]))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _print_error(message: str) -> None:
    print(printable(f"vicinal: error: {message}"), file=sys.stderr, flush=True)
