"""Training a refiner on clusters: that it helps, what it leaves behind, with which losses, and resuming."""

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import ROOT
from tests.training.refiner_runs import RISING, script_validation, trainer
from tests.training.runs import interrupt_in_step
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.evaluation import evaluate
from vicinal.losses import MultiSimilarityLoss, NormSoftmaxLoss, SmoothAPLoss
from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement
from vicinal.training import RefinerRecipe
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.class_centers import read_centers
from vicinal.training.refiner_trainer import RefinerModule
from vicinal.utils.errors import InterruptedRunError, NotBetterError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.refine import resume_refiner, train_refiner

PAPER_RECIPE = ROOT / "recipes" / "bases" / "context_refiner" / "refiner.yaml"


@pytest.fixture(scope="module")
def run(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_refiner(RefinerRecipe.load(overrides=tiny), tmp_path_factory.mktemp("runs") / "run")


def test_a_run_leaves_what_its_folder_promises(run: RunFolder) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        "recipe.yaml", "embeddings.parquet", "log.csv", "metrics.csv", "curves.png", "depths.png", "tensorboard",
        "last.pt", "best.pt", "model", "training.json", ".lock",
    }  # fmt: skip
    log, metrics = pd.read_csv(run.log), pd.read_csv(run.metrics)
    assert {"step", "epoch", "loss", "SmoothAPLoss", "lr refiner", "lr scalars", "gradient norm", "images/s"} == set(
        log
    )
    assert log["step"].tolist() == list(range(1, len(log) + 1))
    assert metrics["epoch"].tolist() == [0, 1, 2, 3]  # before training, and after each epoch
    with Image.open(run.depths) as opened:
        assert min(opened.size) > 100


def test_it_is_better_on_classes_it_never_saw_and_says_so(run: RunFolder) -> None:
    metrics, refiner = pd.read_csv(run.metrics), ContextRefiner.from_pretrained(run.model)
    assert metrics["mAP@R"].max() > metrics["mAP@R"][0] + 0.01
    best = metrics["mAP@R"].idxmax()
    for name in ("recall@1", "mAP@R"):
        assert refiner.metrics[f"val {name}"] == pytest.approx(metrics[name][best], rel=1e-5)
        assert refiner.metrics[f"val {name}, not refined"] == pytest.approx(metrics[name][0], rel=1e-5)
    assert (refiner.dim, refiner.depth, refiner.num_heads, refiner.neighbors) == (16, 2, 2, 6)
    assert refiner.model_fingerprint == "abc"
    assert refiner.recipe["optimizer"]["lr"] == 0.01
    vectors, table = load_embeddings(run.embeddings)
    of_val = (table.frame["split"] == "val").to_numpy()
    plain, refined = (
        evaluate(vectors[of_val], table.take(of_val), rerank=method).metrics for method in (None, Refinement(refiner))
    )
    assert plain["mAP@R"] == pytest.approx(metrics["mAP@R"][0], rel=1e-5)  # a new refiner is the identity
    assert refined == pytest.approx({name: refiner.metrics[f"val {name}"] for name in refined}, rel=1e-6)


def test_a_refiner_that_does_not_help_is_not_written(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    script_validation(monkeypatch, [0.5, 0.4, 0.45, 0.5])
    one = trainer(tiny, tmp_path / "run", "--loss=ProxyAnchorLoss")
    message = (
        r"unseen classes: no epoch had a higher mAP@R than the \d+\.\d\d% of the embeddings themselves; no refiner was"
    )
    with pytest.raises(NotBetterError, match=message):
        one.fit()
    assert not one.run.model.exists()
    assert not one.run.centers.exists()
    assert len(pd.read_csv(one.run.metrics)) == 4
    assert one.run.curves.exists()
    with pytest.raises(NotBetterError, match=message):  # nor does going on make it one
        resume_refiner(one.run.path)
    assert not one.run.model.exists()


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (["--loss=MarginLoss"], {"beta": [1]}),
        (["--loss=ProxyAnchorLoss", "--optimizer.loss_weight_decay=0"], {"centers": [16, 16]}),
        (["--loss=CenterContrastiveLoss"], {"centers": [16, 16]}),
        (["--loss=MultiSimilarityLoss", "--loss.plus_one=false", "--loss.miner=null"], {}),
    ],
)
def test_any_loss_trains(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: list[str], shapes: dict[str, list[int]]
) -> None:
    script_validation(monkeypatch, RISING)
    one = trainer(tiny, tmp_path / "run", *loss, "--epochs=1")
    assert {name: list(parameter.shape) for name, parameter in one.loss.named_parameters()} == shapes
    before = {name: value.clone() for name, value in one.module.state_dict().items()}
    one.fit()
    # In the first step the fourth matrix of a block is 0 and hides the other three.
    still = [name for name, value in one.module.state_dict().items() if torch.equal(value, before[name])]
    assert still == []
    log = pd.read_csv(one.run.log)
    assert np.isfinite(log["loss"]).all()
    assert ("lr loss" in log) == bool(shapes)
    assert one.run.centers.exists() == ("centers" in shapes)
    if one.run.centers.exists():
        saved = read_centers(one.run.centers)
        assert saved.classes == [str(label) for label in range(16)]
        assert {name: list(tensor.shape) for name, tensor in saved.tensors.items()} == {"centers": [16, 1, 16]}


def test_the_default_loss_and_that_of_the_paper(tiny: list[str]) -> None:
    assert isinstance(RefinerRecipe.load(overrides=tiny).create_loss(), SmoothAPLoss)
    assert RefinerRecipe.load(overrides=[*tiny, "--loss.temperature=0.05"]).create_loss().temperature == 0.05
    eq_4 = RefinerRecipe.load(PAPER_RECIPE, tiny).create_loss()
    assert isinstance(eq_4, MultiSimilarityLoss)
    assert (eq_4.base, eq_4.plus_one, eq_4.miner) == (0.5, False, None)


def test_label_smoothing_of_a_softmax_is_its_own_in_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all orders of four labels, each of another class."""
    torch.manual_seed(0)
    refiner, batch = ContextRefiner(8, depth=1), {"labels": torch.arange(4), "mask": torch.ones(4, 3, dtype=torch.bool)}
    batch |= {"embeddings": F.normalize(torch.randn(4, 8)), "context": F.normalize(torch.randn(4, 3, 8), dim=2)}
    plain, smooth = NormSoftmaxLoss(4, 8), NormSoftmaxLoss(4, 8, label_smoothing=0.3 * 3 / 4)
    smooth.load_state_dict(plain.state_dict())
    module, values = RefinerModule(refiner, plain, label_smoothing=0.3), []
    for order in itertools.permutations(range(4)):
        monkeypatch.setattr(torch, "randperm", lambda n, order=order: torch.tensor(order))
        values.append(sum(module(**batch).values()).item())
    assert np.mean(values) == pytest.approx(smooth(batch["embeddings"], batch["labels"]).item(), rel=1e-5)
    assert max(values) > min(values) + 0.01


def test_the_last_weights_are_kept_whatever_they_bring(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    script_validation(monkeypatch, [0.9, 0.5, 0.4, 0.3, 0.2])
    one = trainer(tiny, tmp_path / "run", "--keep=last", "--validation.patience=1")
    one.fit()
    last = load_checkpoint(one.run.last)
    assert last["progress"]["epoch"] == 3
    saved = ContextRefiner.from_pretrained(one.run.model)
    assert all(torch.equal(each, last["module"][f"refiner.{name}"]) for name, each in saved.state_dict().items())
    assert saved.metrics["val mAP@R"] == 0.2
    assert one.run.depths.exists()


def test_the_protocol_of_the_paper_trains_on_all_classes_and_always_writes(tiny: list[str], tmp_path: Path) -> None:
    vectors, table = load_embeddings(tiny[0].partition("=")[2])
    save_embeddings(tmp_path / "all.parquet", vectors, Table(table.frame.drop(columns="split")))
    more = [f"--embeddings={tmp_path / 'all.parquet'}", "--epochs=1", "--batch_size=32", "--accelerator=cpu"]
    run = train_refiner(RefinerRecipe.load(PAPER_RECIPE, [*more, "--refiner.depth=2"]), tmp_path / "run")
    saved = ContextRefiner.from_pretrained(run.model)
    assert saved.metrics == {}
    assert not run.metrics.exists()
    assert sum(each.numel() for each in saved.parameters()) == 2 * 6 * 16**2  # 12.6 million at 512 dimensions, depth 8
    assert load_embeddings(run.embeddings)[1].splits == ["train"]
    state = (run.model / "model.safetensors").read_bytes()
    assert (resume_refiner(run.path).model / "model.safetensors").read_bytes() == state


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
