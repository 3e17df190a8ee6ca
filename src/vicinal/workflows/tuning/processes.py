"""Commands in processes of their own: a crash, or a lack of memory, of one of them ends no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from vicinal.utils.errors import one_line

Result = TypeVar("Result")
Task: TypeAlias = Generator[None, None, Result]
"""Work that yields wherever it waits, so that others go on."""

INTERRUPTED = 130  # the exit status of a command that was asked to stop, and has saved its state


class Process(Protocol):
    """What a study needs of a process."""

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def terminate(self) -> None:
        """Ask it to save its state and to end."""

    def kill(self) -> None:
        """End it at once."""

    def wait(self) -> int:
        """Wait for its end, and return the exit status."""


Start: TypeAlias = Callable[[Sequence[str], Path, "Path | None", Mapping[str, str]], Process]
"""Starts a command of Vicinal: its words, the files of its messages and of its output, environment variables."""


def start_process(words: Sequence[str], messages: Path, output: Path | None, environment: Mapping[str, str]) -> Process:
    """Start a command of Vicinal.

    Ctrl-C on a terminal reaches the study alone, which then asks its processes to save their state.

    Args:
        words: of the command, such as `["train", "recipe.yaml", "--out", "run"]`.
        messages: the file to which its messages are appended.
        output: the file for its output, which is replaced; None: nothing is kept of it.
        environment: variables that differ from this process's own.
    """
    with messages.open("ab") as stderr, Path(os.devnull if output is None else output).open("wb") as stdout:
        return subprocess.Popen(
            [sys.executable, "-m", "vicinal.workflows.tuning.child", *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def run_process(process: Process, is_stopping: Callable[[], bool], is_over: Callable[[], bool]) -> Task[int | None]:
    """Wait for a process.

    Args:
        process: the process. If the task is closed before its end, it is killed.
        is_stopping: whether the process is to save its state and end.
        is_over: whether the process is to be ended at once; called every now and then.

    Returns:
        The exit status; None if `is_over` ended it.
    """
    asked = False
    try:
        while (status := process.poll()) is None:
            if is_stopping() and not asked:
                process.terminate()
                asked = True
            if is_over():
                return None
            yield
        return status
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def reason(messages: Path, status: int) -> str:
    """Why a command failed, in one line: its last message."""
    if status < 0:
        return f"ended by signal {-status}" + (", for lack of memory perhaps" if status == -9 else "")
    text = messages.read_text(encoding="utf-8", errors="replace") if messages.is_file() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].rpartition(": error: ")[2] if lines else f"exit status {status}"
    return one_line(last, 300)
