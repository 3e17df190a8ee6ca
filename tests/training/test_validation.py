"""Evaluation during training, recall on training images, and the processes that load the batches."""

import multiprocessing
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import draw_noise
from tests.training.runs import trainer, weights
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.training import Recipe, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.training_data import TrainLoader, load_training_table, require_validatable, sample_training_images
from vicinal.utils.errors import InputError


def test_recall_on_training_images_is_logged(small: list[str], tmp_path: Path) -> None:
    more = ["--validation.train_images=13", "--data.fractions={train: 1.0}", "--epochs=1"]
    one = trainer(small, tmp_path / "run", *more)
    sample = one.train_sample.table
    assert len(sample) == 13
    assert trainer(small, tmp_path / "other", *more).train_sample.table.frame.equals(sample.frame)
    assert not trainer(small, tmp_path / "other", *more, "--seed=1").train_sample.table.frame.equals(sample.frame)
    one.fit()
    metrics = pd.read_csv(one.run.metrics)
    assert list(metrics) == ["step", "epoch", "train recall@1"]  # there is no split val
    expected = evaluate(one.embedder.embed(one.train_sample, progress=False), sample).metrics["recall@1"]
    assert metrics["train recall@1"].iloc[-1] == pytest.approx(expected, abs=1e-5)
    assert not one.run.best.exists()
    many = trainer(small, tmp_path / "many", "--validation.train_images=999")
    assert len(many.train_sample) == len(many.images)


def test_samples_of_training_images() -> None:
    frame = pd.DataFrame({"label": np.repeat(np.arange(400), 20), "is_query": False, "is_gallery": True})
    for number, expected in ((None, 400), (300, 300), (8001, 8000)):
        rows = sample_training_images(Table(frame), number, seed=0)
        assert len(rows) == expected
        assert rows.tolist() == sample_training_images(Table(frame), number, seed=0).tolist()
    assert len(sample_training_images(Table(frame[:300]), None, 0)) == 200  # at least
    many = Table(pd.DataFrame({"label": np.repeat(np.arange(16000), 5)}))
    sizes = np.bincount(sample_training_images(many, None, 0) // 5, minlength=16000)
    assert sizes.sum() == 2000  # at most
    assert set(sizes) == {0, 5}  # whole classes
    with_singletons = Table(pd.DataFrame({"label": [*range(1000), 5]}))
    assert sample_training_images(with_singletons, None, seed=0).tolist() == [5, 1000]
    singletons = with_singletons.take(range(900))
    assert sample_training_images(singletons, None, seed=0) is None
    with pytest.raises(InputError, match=r"validation.train_images = 3 must be 0: no training class has two images"):
        sample_training_images(singletons, 3, seed=0)
    with pytest.raises(InputError, match=r"validation.train_images = 3 is too few: none of them finds another"):
        sample_training_images(many, 3, seed=0)


def test_a_sample_of_training_images_has_matches_in_other_groups() -> None:
    frame = pd.DataFrame({"label": list("aabbcc"), "group": [1, 1, 1, 2, -1, -1]})
    assert sample_training_images(Table(frame), None, seed=0).tolist() == [2, 3, 4, 5]
    assert sample_training_images(Table(frame[:2]), None, seed=0) is None


def test_recall_on_training_images_is_logged_by_default_and_changes_nothing(small: list[str], tmp_path: Path) -> None:
    runs = [
        train(Recipe.load(overrides=[*small, "--epochs=1", *more]), tmp_path / str(len(more)))
        for more in ([], ["--validation.train_images=0"])
    ]
    with_training, without = (pd.read_csv(run.metrics) for run in runs)
    assert with_training["train recall@1"].between(0, 1).all()
    assert with_training.drop(columns="train recall@1").equals(without)
    assert weights(runs[0]) == weights(runs[1])
    assert "val train recall@1" not in Embedder.from_pretrained(runs[0].model).metrics


def test_any_metric_decides_which_weights_are_best(small: list[str], tmp_path: Path) -> None:
    for metric in ("recall@5", "precision@3"):
        one = trainer(small, tmp_path / metric, f"--validation.metric={metric}", "--epochs=1", "--seed=3")
        one.start()
        one.validate()
        metrics = pd.read_csv(one.run.metrics)
        assert {"recall@1", "recall@4", "mAP@R", metric} < set(metrics)
        assert load_checkpoint(one.run.best)["metrics"][metric] == pytest.approx(metrics[metric][0], abs=1e-5)
    frame = pd.DataFrame({"label": list("aabb"), "is_query": [True, True, False, False]})
    require_validatable(Table(frame.assign(is_gallery=True)), "recall@4")
    message = r"validation.metric = precision@3 needs more than 2 gallery images in the split val"
    with pytest.raises(InputError, match=message):
        require_validatable(Table(frame.assign(is_gallery=[True, False, True, False])), "precision@3")


EPOCHS = [[[0, 1], [2, 3], [4, 5]], [[5, 3], [1, 0]]]


@pytest.fixture
def images(tmp_path: Path) -> ImageDataset:
    return ImageDataset(Table(draw_noise(tmp_path, "aabbcc"), root=tmp_path), ImageTransform(size=8))


@pytest.fixture
def loader(images: ImageDataset) -> Iterator[TrainLoader]:
    one = TrainLoader(images, num_workers=2, device=torch.device("cpu"))
    yield one
    one.close()


def processes() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


def test_the_same_processes_load_every_epoch(images: ImageDataset, loader: TrainLoader) -> None:
    before, seen = processes(), []
    for number, plan in enumerate(EPOCHS):
        batches = TrainBatches(images, plan, (0, number))
        found = list(loader.load(batches))
        seen.append(processes() - before)
        assert len(found) == len(plan)
        assert all(torch.equal(a["images"], batches[i]["images"]) for i, a in enumerate(found))
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]
    loader.close()
    assert processes() == before


def test_an_epoch_that_is_left_ends_its_processes_and_the_next_has_others(
    images: ImageDataset, loader: TrainLoader
) -> None:
    before, batches = processes(), TrainBatches(images, EPOCHS[0], (0, 0))
    first = loader.load(batches)
    next(first)
    assert len(processes() - before) == 2
    first.close()
    assert processes() == before
    assert [batch["rows"].tolist() for batch in loader.load(batches, start=1)] == EPOCHS[0][1:]


def test_a_broken_image_ends_the_processes(images: ImageDataset, loader: TrainLoader) -> None:
    Path(images.table.paths[4]).write_bytes(b"")
    before = processes()
    with pytest.raises(ValueError, match=r"^row 4: .*the file is empty$"):
        list(loader.load(TrainBatches(images, EPOCHS[0], (0, 0))))
    assert processes() == before


def test_a_run_leaves_no_process(small: list[str], tmp_path: Path) -> None:
    before = processes()
    one = trainer(small, tmp_path / "run", "--data.num_workers=1", "--data.cache=false", "--epochs=2")
    one.fit()
    assert processes() == before


def test_a_class_of_one_image_is_warned_of_once_and_only_where_it_is_trained_on(tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": [f"{number}.png" for number in range(9)], "label": list("aabbccddx")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings, trained = Recipe.load(overrides=[f"--data.source={tmp_path / 't.csv'}"]).settings, set()
    for seed in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            number = int("x" in load_training_table(replace(settings, seed=seed)).subset("train").classes)
        assert ["class 'x' has one image" in str(each.message) for each in caught].count(True) == number, seed
        trained.add(number)
    assert trained == {0, 1}
