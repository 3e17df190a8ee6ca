"""Processes that load the batches of a run: they stay from epoch to epoch, and none is left."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.conftest import draw_noise
from tests.training.runs import trainer
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.training import Recipe
from vicinal.training.training_data import TrainLoader, load_training_table

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
