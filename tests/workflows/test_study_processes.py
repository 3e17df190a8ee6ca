"""Processes of a study: why one failed, in a line, and that none is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vicinal.workflows.tuning.processes import reason, run_process, start_process
from vicinal.workflows.tuning.scheduler import run_task


@pytest.mark.parametrize(
    ("messages", "status", "expected"),
    [
        ("epoch 1\nvicinal train: error: data.source: no such file\n\n", 2, "data.source: no such file"),
        ("Traceback\n  File x\nOutOfMemoryError: CUDA out of memory.\n", 1, "OutOfMemoryError: CUDA out of memory."),
        ("", 3, "exit status 3"),
        ("epoch 1\n", -9, "ended by signal 9, for lack of memory perhaps"),
        ("epoch 1\n", -11, "ended by signal 11"),
    ],
)
def test_a_failure_is_one_line(tmp_path: Path, messages: str, status: int, expected: str) -> None:
    (tmp_path / "messages.log").write_text(messages)
    assert reason(tmp_path / "messages.log", status) == expected


def test_a_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    messages, output = tmp_path / "messages.log", tmp_path / "output.txt"
    status = run_task(run_process(start_process(["--version"], messages, output, {}), lambda: False, lambda: False))
    assert (status, messages.read_text()) == (0, "")
    assert output.read_text().strip().count(".") >= 2
    status = run_task(run_process(start_process(["data", "none"], messages, None, {}), lambda: False, lambda: False))
    assert reason(messages, status or 0).startswith("none: no such")


def test_a_process_ends_with_its_task() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    task = run_process(process, lambda: False, lambda: False)
    next(task)
    task.close()
    assert process.poll() == -9
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert run_task(run_process(process, lambda: False, lambda: True)) is None
    assert process.poll() == -9
