"""Processes that the command starts itself end together, also before they have met."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vicinal.training.processes import local_processes
from vicinal.training.processes.local_processes import LocalProcesses

SECONDS = 60  # which a busy machine may take; it is far less without other work
PROGRAM = """
import ctypes, os, sys
from vicinal.training.processes.local_processes import LocalProcesses
if os.environ.get("LOCAL_RANK") == "1":
    os.kill(os.getpid(), 9) if sys.argv[1] == "kill" else os._exit(int(sys.argv[1]))
with LocalProcesses(2):
    ctypes.CDLL(None).sleep(600)  # as torch waits, where Python runs no handler of signals
"""


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        ("130", 130, "vicinal: error: interrupted\n"),
        ("2", 2, ""),
        ("0", 1, "vicinal: error: the process of rank 1 has ended before the run began\n"),
        ("kill", 1, "vicinal: error: the process of rank 1 was killed (SIGKILL) before the run began\n"),
    ],
)
def test_the_first_ends_with_one_that_it_waits_for(ending: str, status: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, str(tmp_path / "program.py"), ending]
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (status, message)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> LocalProcesses:
    """Two processes that never meet this one."""
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(local_processes, "own_command", lambda: words)
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is as before at the end
        monkeypatch.delenv(name)
    return LocalProcesses(3)


def test_an_interrupted_start_leaves_no_process(started: LocalProcesses) -> None:
    with pytest.raises(KeyboardInterrupt), started:
        raise KeyboardInterrupt
    assert [process.wait(SECONDS) for process in started.processes] == 2 * [-signal.SIGKILL]
    assert LocalProcesses(3).processes == []  # this process has a rank now, as if something else had started it


def test_those_that_have_met_are_not_watched(started: LocalProcesses) -> None:
    with started:
        pass
    for process in started.processes:
        process.kill()
        process.wait(SECONDS)
    time.sleep(3 * local_processes.POLL_SECONDS)  # this process is still there
