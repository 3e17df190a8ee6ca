"""Training with two processes is training with one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT
from vicinal.data import Table, load_table
from vicinal.training import Recipe, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.utils.run_folder import RunFolder

# Nothing that depends on an image's process: no augmentation, and batch normalization that keeps its statistics.
STILL = [
    "--transform.scale=[1,1]",
    "--transform.ratio=[1,1]",
    "--transform.flip=0",
    "--model.freeze_batch_norm=statistics",
]


def train_with_two_processes(settings: list[str], out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vicinal", "train", *settings, "--devices=2", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "micro_batch_size",
    [
        [],
        ["--micro_batch_size=3", "--loss=MarginLoss"],
        ["--loss=ProxyAnchorLoss", "--max_grad_norm=1"],
        ["--loss=CenterContrastiveLoss", "--loss.sharded=true", "--max_grad_norm=0.5", "--centers=class_means"],
        [
            *("--loss=CenterContrastiveLoss", "--loss.sharded=true", "--max_grad_norm=0.05", "--max_grad_value=0.01"),
            *("--class_sampling=uniform", "--steps_per_epoch=2", "--max_steps=5", "--validation.train_images=9"),
        ],
    ],
)
def test_two_processes_train_as_one(small: list[str], tmp_path: Path, micro_batch_size: list[str]) -> None:
    settings = [*small, *STILL, "--freeze_backbone_epochs=1", "--epochs=3", *micro_batch_size]
    one = train(Recipe.load(overrides=[*settings, "--micro_batch_size=null"]), tmp_path / "one")
    two = RunFolder(tmp_path / "two")
    result = train_with_two_processes(settings, two.path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{two.model}\n"
    losses = [pd.read_csv(run.log)["loss"] for run in (one, two)]
    assert losses[0].tolist() == pytest.approx(losses[1].tolist(), rel=1e-3)
    states = [load_checkpoint(run.last)["module"] for run in (one, two)]
    for name, tensor in states[0].items():
        assert (tensor - states[1][name]).abs().max() < 1e-3, name


@pytest.mark.slow
def test_two_processes_have_the_batches_and_the_noise_of_one(small: list[str], photos: Path, tmp_path: Path) -> None:
    frame = load_table(photos).frame
    coarse = [f"kind {int(label[-1]) % 2}" for label in frame["label"]]
    Table(frame.assign(coarse=coarse, split="train")).save(tmp_path / "kinds.csv")
    more = [f"--data.source={tmp_path / 'kinds.csv'}", "--coarse_classes_per_batch=2", "--data.noise.random_labels=0.1"]
    settings = [*small, *STILL, *more]
    one = train(Recipe.load(overrides=settings), tmp_path / "one")
    two = RunFolder(tmp_path / "two")
    result = train_with_two_processes(settings, two.path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the label of another class") == 1
    losses = [pd.read_csv(run.log)["loss"] for run in (one, two)]
    assert losses[0].tolist() == pytest.approx(losses[1].tolist(), rel=1e-3)


@pytest.mark.slow
def test_a_process_in_trouble_says_why(small: list[str], photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "class0" / "0.png").write_bytes(b"broken")
    more = [f"--data.source={tmp_path / 'photos'}", "--data.cache=false", "--data.fractions={train: 1.0}"]
    result = train_with_two_processes([*small, *more], tmp_path / "run")
    assert result.returncode != 0
    assert "class0/0.png" in result.stderr
    assert result.stderr.count("error:") == 1, result.stderr
    assert "Traceback" not in result.stderr


FAILING_LOSS = """
from vicinal.losses import ContrastiveLoss
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

def fail():
    rank = distributed.rank()
    {statement}

class FailingLoss(ContrastiveLoss):
    def {place}(self, *arguments, **more):
        fail()
        return super().{place}(*arguments, **more)
"""


def train_with_failing_loss(
    settings: list[str], folder: Path, statement: str, place: str = "parts"
) -> tuple[int, list[str], int]:
    """The exit status, the lines that tell of errors, and the number of tracebacks."""
    (folder / "failing.py").write_text(FAILING_LOSS.format(statement=statement, place=place))
    more = ["--allow_import=failing", "--loss=failing.FailingLoss"]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    result = train_with_two_processes([*settings, *more], folder / "run", PYTHONPATH=path)
    lines = [line.replace("'", "").strip() for line in result.stderr.splitlines() if "rror: " in line]
    return result.returncode, lines, result.stderr.count("Traceback")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status", "lines", "num_traces"),
    [
        ("InputError", 2, ["vicinal: error: of rank 1"], 0),
        ("KeyError", 1, ["KeyError: of rank 1", "vicinal: error: rank 1: KeyError: of rank 1"], 1),
        ("KeyboardInterrupt", 130, ["vicinal: error: interrupted"], 0),
    ],
)
def test_the_error_of_another_process_is_the_one_that_is_printed(
    small: list[str], tmp_path: Path, error: str, status: int, lines: list[str], num_traces: int
) -> None:
    """Not that a collective operation has failed, or that a process has ended."""
    statement = f"if rank == 1: raise {error}('of rank 1')"
    assert train_with_failing_loss(small, tmp_path, statement) == (status, lines, num_traces)


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once(small: list[str], tmp_path: Path) -> None:
    same = train_with_failing_loss(small, tmp_path, "raise RuntimeError('of all')")
    assert same == (1, ["[rank0]: RuntimeError: of all"], 1)


@pytest.mark.slow
def test_a_killed_process_ends_the_run_with_a_hint(small: list[str], tmp_path: Path) -> None:
    statement = "import os; rank == 1 and os.kill(os.getpid(), 9)"
    status, lines, num_traces = train_with_failing_loss(small, tmp_path, statement)
    expected = "vicinal: error: the process of rank 1 was killed (SIGKILL), so the run has ended; resume with: vicinal"
    assert (status, len(lines), num_traces) == (1, 1, 0)
    assert lines[0].startswith(expected)
