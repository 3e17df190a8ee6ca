"""The training loop on a real, tiny problem: what it writes, what it keeps still, and that nothing can disturb it."""

import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.refusals import refused_call
from tests.training.runs import Infinite, copied, interrupted, scripted_validation, trainer, weights
from vicinal.data import Table
from vicinal.losses import Loss, MultiSimilarityLoss
from vicinal.models import Embedder, add_lora
from vicinal.training import Recipe, progress, resume, train
from vicinal.training.checkpoint import load_checkpoint, save_checkpoint
from vicinal.utils.errors import NonFiniteLossError
from vicinal.utils.run_folder import RunFolder, TrainingCost


@pytest.mark.usefixtures("drawn_curves")
def test_a_run_leaves_what_its_folder_promises(small: list[str], tmp_path: Path) -> None:
    run = train(Recipe.load(overrides=small), tmp_path / "run")
    assert Image.open(run.curves).width > 500
    assert {path.name for path in run.path.iterdir()} == {
        "recipe.yaml", "table.parquet", "log.csv", "metrics.csv", "curves.png", "tensorboard", "last.pt", "best.pt",
        "model", "training.json", ".lock",
    }  # fmt: skip
    log, metrics = pd.read_csv(run.log), pd.read_csv(run.metrics)
    assert {"step", "epoch", "loss", "NTXentLoss", "lr backbone", "lr head", "gradient norm", "images/s"} == set(log)
    assert log["step"].tolist() == list(range(1, len(log) + 1))
    assert metrics["epoch"].tolist() == [0, 1, 2]  # before training, and after each epoch
    assert {"recall@1", "recall@4", "mAP@R", "R-precision", "mAP"} < set(metrics)
    model = Embedder.from_pretrained(run.model)
    assert model.recipe["optimizer"]["lr"] == 0.001
    assert model.metrics["val recall@1"] == metrics["recall@1"].max()
    table = Table.from_parquet(run.table)
    assert set(table.splits) == {"train", "val", "test"}


def test_one_seed_fixes_everything(small: list[str], tmp_path: Path) -> None:
    settings = [*small, "--model.dropout=0.3", "--epochs=1"]
    first = train(Recipe.load(overrides=settings), tmp_path / "1")
    torch.manual_seed(99)
    np.random.seed(99)
    with_workers = train(Recipe.load(overrides=[*settings, "--data.num_workers=2"]), tmp_path / "2")
    other = train(Recipe.load(overrides=[*settings, "--seed=1"]), tmp_path / "3")
    assert weights(first) == weights(with_workers)
    assert weights(first) != weights(other)


UNTRAINED = "no epoch had a higher mAP@R than before training: the model is the untrained one"


def test_best_weights_become_the_model_and_each_epoch_says_how_it_goes(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted_validation(monkeypatch, iter([0.1, 0.5, 0.3, 0.5, 0.4]))
    run = train(Recipe.load(overrides=small), tmp_path / "run")
    best = load_checkpoint(run.best)
    assert best["epoch"] == 1
    model = Embedder.from_pretrained(run.model)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, best["module"][f"embedder.{name}"], rtol=0, atol=0)
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("epoch ")]
    losses = pd.read_csv(run.log).groupby(lambda row: row // 3)["loss"].mean()
    for number, (line, score) in enumerate(zip(lines, ("0.5000", "0.3000"), strict=True)):
        pattern = rf"epoch {number + 1}/2: loss (\d\.\d+), mAP@R {score} \(best 0.5000 in epoch 1\), \d+ s left"
        found = re.fullmatch(pattern, line)
        assert found is not None, line
        assert float(found[1]) == pytest.approx(losses[number], abs=1e-4)  # of the log, which is rounded too
    assert UNTRAINED not in said
    train(Recipe.load(overrides=[*small, "--epochs=1"]), tmp_path / "worse")
    assert UNTRAINED in capsys.readouterr().err


def test_patience_ends_a_run_early(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_validation(monkeypatch, iter([0.1, 0.5, 0.4, 0.5, 0.6]))
    one = trainer(small, tmp_path / "run", "--epochs=9", "--validation.patience=2")
    one.fit()
    assert (one.progress.epoch, one.progress.best) == (3, 0.5)  # 0.5 again is not a new best
    more = ["--data.fractions={train: 1.0}", "--epochs=2", "--validation.patience=1", "--validation.train_images=0"]
    alone = trainer(small, tmp_path / "alone", *more)
    alone.fit()
    assert alone.progress.epoch == 2  # without a split val there is nothing to stop by


def test_a_frozen_backbone_stays_and_then_moves(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", "--freeze_backbone_epochs=1")
    before = copied([*one.embedder.backbone.parameters(), *one.embedder.backbone.buffers()])
    head = copied(one.parameter_groups["head"])
    one.start()
    with one.watching():
        one.train_epoch()
        one.finish_epoch()
        after = [*one.embedder.backbone.parameters(), *one.embedder.backbone.buffers()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(head, one.parameter_groups["head"], strict=True))
        one.train_epoch()
        assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_factor_of_zero_keeps_a_part(small: list[str], tmp_path: Path) -> None:
    more = ["--optimizer.lr_factors.backbone=0", "--optimizer.lr_factors.head=0.5", "--optimizer.name=sgd"]
    one = trainer(small, tmp_path / "run", *more)
    before = copied(one.parameter_groups["backbone"])
    one.fit()
    assert all(torch.equal(a, b) for a, b in zip(before, one.parameter_groups["backbone"], strict=True))
    log = pd.read_csv(one.run.log)
    assert (log["lr backbone"] == 0).all()
    assert log["lr head"][0] == 0.0005


@pytest.mark.parametrize(
    ("more", "tolerance"),
    [
        (
            ["--accumulate_grad_batches=2", "--max_grad_norm=0.5", "--freeze_backbone_epochs=1", "--loss=MarginLoss"],
            1e-4,
        ),
        pytest.param(["--precision=bf16-mixed", "--transform.size=32"], 0.2, marks=pytest.mark.slow),
    ],
)
def test_micro_batches_change_memory_only(small: list[str], tmp_path: Path, more: list[str], tolerance: float) -> None:
    settings = [*small, "--model.freeze_batch_norm=statistics", "--optimizer.name=sgd", "--optimizer.lr=0.02", *more]
    settings.append("--transform.scale=[0.2, 1.0]")
    whole = train(Recipe.load(overrides=settings), tmp_path / "whole")
    parts = train(Recipe.load(overrides=[*settings, "--micro_batch_size=3"]), tmp_path / "parts")
    for column in ("loss", "gradient norm"):
        expected, got = (pd.read_csv(run.log)[column] for run in (whole, parts))
        assert got.tolist() == pytest.approx(expected.tolist(), rel=tolerance)
    states = [load_checkpoint(run.last)["module"] for run in (whole, parts)]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=tolerance / 10, msg=name)


def test_no_pass_takes_more_than_a_micro_batch(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", "--micro_batch_size=3", "--epochs=1")
    sizes = []
    one.embedder.backbone.register_forward_pre_hook(lambda _, images: sizes.append(len(images[0])))
    with pytest.warns(UserWarning, match="batch normalization in training sees 3 images at a time and not all 8"):
        one.fit()
    assert set(sizes) == {3, 2}  # in training 3, 3 and 2; the six of the validation split 3 and 3


@pytest.mark.parametrize(("precision", "optimizer"), [("32", "sgd"), ("bf16-mixed", "adam"), ("16-mixed", "adamw")])
def test_every_precision_and_optimizer_trains(small: list[str], tmp_path: Path, precision: str, optimizer: str) -> None:
    settings = [
        *small,
        f"--precision={precision}",
        f"--optimizer.name={optimizer}",
        "--epochs=1",
        "--samples_per_class=0",
    ]
    # In bfloat16 on a CPU, torch 2.15 computes NaN weight gradients now and then for maps of one pixel.
    settings.append("--transform.size=32")
    run = train(Recipe.load(overrides=settings), tmp_path / "run")
    assert np.isfinite(pd.read_csv(run.log)["loss"]).all()
    kinds = {tensor.dtype for tensor in Embedder.from_pretrained(run.model).parameters()}
    assert kinds == {torch.float32}


class _Exploding(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = MultiSimilarityLoss(), 0

    def parts(self, source):
        self.calls += 1
        return {"good": self.inner.parts(source)["MultiSimilarityLoss"] * (1 if self.calls < 3 else torch.nan)}


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_images(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "create_loss", lambda self: _Exploding())
    one = trainer(small, tmp_path / "run")
    with pytest.raises(NonFiniteLossError, match=r"step 3: the loss is not finite \(good = nan\); its images:") as e:
        one.fit()
    assert str(e.value).count(".png") == 8


def test_without_tensorboard_a_run_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    run_log = progress.RunLog(RunFolder(tmp_path), step=0, epoch=0)
    run_log.step(1, 0.5, {"loss": 2.0})
    run_log.close()
    assert (tmp_path / "log.csv").read_text().splitlines()[1].startswith("1,0.5,2")
    assert not (tmp_path / "tensorboard").exists()


def test_training_learns_and_logs_for_watching_say_what_the_files_say(small: list[str], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(Recipe.load(overrides=[*small, "--epochs=6"]), tmp_path / "run")
    log, metrics = pd.read_csv(run.log), pd.read_csv(run.metrics)
    assert log["loss"][-3:].mean() < 0.8 * log["loss"][:3].mean()
    board = EventAccumulator(str(run.tensorboard)).Reload()
    for file, tag, column in ((log, "train/loss", "loss"), (metrics, "val/recall@1", "recall@1")):
        events = board.Scalars(tag)
        assert [event.step for event in events] == file["step"].tolist()
        assert [event.value for event in events] == pytest.approx(file[column].tolist(), rel=1e-4)
    assert (log["images/s"] > 0).all()


@pytest.mark.parametrize("precision", ["32", pytest.param("16-mixed", marks=pytest.mark.slow)])
def test_gradients_that_are_never_finite_stop_the_run(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr("vicinal.training.step_message.MAX_SKIPPED_STEPS", 3)
    one = trainer(small, tmp_path / "run", f"--precision={precision}", "--epochs=9", "--transform.size=32")
    forward = one.embedder.forward
    one.embedder.forward = lambda images: Infinite.apply(forward(images))
    step = 4 if precision == "16-mixed" else 1
    with pytest.raises(NonFiniteLossError, match=rf"step {step}: the gradient is not finite") as error:
        one.fit()
    assert str(error.value).count(".png") == 8


def test_the_time_of_a_resumed_run_is_that_of_its_parts(small: list[str], tmp_path: Path) -> None:
    run = interrupted(small, tmp_path / "run", 2)
    assert TrainingCost.load(run.training) is None
    state = load_checkpoint(run.last)
    assert 0 < state["progress"]["seconds"] < 60
    state["progress"]["seconds"] = 1000.0
    save_checkpoint(run.last, state)
    before = time.monotonic()
    cost = TrainingCost.load(resume(run.path).training)
    assert 1000 < cost.seconds < 1000 + time.monotonic() - before


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["--loss=ProxyAnchorLoss", "--model.pooling=gem", "--model.learned_p=true"], ("backbone", "pooling", "head")),
        (["--freeze_backbone_epochs=1"], ("head",)),
        (["--features=frozen"], ("head",)),
    ],
)
def test_the_parameters_of_the_model_that_were_trained(
    small: list[str], tmp_path: Path, settings: list[str], parts: tuple[str, ...]
) -> None:
    more = [f"--feature_cache={tmp_path / 'cache'}"] if "--features=frozen" in settings else []
    run = train(Recipe.load(overrides=[*small, *settings, *more, "--epochs=1"]), tmp_path / "run")
    groups = Embedder.from_pretrained(run.model).train().parameter_groups()
    cost = TrainingCost.load(run.training)
    assert cost.trained_parameters == sum(each.numel() for part in parts for each in groups[part]) > 0


@pytest.mark.slow
def test_of_a_backbone_with_adapters_they_count_alone(small: list[str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = train(Recipe.load(overrides=[*small, "--fine_tuning.method=lora", "--epochs=1"]), tmp_path / "run")
    model = Embedder.from_pretrained(run.model)
    head = sum(each.numel() for each in model.head.parameters())
    with torch.random.fork_rng():
        add_lora(model)
    adapters = sum(each.numel() for each in model.backbone.parameters() if each.requires_grad)
    cost = TrainingCost.load(run.training)
    assert cost.trained_parameters == head + adapters


def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"seconds": 1, "minutes": 2}'):
        (tmp_path / "training.json").write_text(text)
        refused_call(r"training\.json: damaged", TrainingCost.load, tmp_path / "training.json")
