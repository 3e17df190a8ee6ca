"""A refiner's run that is stopped or killed ends with the same weights as one that was not."""

from __future__ import annotations

import contextlib
import multiprocessing
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.training.interruption import die_in_a_write, interrupt_in_step
from tests.training.refiner_runs import trainer
from vicinal.training import RefinerRecipe
from vicinal.training.checkpoint import load_checkpoint
from vicinal.utils.errors import InterruptedRunError, NotBetterError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.refine import resume_refiner

DROPS = ["--augmentation.neighbor_dropout=0.4", "--augmentation.random_num_neighbors=true", "--refiner.dropout=0.3"]


def finish(settings: list[str], out: Path) -> RunFolder:
    """Begin a run or go on with it, to its end; whether it helps is not asked."""
    with contextlib.suppress(NotBetterError):
        resume_refiner(out, RefinerRecipe.load(overrides=settings))
    return RunFolder(out)


def assert_same(one: RunFolder, other: RunFolder) -> None:
    for path in (one.last, one.best):
        states = [load_checkpoint(run.path / path.name)["module"] for run in (one, other)]
        assert states[0].keys() == states[1].keys()
        for name, tensor in states[0].items():
            assert torch.equal(tensor, states[1][name]), name
    assert pd.read_csv(one.log)["loss"].tolist() == pd.read_csv(other.log)["loss"].tolist()
    assert pd.read_csv(one.metrics).equals(pd.read_csv(other.metrics))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(DROPS, marks=pytest.mark.slow),
        [
            *DROPS,
            "--accumulate_grad_batches=2",
            "--max_grad_norm=0.5",
            "--loss=MarginLoss",
            "--optimizer.name=sgd",
            "--precision=16-mixed",
        ],
        ["--loss=ProxyAnchorLoss", "--samples_per_class=0", "--refiner.context=self"],
        pytest.param(
            ["--augmentation.noise=0.5", "--augmentation.class_sizes=[2,5]", "--refiner.mlp_ratio=1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_signal_finishes_the_step_and_saves_the_state(tiny: list[str], tmp_path: Path, more: list[str]) -> None:
    settings = [*tiny, *more]
    straight = finish(settings, tmp_path / "straight")
    one = trainer(settings, tmp_path / "run")
    interrupt_in_step(one, 3)
    with pytest.raises(InterruptedRunError, match=r"stopped after step 3 and saved .*: vicinal refine --out"):
        one.fit()
    progress = load_checkpoint(one.run.last)["progress"]
    assert progress["step"] == 3
    assert progress["steps_in_epoch"] > 0
    torch.manual_seed(99)
    assert_same(finish(settings, one.run.path), straight)


def _refine_and_die_in_a_write(settings: list[str], out: Path, which: int) -> None:
    """Ends the process in the midst of the `which`-th write, with half of it on disk."""
    die_in_a_write(which)
    finish(settings, out)


@pytest.mark.slow
def test_killed_while_a_file_is_written_it_ends_with_the_same_weights(tiny: list[str], tmp_path: Path) -> None:
    settings = [*tiny, *DROPS, "--checkpoint_minutes=0"]
    straight = finish(settings, tmp_path / "straight")
    afresh = multiprocessing.get_context("spawn")  # autograd's threads, of tests before, do not survive a fork
    for which in range(1, 9):
        out = RunFolder(tmp_path / f"killed {which}")
        process = afresh.Process(target=_refine_and_die_in_a_write, args=(settings, out.path, which))
        process.start()
        process.join()
        assert process.exitcode == 9
        assert_same(finish(settings, out.path), straight)
