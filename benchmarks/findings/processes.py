"""Commands of Vicinal in processes that have imported PyTorch already, which saves a quarter of a short run."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

PRELOADED = ("torch._dynamo", "timm", "vicinal.training.runs", "vicinal.training.trainer", "vicinal.cli.main")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(PRELOADED))


class ForkedProcess:
    """A command in a process that was forked, as a study wants it."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask it to save its state and to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end, and return the exit status."""
        self._process.join()
        status = self._process.exitcode
        assert status is not None
        return status


def fork_process(
    words: Sequence[str], messages: Path, output: Path | None, environment: Mapping[str, str]
) -> ForkedProcess:
    """Start a command, as :func:`vicinal.workflows.tuning.runs.start_process` does."""
    messages.parent.mkdir(parents=True, exist_ok=True)
    process = _CONTEXT.Process(target=_run, args=(list(words), messages, output, dict(environment)), daemon=True)
    process.start()
    return ForkedProcess(process)


def _run(words: list[str], messages: Path, output: Path | None, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with messages.open("ab") as stderr, Path(os.devnull if output is None else output).open("wb") as stdout:
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
    from vicinal.cli.main import main

    sys.exit(main(words))
