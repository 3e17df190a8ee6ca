"""What a refiner is shown in training: the neighbors of an image, and which of them are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.training.refiner_runs import RISING, first_batch, move, script_validation, trainer
from vicinal.data import load_embeddings
from vicinal.models import ContextRefiner
from vicinal.training import RefinerTrainer


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


def test_blocks_without_neighbors_look_at_the_embedding_itself(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    script_validation(monkeypatch, RISING)
    one = trainer(tiny, tmp_path / "run", "--refiner.context=self", "--refiner.neighbors=0")
    assert one.context.neighbors.tolist() == [[row] for row in range(len(one.context.embeddings))]
    one.fit()
    assert pd.read_csv(one.run.log)["gradient norm"].min() > 0
    assert ContextRefiner.from_pretrained(one.run.model).context == "self"


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
