"""Commands of a study: why one failed, in a line, and that none is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vicinal.utils.errors import TrainingStoppedError
from vicinal.workflows.tuning.runs import Runner, reason
from vicinal.workflows.tuning.study_folder import StudyFolder

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(StudyFolder(tmp_path), SimpleNamespace(settings=SimpleNamespace(accelerator="cpu")))


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


def test_a_command_in_a_process_of_its_own(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError, match=r"none: no such"):
        runner.evaluate("none", [])


def test_a_process_ends_with_its_study(runner: Runner) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    process = subprocess.Popen(SLEEP)
    with pytest.raises(KeyboardInterrupt):
        runner._wait(process, fail)
    assert process.poll() == -9
    process, runner.is_stopping = subprocess.Popen(SLEEP), lambda: True
    assert runner._wait(process, lambda: None) == -15
