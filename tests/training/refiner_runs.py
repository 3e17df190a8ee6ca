"""Clusters on which a refiner is trained in a second, and its trainer."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.training import RefinerRecipe, RefinerTrainer, refiner_validation
from vicinal.utils.run_folder import RunFolder

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
RISING = [0.1 * n for n in range(1, 10)]


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
