"""Runs that are killed, interrupted or told to end at any moment: they end at once, leave nothing, resume exactly."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.commands import Command
from tests.training.runs import assert_same_run
from vicinal.utils.run_folder import RunFolder

SECONDS = 60  # within which a run must end after a signal; it takes one on a machine without other work

SETUPS = {
    "workers": ["--data.cache=false", "--data.num_workers=2", "--model.dropout=0.2"],
    "two processes": ["--devices=2", "--model.dropout=0.2"],
    "micro-batches": ["--micro_batch_size=3", "--data.cache=false", "--data.num_workers=1", "--loss=MarginLoss"],
    "memory": ["--loss=CrossBatchMemory", "--loss.loss=ContrastiveLoss", "--loss.size=16"],
    "centers": ["--loss=ProxyAnchorLoss", "--max_grad_norm=1", "--accumulate_grad_batches=2"],
    "selection": ["--sample_selection.method=prism", "--log_every=4", "--checkpoint_minutes=10"],
}
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processes from /proc"),
]


def command(out: Path, settings: list[str]) -> list[str]:
    return ["train", *settings, "--out", str(out), "--resume"]


def finish(words: list[str]) -> float:
    """Run to the end, and return the seconds that it takes."""
    started, process = time.monotonic(), Command(words)
    _, errors = process.communicate(timeout=20 * SECONDS)
    assert process.returncode == 0, errors
    return time.monotonic() - started


def send(number: signal.Signals, process: Command) -> None:
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C does
    else:
        process.send_signal(number)


def end_by(number: signal.Signals, words: list[str], wait: float) -> str:
    """Start a run, send a signal after a while, and return its messages."""
    process = Command(words)
    try:
        _, errors = process.communicate(timeout=wait)  # finished before the signal
        assert process.returncode == 0, errors
        return errors
    except subprocess.TimeoutExpired:
        pass
    send(number, process)
    errors = process.wait_for_all(SECONDS)
    assert process.returncode in (0, 130, -number), errors
    return errors


def check_same(run: RunFolder, straight: RunFolder) -> None:
    assert_same_run(run, straight)
    assert not list(run.path.rglob(".*.tmp"))


@pytest.mark.parametrize("setup", SETUPS)
def test_signals_at_random_moments(small: list[str], tmp_path: Path, setup: str) -> None:
    """Ctrl-C, SIGTERM and kill -9 at twenty moments each."""
    settings = [*small, "--epochs=4", "--checkpoint_minutes=0", *SETUPS[setup]]
    straight, moments = RunFolder(tmp_path / "straight"), random.Random(0)
    seconds = finish(command(straight.path, settings))
    for number in SIGNALS:
        run = RunFolder(tmp_path / f"run {number}")
        words = command(run.path, settings)
        for _ in range(20):
            if run.model.is_dir():
                check_same(run, straight)
                shutil.rmtree(run.path)
            end_by(number, words, moments.uniform(0.3, 1) * seconds)
        finish(words)
        check_same(run, straight)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_workers_read_images(small: list[str], tmp_path: Path, number: signal.Signals) -> None:
    run = RunFolder(tmp_path / "run")
    process = Command(command(run.path, [*small, "--epochs=100", *SETUPS["workers"]]))
    deadline = time.monotonic() + 2 * SECONDS
    while not run.log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.log.exists()
    send(number, process)
    errors = process.wait_for_all(SECONDS)
    if number == signal.SIGKILL:
        assert process.returncode == -9
    else:
        assert process.returncode == 130
        assert "stopped after step" in errors.splitlines()[-1]
        assert run.last.exists()


def test_ctrl_c_while_the_ranks_import_torch(small: list[str], tmp_path: Path) -> None:
    """Torch cannot be imported again after an interrupted import, so that nothing may try to explain the error."""
    process = Command(command(tmp_path / "run", [*small, *SETUPS["two processes"]]))
    while len(process.running()) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    send(signal.SIGINT, process)
    errors = process.wait_for_all(SECONDS)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].endswith("error: interrupted")
