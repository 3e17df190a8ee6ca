"""Studies that are killed or interrupted at any moment, and several commands on one: nothing is lost or done twice."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.commands import Command
from tests.conftest import SMALL, draw_photos
from vicinal.utils.plain_yaml import load_yaml

SECONDS = 120  # within which a study must end after a signal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processes from /proc"),
]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    draw_photos(tmp_path / "photos", 12, 4)
    return [
        "tune", f"--data.source={tmp_path / 'photos'}", *SMALL, "--epochs=6",
        "--search.optimizer.lr={log: [1e-4, 1e-2]}",
        "--trials=3", "--sampler=random", "--replay", "--jobs=2", "--json",
    ]  # fmt: skip


def start(words: list[str], out: Path) -> Command:
    return Command([*words, "--out", str(out)])


def finish(words: list[str], out: Path) -> dict:
    printed, errors = start(words, out).communicate(timeout=20 * SECONDS)
    assert "error" not in errors, errors
    return json.loads(printed)


def check_complete(result: dict, out: Path) -> None:
    """Three trials have the scores of their runs, and the best one was replayed."""
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 3
    for trial in result["trials"]:
        recipe = load_yaml((out / f"trials/{trial['number']:03d}.yaml").read_text())
        assert recipe["optimizer"] == {**recipe["optimizer"], **{"lr": trial["values"]["optimizer.lr"]}}
        log = pd.read_csv(out / f"trials/{trial['number']:03d}/metrics.csv")
        assert log["epoch"].tolist() == list(range(7))
        assert trial["score"] == log.loc[log["epoch"] > 0, result["metric"]].max()
    best = max(result["trials"], key=lambda trial: trial["score"])["number"]
    assert result["best"] == best == result["test"]["trial"]
    assert (out / "final/model/model.safetensors").is_file()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_study_that_is_ended_at_random_moments(words: list[str], tmp_path: Path, number: signal.Signals) -> None:
    begun = time.monotonic()
    check_complete(finish(words, tmp_path / "straight"), tmp_path / "straight")
    seconds, moments, out = time.monotonic() - begun, random.Random(0), tmp_path / "study"
    for _ in range(5):
        process = start(words, out)
        try:
            process.communicate(timeout=moments.uniform(0.1, 0.7) * seconds)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
        process.wait_for_all(SECONDS)
        assert process.returncode in (0, -9 if number == signal.SIGKILL else 130)
    check_complete(finish(words, out), out)


def test_two_commands_share_a_study(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "study"
    both = [start([*words, "--jobs=1"], out) for _ in range(2)]
    results = []
    for process in both:
        printed, errors = process.communicate(timeout=20 * SECONDS)
        assert process.returncode == 0, errors
        results.append(json.loads(printed))
    check_complete(results[0], out)
    assert results[1] == results[0]


def test_devices_of_a_run_are_processes_of_its_own(words: list[str], tmp_path: Path) -> None:
    result = finish([*words, "--devices=2", "--trials=1"], tmp_path / "study")
    assert result["trials"][0]["state"] == "complete"
