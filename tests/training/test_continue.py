"""A finished run goes on for more epochs, steps or evaluations."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.training.runs import scripted_validation
from vicinal.cli.main import main
from vicinal.training import Recipe, Trainer, resume, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder


@pytest.mark.parametrize("length", [pytest.param("epochs", marks=pytest.mark.slow), "max_steps"])
def test_a_longer_run_is_that_of_the_new_length(small: list[str], tmp_path: Path, length: str) -> None:
    short, long = {"epochs": (1, 3), "max_steps": (3, 6)}[length]
    settings = [*small, "--schedule.name=constant", *(["--epochs=9"] if length == "max_steps" else [])]
    one = train(Recipe.load(overrides=[*settings, f"--{length}={long}"]), tmp_path / "one")
    two = train(Recipe.load(overrides=[*settings, f"--{length}={short}"]), tmp_path / "two")
    assert main(["train", "--out", str(two.path), "--resume", f"--{length}={long}"]) == 0
    assert getattr(Recipe.load(two.recipe).settings, length) == long
    assert pd.read_csv(two.log)["step"].tolist() == pd.read_csv(one.log)["step"].tolist()
    ours, theirs = (load_checkpoint(run.last, "module")["module"] for run in (one, two))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)


def test_more_patience_continues_a_run_that_stopped_early(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted_validation(monkeypatch, iter([0.1, 0.5, 0.4, 0.6, 0.3]))
    run = train(Recipe.load(overrides=[*small, "--epochs=4", "--validation.patience=1"]), tmp_path / "run")
    assert "stopped early: no mAP@R better than that of epoch 1 within validation.patience" in capsys.readouterr().err
    assert main(["train", "--out", str(run.path), "--resume", "--validation.patience=2"]) == 0
    assert load_checkpoint(run.last)["progress"]["epoch"] == 4
    assert load_checkpoint(run.best)["epoch"] == 3


def test_a_model_that_training_did_not_improve_is_told(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "no epoch had a higher mAP@R than before training: the model is the untrained one"
    scripted_validation(monkeypatch, iter([0.5, 0.4, 0.4, 0.5]))
    for name in ("worse", "better"):
        train(Recipe.load(overrides=[*small, "--epochs=1"]), tmp_path / name)
        assert (told in capsys.readouterr().err) == (name == "worse"), name


def test_settings_of_the_machine_may_change(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe.load(overrides=small)
    one = train(recipe, tmp_path / "one")
    two = RunFolder(tmp_path / "two")
    half = Trainer(recipe, load_training_table(recipe.settings), two)
    half.start()
    with half.watching():
        half.train_epoch()
        half.finish_epoch()
    half.log.close()
    machine = ["--data.num_workers=1", "--data.cache=false", "--log_every=3", "--checkpoint_minutes=0"]
    assert main(["train", "--out", str(two.path), "--resume", *machine]) == 0
    said = "resuming with data.num_workers = 1, data.cache = false, log_every = 3, checkpoint_minutes = 0.0\n"
    assert said in capsys.readouterr().err
    settings = Recipe.load(two.recipe).settings
    assert (settings.data.num_workers, settings.log_every) == (1, 3)
    ours, theirs = (load_checkpoint(run.last, "module")["module"] for run in (one, two))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    steps = [pd.read_csv(run.log)["step"].tolist() for run in (one, two)]
    half_way = len(steps[0]) // 2
    assert steps[1] == steps[0][:half_way] + [s for s in steps[0][half_way:] if s % 3 == 0 or s == steps[0][-1]]


def test_settings_of_the_machine_that_are_not_given_stay(small: list[str], tmp_path: Path) -> None:
    """A command line that starts and restarts a run does not undo what the run was given since."""
    run = train(Recipe.load(overrides=[*small, "--epochs=1", "--data.num_workers=0"]), tmp_path / "run")
    more = [setting for setting in small if "log_every" not in setting]
    resume(run.path, Recipe.load(overrides=[*more, "--epochs=1", "--checkpoint_minutes=3"]))
    settings = Recipe.load(run.recipe).settings
    assert (settings.log_every, settings.data.num_workers, settings.checkpoint_minutes) == (1, 0, 3)


@pytest.mark.slow
def test_nothing_else_may_change(small: list[str], tmp_path: Path) -> None:
    run = train(Recipe.load(overrides=[*small, "--epochs=2"]), tmp_path / "run")
    before = run.recipe.read_bytes()
    for setting in ("--epochs=1", "--validation.patience=3", "--optimizer.lr=0.5", "--seed=3"):
        key = setting.removeprefix("--").partition("=")[0]
        with pytest.raises(InputError, match=rf"{key} = .* differs from the run's own"):
            resume(run.path, Recipe.load(run.recipe, [setting]))
    assert run.recipe.read_bytes() == before
