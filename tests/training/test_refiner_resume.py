"""A refiner's run that is stopped or killed ends with the same weights as one that was not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.training.interruption import interrupt_in_step
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
