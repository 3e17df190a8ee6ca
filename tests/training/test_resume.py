"""Runs that are stopped, killed or damaged, and resumed: they end as if they had never been."""

import os
import random
import shutil
import signal
import socket
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from tests.conftest import SMALL
from tests.damage import flipped, refusal
from tests.refusals import refused_call
from tests.training.runs import assert_same_run, interrupted, scripted_validation, trainer, weights
from vicinal.cli.main import main
from vicinal.data import Table, load_table
from vicinal.training import Recipe, Trainer, base_trainer, resume, train
from vicinal.training.checkpoint import load_checkpoint, save_checkpoint
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

PRISM = ["--sample_selection.method=prism", "--sample_selection.noise_rate=0.4", "--sample_selection.warmup_epochs=0"]
MICRO_BATCHES = ["--micro_batch_size=3", "--model.dropout=0.3"]
CENTERS = ["--loss=CenterContrastiveLoss", "--data.noise.random_labels=0.2"]


@pytest.mark.parametrize(
    ("number", "more"),
    [
        # State that is easily forgotten: the batches of a step, the scale of the loss, a second network.
        pytest.param(signal.SIGINT, ["--data.num_workers=1"], marks=pytest.mark.slow),
        pytest.param(
            signal.SIGTERM,
            ["--accumulate_grad_batches=2", "--precision=16-mixed", "--transform.size=32", "--max_grad_norm=0.5",
             "--optimizer.name=sgd"],
            marks=pytest.mark.slow,
        ),
        pytest.param(signal.SIGINT, [*CENTERS, "--sample_selection.method=co-teaching"], marks=pytest.mark.slow),
        (signal.SIGINT, [*MICRO_BATCHES, "--freeze_backbone_epochs=1", "--loss=MarginLoss"]),
        (signal.SIGTERM, [*CENTERS, *PRISM, "--log_every=3"]),
    ],
)  # fmt: skip
def test_a_signal_finishes_the_step_and_saves_the_state(
    small: list[str], tmp_path: Path, number: signal.Signals, more: list[str]
) -> None:
    straight = train(Recipe.load(overrides=[*small, *more]), tmp_path / "straight")
    run = resume(interrupted([*small, *more], tmp_path / "run", 4, number).path)
    assert_same_run(run, straight)
    assert "--log_every=3" not in more or pd.read_csv(run.log)["excluded fraction"].max() > 0


def test_a_run_whose_images_break_while_it_trains_goes_on_when_they_are_back(
    small: list[str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "photos"
    shutil.copytree(photos, images)
    more = [f"--data.source={images}", "--data.on_error=skip", "--data.cache=false", "--data.num_workers=1"]
    settings = Recipe.load(overrides=[*small, *more])
    expected = train(settings, tmp_path / "straight")
    save = base_trainer.save_checkpoint

    def break_images(path: Path, state: dict) -> None:
        save(path, state)
        if path.name == "last.pt":
            for image in images.rglob("*.*"):
                image.write_bytes(b"broken")

    with monkeypatch.context() as patch:
        patch.setattr(base_trainer, "save_checkpoint", break_images)
        with pytest.raises(InputError, match=r"photos/.*: not an image .*it was readable .*; put it back and resume"):
            train(settings, tmp_path / "run")
    shutil.copytree(photos, images, dirs_exist_ok=True)
    assert weights(resume(tmp_path / "run")) == weights(expected)


def _kinds_of_photos(folder: Path, photos: Path) -> Path:
    """A table of the photos with two coarse labels, of three training classes and one to validate with each."""
    frame = load_table(photos).frame
    coarse = [f"kind {int(label[-1]) % 2}" for label in frame["label"]]
    split = ["val" if label in ("class6", "class7") else "train" for label in frame["label"]]
    Table(frame.assign(coarse=coarse, split=split)).save(folder / "kinds.csv")
    return folder / "kinds.csv"


def _foreign_images(folder: Path) -> Path:
    folder.mkdir()
    for number in range(9):
        Image.new("RGB", (20, 24), (20 * number, 90, 200)).save(folder / f"{number}.png")
    return folder


def test_hierarchical_batches_and_noise_are_resumed(small: list[str], photos: Path, tmp_path: Path) -> None:
    foreign = _foreign_images(tmp_path / "foreign")
    more = [f"--data.source={_kinds_of_photos(tmp_path, photos)}", "--coarse_classes_per_batch=2", "--seed=4"]
    more += ["--data.noise.random_labels=0.1", f"--data.noise.foreign={foreign}", "--data.noise.foreign_fraction=0.1"]
    more += ["--data.noise.classes=5"]
    recipe = Recipe.load(overrides=[*small, *more])
    straight = train(recipe, tmp_path / "straight")
    one = trainer([*small, *more], tmp_path / "plan")
    for rows in one._plan():
        kinds = one.images.table.frame["coarse"][rows].to_numpy().reshape(2, 4)
        assert (kinds == kinds[:, :1]).all()
        assert set(kinds[:, 0]) == {"kind 0", "kind 1"}
    run = interrupted([*small, *more], tmp_path / "run", 2)
    assert_same_run(resume(run.path, recipe), straight)
    tables = [Table.from_parquet(each.table).frame for each in (run, straight)]
    assert tables[0].equals(tables[1])
    assert (len(tables[0]), tables[0]["noisy_label"].sum(), tables[0]["noisy_image"].sum()) == (30 + 12, 3, 3)


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    recipe = Recipe.load(overrides=[f"--data.source={photos}", *SMALL])
    return train(recipe, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(finished.path, tmp_path / "run"))


def test_resuming_a_finished_run_changes_nothing_but_settings_of_the_machine(small: list[str], run: RunFolder) -> None:
    before, log = weights(run), run.log.read_text()
    resume(run.path)
    more = [setting for setting in small if "log_every" not in setting]
    resume(run.path, Recipe.load(overrides=[*more, "--checkpoint_minutes=3"]))
    settings = Recipe.load(run.recipe).settings  # those that are not given stay as they were
    assert (settings.log_every, settings.data.num_workers, settings.checkpoint_minutes) == (1, 0, 3)
    assert (weights(run), run.log.read_text()) == (before, log)


def test_what_cannot_be_started_or_resumed(small: list[str], run: RunFolder, tmp_path: Path) -> None:
    recipe = Recipe.load(overrides=small)
    refused_call("holds no run to resume", resume, tmp_path / "none")
    refused_call(r"run exists already; give another --out, or --resume", train, recipe, run.path)
    before = run.recipe.read_bytes()
    for setting in ("--epochs=1", "--validation.patience=3", "--optimizer.lr=0.5", "--seed=3"):
        key = setting.removeprefix("--").partition("=")[0]
        refused_call(rf"{key} = .* differs from the run's own", resume, run.path, Recipe.load(run.recipe, [setting]))
    assert run.recipe.read_bytes() == before
    with run.in_use():
        message = rf"run is in use: process {os.getpid()} on {socket.gethostname()} trains there; wait for it or stop"
        for start in (lambda: resume(run.path), lambda: train(recipe, run.path)):
            refused_call(message, start)
    (run.path / f".{run.table.name}.{'0' * 8}.tmp").touch()
    (run.path / f".{run.model.name}.{'1' * 8}.tmp").mkdir()
    resume(run.path)
    assert not list(run.path.glob(".*.tmp"))
    run.last.write_bytes(run.last.read_bytes()[:1000])
    refused_call(r"last.pt is not a checkpoint", resume, run.path)


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path, weights = tmp_path / "last.pt", torch.arange(5000.0)
    save_checkpoint(path, {"module": {"a": weights, "b": -weights}, "epoch": 3})
    content, numbers, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        path.write_bytes(flipped(content, numbers.randrange(len(content)), numbers.randrange(8)))
        message = refusal(partial(load_checkpoint, path, "module"))
        if message is None:  # the bit was one of padding
            state = load_checkpoint(path, "module")
            assert state["epoch"] == 3
            assert torch.equal(state["module"]["a"], weights)
            assert torch.equal(state["module"]["b"], -weights)
        else:
            assert str(path) in message
            refused += 1
    assert refused > 180


def test_a_run_that_took_no_step_does_not_block_the_next(small: list[str], photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "broken")
    for image in (tmp_path / "broken").rglob("*.png"):
        image.write_bytes(b"broken")
    more = ["--data.cache=false", "--data.fractions={train: 1.0}", "--epochs=1"]
    with pytest.raises(InputError, match=r"png: not an image"):
        train(Recipe.load(overrides=[*small, *more, f"--data.source={tmp_path / 'broken'}"]), tmp_path / "run")
    assert (tmp_path / "run" / "recipe.yaml").exists()
    recipe = Recipe.load(overrides=[*small, *more])
    run = train(recipe, tmp_path / "run")
    assert len(pd.read_csv(run.log)) == 6
    (tmp_path / "mine").mkdir()
    recipe.save(tmp_path / "mine" / "recipe.yaml")  # a recipe alone is not what a run has left
    refused_call("mine exists already", train, recipe, tmp_path / "mine")


def test_images_that_change_before_a_run_is_resumed(small: list[str], photos: Path, tmp_path: Path) -> None:
    """What the run read once is what it goes on with; an image that it cannot read any more is named."""
    mine = shutil.copytree(photos, tmp_path / "photos")
    settings = [*small, f"--data.source={mine}", "--data.cache=false"]
    straight = train(Recipe.load(overrides=settings), tmp_path / "straight")
    run = interrupted(settings, tmp_path / "run", 3)
    image = next(Path(path) for path in Table.from_parquet(run.table).subset("train").paths)
    content = image.read_bytes()
    for change in (lambda: image.write_bytes(content[:60]), image.unlink):
        change()
        refused_call(rf"{image.name}: (broken image|no such file)", resume, run.path)
    image.write_bytes(content)
    assert weights(resume(run.path)) == weights(straight)


def test_a_log_that_was_cut_is_repaired(small: list[str], tmp_path: Path) -> None:
    settings = [*small, "--epochs=3"]
    expected = pd.read_csv(train(Recipe.load(overrides=settings), tmp_path / "straight").log)
    one = trainer(settings, tmp_path / "begun")
    one.start()
    with one.watching():
        one.train_epoch()
        one.finish_epoch()
    one.log.close()
    for kept, steps in ((20, 6), (-1, 8)):
        run = RunFolder(shutil.copytree(one.run.path, tmp_path / str(kept)))
        run.log.write_text(run.log.read_text()[:kept])
        run.metrics.write_bytes(run.metrics.read_bytes() + b"1,2\0\xff")
        log = pd.read_csv(resume(run.path).log)
        assert log["loss"].tolist() == expected["loss"][expected["step"].isin(log["step"])].tolist()
        assert len(log) == steps
        assert pd.read_csv(run.metrics)["epoch"].tolist() == [1, 2, 3]
    run.log.write_text("a,b\n1,2\n")
    refused_call(r"log.csv: not a log of a run \(it has no column step\)", resume, run.path)


def test_a_checkpoint_runs_nobodys_code(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    (tmp_path / "last.pt").write_bytes(pickle.dumps(Evil()))
    refused_call("not a checkpoint", load_checkpoint, tmp_path / "last.pt")
    assert not (tmp_path / "ran").exists()


def test_long_epochs_are_saved_on_the_way(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", "--checkpoint_minutes=0", "--epochs=1")
    saved = []
    one.save = lambda: saved.append(one.progress.step)
    one.fit()
    assert saved == [*range(1, one.progress.step + 1), one.progress.step]  # after each step, and after the epoch


def test_the_scale_of_the_loss_is_continued(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", "--precision=16-mixed", "--transform.size=32")
    one.start()
    one.engine.precision.scaler.load_state_dict({**one.engine.precision.scaler.state_dict(), "scale": 1024.0})
    with one.watching():
        one.train_epoch()
    one.save()
    again = trainer(small, tmp_path / "run", "--precision=16-mixed", "--transform.size=32")
    again.start()
    assert again.engine.precision.scaler.get_scale() == one.engine.precision.scaler.get_scale() == 1024.0


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


def test_settings_of_the_machine_may_change(small: list[str], tmp_path: Path, capsys) -> None:
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
