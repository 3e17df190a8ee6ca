"""Training a refiner on clusters: that it helps, what it leaves behind, what it is shown, and going on."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import ROOT
from tests.training.interruption import interrupt_in_step
from tests.training.test_trainer import die_in_a_write
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.evaluation import evaluate
from vicinal.losses import MultiSimilarityLoss, NormSoftmaxLoss, SmoothAPLoss
from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement
from vicinal.training import RefinerRecipe, RefinerTrainer, refiner_validation
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.class_centers import read_centers
from vicinal.training.refiner_noise import noise_factor
from vicinal.training.refiner_trainer import LOWEST_GAIN, RefinerModule
from vicinal.utils.errors import InputError, InterruptedRunError, NotBetterError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.refine import resume_refiner, train_refiner

PAPER_RECIPE = ROOT / "recipes" / "bases" / "context_refiner" / "refiner.yaml"
TINY = [
    "--refiner.depth=2",
    "--refiner.num_heads=2",
    "--refiner.neighbors=6",
    "--batch_size=32",
    "--epochs=3",
    "--optimizer.lr=0.01",
    "--log_every=1",
    "--optimizer.lr_factors.scalars=1",
    "--augmentation.noise=0",
    "--augmentation.class_sizes=null",
    "--guardrail_metrics=[]",
    "--accelerator=cpu",
]
CLASSES = {"train": 16, "val": 8, "test": 4}
CLUSTERS = Table(pd.DataFrame({"split": np.repeat(list(CLASSES), [8 * n for n in CLASSES.values()])}))


def save_clusters(path: Path, val_noise: float = 0.25, splits: bool = True) -> Path:
    """Eight embeddings a class, in 16 dimensions: the classes differ in four of them, all else is noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(sum(CLASSES.values())), 8)
    means = rng.normal(size=(len(labels) // 8, 4))
    vectors = rng.normal(size=(len(labels), 16))
    vectors *= np.where(CLUSTERS.frame["split"] == "val", val_noise, 0.25)[:, None]
    vectors[:, :4] += (means / np.linalg.norm(means, axis=1, keepdims=True))[labels]
    rows = rng.permutation(len(labels))  # a split is not a stretch of rows
    frame = CLUSTERS.frame if splits else CLUSTERS.frame[[]]
    table = Table(frame.assign(label=labels).iloc[rows].reset_index(drop=True))
    save_embeddings(path, vectors[rows].astype(np.float32), table, "abc")
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a refiner that is trained in a second and helps."""
    return [f"--embeddings={save_clusters(tmp_path_factory.mktemp('clusters') / 'e.parquet')}", *TINY]


@pytest.fixture(scope="module")
def run(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run."""
    return train_refiner(RefinerRecipe.load(overrides=tiny), tmp_path_factory.mktemp("runs") / "run")


def trainer(settings: list[str], out: Path, *more: str) -> RefinerTrainer:
    recipe = RefinerRecipe.load(overrides=[*settings, *more])
    return RefinerTrainer(recipe, *load_embeddings(str(recipe.settings.embeddings)), "abc", RunFolder(out))


def first_batch(one: RefinerTrainer) -> dict[str, torch.Tensor]:
    return next(iter(one._load_batches(one._plan(), 0)))


def move(one: RefinerTrainer) -> None:
    """Make the refiner something else than the identity."""
    for block in one.refiner.blocks:
        torch.nn.init.normal_(block.output, std=0.3)
        torch.nn.init.ones_(block.gate)


def script_validation(monkeypatch: pytest.MonkeyPatch, scores: Iterable[float]) -> None:
    """Let mAP@R on the validation split be so, whatever the refiner does, and no chance."""
    scripted, judge = iter(scores), RefinerTrainer._evaluate
    monkeypatch.setattr(RefinerTrainer, "_evaluate", lambda self: {**judge(self), "mAP@R": next(scripted)})
    monkeypatch.setattr(refiner_validation, "mean_of_classes", lambda *given: (1.0, 0.0))


RISING = [0.1 * n for n in range(1, 10)]


def test_any_metric_can_decide_and_guard(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--validation.metric=recall@7", "--guardrail_metrics=[precision@3, MRR]")
    one.start()
    one.validate()
    metrics = pd.read_csv(one.run.metrics)
    assert {"recall@1", "mAP@R", "recall@7", "precision@3", "MRR"} < set(metrics)
    assert metrics["precision@3"][0] == pytest.approx(one.validation.before.metrics["precision@3"], abs=1e-5)
    with pytest.raises(InputError, match=r"guardrail_metrics = recall@0: recall@0 is impossible"):
        trainer(tiny, tmp_path / "run", "--guardrail_metrics=[recall@0]")


# What comes of it ---------------------------------------------------------------------------------------------------


def test_a_run_leaves_what_its_folder_promises(run: RunFolder) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        "recipe.yaml", "embeddings.parquet", "log.csv", "metrics.csv", "curves.png", "depths.png", "tensorboard",
        "last.pt", "best.pt", "model", "training.json", ".lock",
    }  # fmt: skip
    log, metrics = pd.read_csv(run.log), pd.read_csv(run.metrics)
    assert {
        "step",
        "epoch",
        "loss",
        "SmoothAPLoss",
        "lr refiner",
        "lr scalars",
        "gradient norm",
        "images/s",
    } == set(log)
    assert log["step"].tolist() == list(range(1, len(log) + 1))
    assert metrics["epoch"].tolist() == [0, 1, 2, 3]  # before training, and after each epoch
    for picture in (run.curves, run.depths):
        with Image.open(picture) as opened:
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


def test_best_weights_become_the_model(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_validation(monkeypatch, [0.1, 0.5, 0.3, 0.4])
    one = trainer(tiny, tmp_path / "run")
    one.fit()
    best, last = load_checkpoint(one.run.best), load_checkpoint(one.run.last)
    assert best["epoch"] == 1
    for name, tensor in ContextRefiner.from_pretrained(one.run.model).state_dict().items():
        assert torch.equal(tensor, best["module"][f"refiner.{name}"])
        assert not torch.equal(tensor, last["module"][f"refiner.{name}"])


def test_a_refiner_that_does_not_help_is_not_written(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_validation(monkeypatch, [0.5, 0.4, 0.45, 0.5])
    one = trainer(tiny, tmp_path / "run", "--loss=ProxyAnchorLoss")
    message = (
        r"trained on: no epoch had a higher mAP@R than the \d+\.\d\d% of the embeddings themselves; no refiner was"
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


def test_patience_ends_a_run_early(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_validation(monkeypatch, [0.1, 0.5, 0.4, 0.5, 0.6])
    one = trainer(tiny, tmp_path / "run", "--epochs=9", "--validation.patience=2")
    one.fit()
    assert (one.progress.epoch, one.progress.best_epoch) == (3, 1)


# What it is shown ---------------------------------------------------------------------------------------------------


def test_the_context_is_the_nearest_of_the_training_split_without_itself(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    vectors, table = load_embeddings(str(one.settings.embeddings))
    training = vectors[table.frame["split"] == "train"].astype(np.float64)
    training /= np.linalg.norm(training, axis=1, keepdims=True)
    np.testing.assert_allclose(one.context.embeddings, training, atol=1e-6)
    scores = training @ training.T
    np.fill_diagonal(scores, -np.inf)
    assert one.context.neighbors.tolist() == np.argsort(-scores, axis=1)[:, :6].tolist()
    batch = first_batch(one)
    rows = batch["rows"]
    assert torch.equal(batch["embeddings"], one.context.embeddings[rows])
    assert torch.equal(batch["context"], one.context.embeddings[one.context.neighbors[rows]])
    assert batch["mask"].all()
    labels = table.frame["label"][table.frame["split"] == "train"].to_numpy()
    assert batch["labels"].tolist() == labels[rows].tolist()  # the training classes are 0, 1, ...
    assert np.bincount(batch["labels"])[batch["labels"]].tolist() == [4] * 32
    assert one._sample_name(3) == f"row {one.rows[3]} of embeddings.parquet"


def shown(one: RefinerTrainer, number: int) -> torch.Tensor:
    """Which neighbors a batch of this number shows, if it is one of all samples."""
    plan = [list(range(len(one.context.embeddings)))] * (number + 1)
    return next(iter(one._load_batches(plan, number)))["mask"]


def test_neighbors_are_left_out_as_often_as_asked_for(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.neighbor_dropout=0.3")
    first = [shown(one, number) for number in range(20)]
    fraction = torch.stack(first).float().mean(dim=(0, 1))  # of 2,560 each
    assert fraction.tolist() == pytest.approx([0.7] * 6, abs=0.04)
    torch.manual_seed(99)
    assert torch.equal(first[3], shown(one, 3))
    assert not torch.equal(first[3], first[4])
    one.progress.epoch = 1
    assert not torch.equal(first[3], shown(one, 3))


def test_a_random_size_shows_the_nearest_first(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.random_num_neighbors=true")
    sizes = []
    for number in range(60):
        mask = shown(one, number)
        size = int(mask[0].sum())
        assert torch.equal(mask, torch.arange(6).expand_as(mask) < size)
        sizes.append(size)
    assert set(sizes) == {1, 2, 3, 4, 5, 6}


def test_a_neighbor_that_is_left_out_is_not_looked_at(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    move(one)
    batch = first_batch(one)

    def loss(mask: torch.Tensor) -> float:
        return sum(one._loss_terms({**batch, "mask": mask}).values()).item()

    whole, none = batch["mask"], torch.zeros_like(batch["mask"])
    unrefined = one.loss(batch["embeddings"], batch["labels"]).item()
    assert loss(none) == pytest.approx(unrefined, rel=1e-5)
    assert loss(whole) != pytest.approx(unrefined, rel=1e-2)
    only_the_first = torch.arange(6).expand_as(whole) < 1
    kept = {name: batch[name][:, :1] for name in ("context", "mask")}
    assert loss(only_the_first) == pytest.approx(sum(one._loss_terms({**batch, **kept}).values()).item(), rel=1e-5)


def test_blocks_without_neighbors_look_at_the_embedding_itself(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_validation(monkeypatch, RISING)
    one = trainer(tiny, tmp_path / "run", "--refiner.context=self", "--refiner.neighbors=0")
    assert one.context.neighbors.tolist() == [[row] for row in range(len(one.context.embeddings))]
    one.fit()
    assert pd.read_csv(one.run.log)["gradient norm"].min() > 0
    assert ContextRefiner.from_pretrained(one.run.model).context == "self"


# Losses -------------------------------------------------------------------------------------------------------------


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


def test_a_factor_of_zero_keeps_the_refiner(tiny: list[str], tmp_path: Path) -> None:
    more = [
        "--optimizer.lr_factors.refiner=0",
        "--optimizer.lr_factors.scalars=0",
        "--loss=MarginLoss",
        "--optimizer.lr_factors.loss=0.5",
        "--epochs=1",
    ]
    one = trainer(tiny, tmp_path / "run", *more)
    with pytest.raises(NotBetterError):
        one.fit()
    log = pd.read_csv(one.run.log)
    assert (log["lr refiner"] == 0).all()
    assert (log["lr loss"][1:] > 0).all()
    assert all(block.query.equal(torch.eye(32, 16)[:16]) for block in one.refiner.blocks)
    assert all(block.gate == 0 for block in one.refiner.blocks)


# Stopping and resuming ----------------------------------------------------------------------------------------------

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
        DROPS,
        [
            *DROPS,
            "--accumulate_grad_batches=2",
            "--max_grad_norm=0.5",
            "--loss=MarginLoss",
            "--optimizer.name=sgd",
            "--precision=16-mixed",
        ],
        ["--loss=ProxyAnchorLoss", "--samples_per_class=0", "--refiner.context=self"],
        ["--augmentation.noise=0.5", "--augmentation.class_sizes=[2,5]", "--refiner.mlp_ratio=1"],
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


# What is worth keeping ------------------------------------------------------------------------------------------------


def script_gains(monkeypatch: pytest.MonkeyPatch, scores: list[float], lowest: Callable[[float], float]) -> None:
    """Let mAP@R be so after each epoch, and the lowest gain a function of the gate of the first block."""
    measure = RefinerTrainer._validation_metrics

    def scripted(self: RefinerTrainer) -> dict[str, float]:
        gate = self.refiner.blocks[0].gate.item()
        return {**measure(self), "mAP@R": scores[self.progress.epoch], LOWEST_GAIN: lowest(gate)}

    monkeypatch.setattr(RefinerTrainer, "_validation_metrics", scripted)
    monkeypatch.setattr(refiner_validation, "mean_of_classes", lambda *given: (1.0, 0.0))


def test_epochs_that_lose_what_must_not_be_lost_do_not_count(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    one = trainer(tiny, tmp_path / "run", "--update_factors=[1]")
    lowest = {0: 0.0, 1: -0.6, 2: -0.4, 3: 0.0}
    script_gains(monkeypatch, [0.1, 0.9, 0.8, 0.3], lambda _: lowest[one.progress.epoch])
    one.fit()
    assert one.progress.best_epoch == 2  # not the first, whose mAP@R is best, and not the last


def test_the_largest_updates_that_lose_nothing_are_kept(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    one = trainer(tiny, tmp_path / "run", "--update_factors=[1,0.5,0.25]")
    weights = {0: 0.0}

    def lowest(gate: float) -> float:
        """Updates of more than half of what was trained lose something."""
        trained = weights.setdefault(one.progress.epoch, gate)
        return 0.0 if abs(gate) <= 0.6 * abs(trained) or not trained else -3.0

    script_gains(monkeypatch, [0.1, 0.5, 0.9, 0.3], lowest)
    one.fit()
    assert pd.read_csv(one.run.metrics)["update factor"].tolist() == [1.0, 0.5, 0.5, 0.5]
    saved, best = ContextRefiner.from_pretrained(one.run.model), load_checkpoint(one.run.best)["module"]
    assert saved.metrics["val update factor"] == 0.5
    assert best["refiner.blocks.0.gate"].item() == weights[2]  # trying a factor changes nothing
    for name, weight in saved.state_dict().items():
        factor = 0.5 if name.endswith("gate") else 1.0
        assert torch.equal(weight, factor * best[f"refiner.{name}"]), name
    assert one.progress.best_epoch == 2


def test_gains_are_in_standard_errors_over_the_classes(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--guardrail_metrics=[recall@1,mAP@R]", "--guardrail_class_sizes=[4]")
    move(one)
    metrics, gains = one._validation_metrics(), [0.0]
    for part in (one.validation, one.guardrails[4]):
        after = part.after()
        for name in ("recall@1", "mAP@R"):
            changes = pd.Series(after.per_query[name] - part.before.per_query[name]).groupby(after.labels).mean()
            gains.append(changes.mean() / (changes.std() / np.sqrt(8)))
    assert metrics[LOWEST_GAIN] == pytest.approx(min(gains))
    assert min(gains) < 0


def test_a_gain_that_may_be_chance_is_none(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(refiner_validation, "mean_of_classes", lambda *given: (0.03, 0.02))
    with pytest.raises(
        NotBetterError,
        match=r"not help significantly .* 3.00 \+- 2.00 points \(mean of 8 cl",
    ):
        trainer(tiny, tmp_path / "run").fit()
    assert not (tmp_path / "run" / "model").exists()
    assert (tmp_path / "run" / "curves.png").exists()


def test_mean_of_classes() -> None:
    values, labels = np.array([1.0, 3.0, np.nan, 5.0, 6.0]), np.array([0, 0, 1, 2, 2])
    mean, error = refiner_validation.mean_of_classes(values, labels)
    assert (mean, error) == pytest.approx((3.75, 3.5 / 2))  # of 2 and 5.5; class 1 does not count
    assert refiner_validation.mean_of_classes(values[:2], labels[:2]) == (2.0, np.inf)


def test_noise_has_the_wanted_length_and_is_that_of_the_batch(tiny: list[str], tmp_path: Path) -> None:
    isotropic = ["--augmentation.noise_per=neighbor", "--augmentation.noise_covariance=isotropic"]
    plain, noisy, again = (
        first_batch(trainer(tiny, tmp_path / name, f"--augmentation.noise={noise}", *isotropic))
        for name, noise in (("a", 0), ("b", 0.5), ("c", 0.5))
    )
    for part in ("embeddings", "context"):
        assert torch.equal(noisy[part], again[part])
        torch.testing.assert_close(noisy[part].norm(dim=-1), torch.ones(noisy[part].shape[:-1]))
        cosine = (noisy[part] * plain[part]).sum(dim=-1)
        assert cosine.mean() == pytest.approx(1 / np.sqrt(1 + 0.5**2), abs=0.03)


def test_noise_of_an_image_is_the_same_wherever_it_appears(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.noise=0.8")
    clean, seen = one.context.clean, []
    for one.progress.epoch in (0, 1, 0):
        batch, embeddings = first_batch(one), one.context.embeddings
        neighbors = one.context.neighbors
        assert torch.equal(batch["embeddings"], embeddings[batch["rows"]])
        assert torch.equal(batch["context"], embeddings[neighbors[batch["rows"]]])
        scores = (embeddings @ embeddings.T).fill_diagonal_(-2)
        assert torch.equal(scores.gather(1, neighbors), scores.topk(6).values)
        seen.append(embeddings)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert (seen[0] * clean).sum(dim=1).mean() == pytest.approx(1 / np.sqrt(1 + 0.8**2), abs=0.05)


def test_noise_has_the_covariance_of_the_embeddings(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.noise=0.5")
    factor = noise_factor(one.context.clean, 0.5, "embeddings").double()
    covariance = torch.from_numpy(np.cov(one.context.clean.double().numpy().T, bias=True))
    torch.testing.assert_close(factor.T @ factor, 0.25 * covariance / covariance.trace(), rtol=1e-4, atol=1e-6)


def test_a_bank_has_some_images_of_each_class(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.class_sizes=[2,5]", "--refiner.neighbors=100")
    labels, sizes, banks = one.context.labels, [], []
    for one.progress.epoch in range(3):
        first_batch(one)
        neighbors = one.context.neighbors.numpy()
        bank = np.unique(neighbors)
        banks.append(bank.tolist())
        sizes += np.bincount(labels[bank], minlength=16).tolist()
        # All images see the same bank, without themselves.
        assert neighbors.shape == (128, min(100, len(bank) - 1))
        assert not (neighbors == np.arange(128)[:, None]).any()
    assert set(sizes) == {2, 5}
    assert banks[0] != banks[1]


# All classes, and fewer images of each ------------------------------------------------------------------------------


def test_the_last_weights_are_kept_whatever_they_bring(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_epoch_that_harms_small_classes_does_not_count(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_validation(monkeypatch, RISING)
    more = ["--guardrail_metrics=[recall@1]", "--guardrail_class_sizes=[2,8,9]", "--update_factors=[1]"]
    one = trainer(tiny, tmp_path / "run", *more)
    assert list(one.guardrails) == [2, 8]  # no class has nine
    # With all images and of both sizes, in each of four evaluations.
    gains = iter([0.0, 0.0, 0.0, 0.1, 0.5, 0.0, 0.0, -0.4, 0.2, 0.0, -0.6, 0.3])
    monkeypatch.setattr(refiner_validation.Scores, "gain", lambda *given: (next(gains, 9.0), 1.0))
    one.fit()
    assert pd.read_csv(one.run.metrics)["lowest gain in standard errors"].tolist() == [0, 0, -0.4, -0.6]
    assert one.progress.best_epoch == 2  # mAP@R rises further in the third, which loses more than half an error


def test_parts_of_classes_are_disjoint_and_of_one_size() -> None:
    labels = np.array([0] * 5 + [1] * 7 + [2] * 3 + [3])
    parts = refiner_validation.parts_of_classes(labels, 2, seed=0)
    assert [np.bincount(labels[rows], minlength=4).tolist() for rows in parts] == [[2, 2, 2, 0]]
    parts = refiner_validation.parts_of_classes(labels[:12], 2, seed=0)
    assert [np.bincount(labels[rows]).tolist() for rows in parts] == [[2, 2], [2, 2]]
    assert not set(parts[0]) & set(parts[1])
    assert refiner_validation.parts_of_classes(labels, 6, seed=0) == []


def test_right_class_attention(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    move(one)
    assert one.validation is not None
    part = one.validation.parts[0]
    attention, uniform = part.right_class_attention()
    embeddings, labels = part.vectors.block(0, 64), part.table.labels
    weights = one.refiner.eval().attention_weights(embeddings, embeddings[torch.from_numpy(part.neighbors)])
    by_image = []
    for image in range(64):
        own = [j for j, other in enumerate(part.neighbors[image]) if labels[other] == labels[image]]
        by_image.append((weights[:, image, own].sum() / weights[:, image].sum()).item())
    assert attention == pytest.approx(np.mean(by_image), rel=1e-5)
    assert uniform == pytest.approx((labels[part.neighbors] == labels[:, None]).mean())
    assert attention > uniform  # attention starts as similarity
