"""Runs that end after a number of steps, and everything that depends on the number of steps."""

import math
import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.training.runs import trainer, weights
from vicinal.data import Table
from vicinal.training import Recipe, RefinerRecipe, Trainer, resume, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.progress import Progress, ProgressDisplay, RunLength, fit_epochs
from vicinal.utils.errors import InputError, InterruptedRunError
from vicinal.utils.run_folder import RunFolder

FIVE_STEPS = ["--epochs=null", "--max_steps=5", "--steps_per_epoch=3"]


@pytest.mark.parametrize(("steps_per_epoch", "num_classes", "epochs"), [
    (32, 584, 4), (18, 31, 4), (2, 30, 15),
    (1, 6, 6), (2, 12, 6), (1, 3, 4),  # a step for each class, and epochs are not left out
    (18, 6, 1), (18, 12, 2),  # two steps for each class
    (1000, 100, 4), (18, None, 4), (2, None, 15),
])  # fmt: skip
def test_the_default_number_of_epochs(steps_per_epoch: int, num_classes: int | None, epochs: int) -> None:
    assert fit_epochs(steps_per_epoch, num_classes) == epochs


@pytest.mark.parametrize(("flags", "epochs"), [
    (["--model.pretrained=true"], 1), (["--model.pretrained=false"], 4),
    (["--model.pretrained=true", "--freeze_backbone_epochs=1"], 4),
    (["--model.pretrained=true", "--sample_selection.method=prism"], 4),
    (["--model.pretrained=true", "--head_init=random"], 4),
    (["--model.pretrained=true", "--features=frozen"], 4),
])  # fmt: skip
def test_few_classes_shorten_runs_from_pretrained_weights(flags: list[str], epochs: int) -> None:
    recipe = Recipe.load(overrides=["--model.backbone=test_resnet", *flags])
    table = Table(pd.DataFrame({"label": 70 * list("abcdef")}))
    assert recipe.fitted(table).settings.epochs == epochs


def test_epochs_of_other_numbers_of_steps_end_where_they_should() -> None:
    """As with exhaustive sampling: 4, 6 and 5 steps."""
    length, progress, found = RunLength(3, None), Progress(), []
    for steps in (4, 6, 5):
        for _ in range(steps):
            found.append(progress.step / length.num_steps(progress, steps))
            progress.count_step()
        progress.count_epoch()
    assert found == sorted(found)
    assert found[-1] == 14 / 15


def test_a_run_of_steps(small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(Recipe.load(overrides=[*small, *FIVE_STEPS]), tmp_path / "run")
    log, metrics = pd.read_csv(run.log), pd.read_csv(run.metrics)
    assert log["step"].tolist() == [1, 2, 3, 4, 5]
    assert log["epoch"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3], rel=1e-4)
    cosine = [0.0005 * (1 + math.cos(math.pi * step / 5)) for step in range(5)]
    assert log["lr backbone"].tolist() == pytest.approx(cosine, rel=1e-4)
    assert metrics[["step", "epoch"]].to_numpy().tolist() == [[0, 0], [3, 1], [5, 2]]  # the last is cut short
    lines = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert lines == ["epoch 1, step 3/5", "epoch 2, step 5/5"]


def test_epochs_that_end_before_the_steps_are_mentioned(small: list[str], tmp_path: Path, capsys) -> None:
    run = train(Recipe.load(overrides=[*small, "--epochs=1", "--max_steps=50"]), tmp_path / "run")
    assert len(pd.read_csv(run.log)) == 3
    text = capsys.readouterr().err
    assert "epochs = 1 ends the run at step 3, before max_steps = 50; epochs: null removes this limit" in text
    assert "\nepoch 1/1, step 3/50: loss" in text


@pytest.mark.parametrize("sampling", ["by_size", "uniform", "exhaustive"])
def test_steps_per_epoch_count_steps_of_the_optimizer(small: list[str], tmp_path: Path, sampling: str) -> None:
    more = ["--accumulate_grad_batches=2", "--steps_per_epoch=4", f"--class_sampling={sampling}", "--epochs=1"]
    one = trainer(small, tmp_path / "run", *more)
    assert len(one._plan()) == 8
    assert one.sampler.class_sampling == sampling
    one.fit()
    assert one.progress.step == 4
    assert trainer(small, tmp_path / "all", *more[:2], "--samples_per_class=0").sampler.num_batches == 8


ONE_CYCLE = ["--schedule.name=one_cycle", "--schedule.pct_start=0.6", "--schedule.momentum_range=[0.85,0.95]"]


def test_a_run_of_steps_that_is_stopped_anywhere_is_resumed_as_if_never_stopped(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*FIVE_STEPS, *ONE_CYCLE, "--class_sampling=exhaustive", "--max_grad_value=0.01", "--max_grad_norm=0.05"]
    more += ["--optimizer.eps=1", "--validation.train_images=10", "--validation.metric=recall@3"]
    recipe = Recipe.load(overrides=[*small, *more])
    straight = train(recipe, tmp_path / "straight")
    step = Trainer.train_step

    def interrupted_step(self: Trainer, *arguments, **more) -> None:
        step(self, *arguments, **more)
        if self.progress.step in (3, 4, 5):  # at the end of an epoch, within one, and at the end of the run
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", interrupted_step)
    run = RunFolder(tmp_path / "run")
    for number in (3, 4, 5):
        with pytest.raises(InterruptedRunError, match=f"stopped after step {number}"):
            resume(run.path, recipe)
    resume(run.path, recipe)
    assert weights(run) == weights(straight)
    assert pd.read_csv(run.metrics).equals(pd.read_csv(straight.metrics))
    columns = ["step", "epoch", "loss", "lr head", "gradient norm"]
    assert pd.read_csv(run.log)[columns].equals(pd.read_csv(straight.log)[columns])
    assert load_checkpoint(run.last)["optimizer"]["param_groups"][0]["betas"] == (pytest.approx(0.95), 0.999)


def test_one_cycle_changes_the_momentum_of_every_part(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", *FIVE_STEPS, *ONE_CYCLE, "--optimizer.name=sgd")
    found, step = [], one.engine.step

    def recorded_step() -> None:
        found.append({(group["lr"], group["momentum"]) for group in one.engine.optimizer.param_groups})
        step()

    one.engine.step = recorded_step
    one.fit()
    assert all(len(each) == 1 for each in found)  # no factors, so all parts are alike
    rates, momenta = zip(*(each.pop() for each in found), strict=True)
    assert rates == pytest.approx([0.001 / 25, 0.00052, 0.001, 0.0005, 0.001 / 25e4], abs=1e-8)
    assert momenta == pytest.approx([0.95, 0.9, 0.85, 0.9, 0.95])


def test_a_run_without_a_length_has_enough_steps_of_the_optimizer(small: list[str], tmp_path: Path) -> None:
    settings = [each for each in small if not each.startswith("--epochs")]
    for more, epochs in (([], 10), (["--accumulate_grad_batches=3"], 30), (["--steps_per_epoch=50"], 4)):
        one = trainer(settings, tmp_path / str(epochs), *more)
        assert (one.length.epochs, one.fitted_recipe.settings.epochs) == (epochs, epochs)


def test_a_refiner_needs_a_length() -> None:
    with pytest.raises(InputError, match="epochs = null must be a number without max_steps"):
        RefinerRecipe.load(overrides=["--embeddings=e.parquet", "--epochs=null"])


def test_a_resumed_run_needs_a_length(tmp_path: Path) -> None:
    words = ["--data.source=digits", "--epochs=null"]
    Recipe.load(overrides=[*words, "--max_steps=5"]).save(tmp_path / "recipe.yaml")
    with pytest.raises(InputError, match="epochs = null must be a number without max_steps"):
        Recipe.of_run(tmp_path / "recipe.yaml", Recipe.load(overrides=words))


def steps(small: list[str], out: Path, *more: str) -> pd.DataFrame:
    run = train(Recipe.load(overrides=[*small, "--epochs=3", "--schedule.name=cosine", *more]), out)
    assert run.model.is_dir()
    return pd.read_csv(run.log).drop(columns="images/s")


def test_the_schedule_goes_on_but_the_run_ends(small: list[str], tmp_path: Path) -> None:
    whole, stopped = steps(small, tmp_path / "whole"), steps(small, tmp_path / "stopped", "--stop_epoch=2")
    assert 0 < len(stopped) < len(whole)
    pd.testing.assert_frame_equal(stopped, whole.head(len(stopped)))
    resume(tmp_path / "stopped")
    assert len(pd.read_csv(tmp_path / "stopped" / "log.csv")) == len(stopped)


@pytest.mark.parametrize(
    ("seconds", "epoch_at", "expected"),
    [(3.0, None, ["about 24 min 0 s for 480 more steps"]), (0.01, None, []), (3.0, 5, [])],
)
def test_the_time_of_a_run_is_said_after_its_first_steps_unless_an_epoch_has_said_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    epoch_at: int | None,
    expected: list[str],
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    display = ProgressDisplay(RunLength(10, None), "mAP@R", progress)
    with display.bar():
        for number in range(40):
            now += seconds + 100 * (number == 0)  # the first step compiles kernels and starts processes
            progress.count_step()
            display.step(progress, 0.5, num_steps=500)
            if number == epoch_at:
                progress.count_epoch()
                display.epoch(progress)
    lines = [line for line in capsys.readouterr().err.splitlines() if "more steps" in line]
    assert [line.partition(", ")[0] for line in lines] == expected


def test_the_time_that_is_left_is_that_of_epochs_and_not_of_what_comes_once_before(monkeypatch, capsys) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    display = ProgressDisplay(RunLength(10, None), "mAP@R", progress)
    with display.bar():
        now += 1000  # of frozen features
        for _ in range(2):
            display.start(progress, num_steps=10)
            progress.count_step()
            display.step(progress, 0.5, num_steps=10)
            now += 3
            progress.count_epoch()
            display.epoch(progress)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == ["27 s left", "24 s left"]


def test_a_run_trains_at_the_rate_that_is_chosen_for_many_classes(
    small: list[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("vicinal.training.recipes.recipe.MANY_CLASSES", 3)
    settings = [each for each in small if not each.startswith("--optimizer.lr")]
    run = train(Recipe.load(overrides=[*settings, "--schedule.name=constant"]), tmp_path / "run")
    assert Recipe.load(run.recipe).settings.optimizer.lr == 3e-4
    assert set(pd.read_csv(run.log)["lr backbone"]) == {3e-4}
