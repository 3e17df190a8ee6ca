"""Evaluation during training: the metric that decides, and recall on training images."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.training.test_trainer import trainer
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.training_data import require_validatable, sample_classes
from vicinal.utils.errors import InputError


def test_recall_on_training_images_is_logged(small: list[str], tmp_path: Path) -> None:
    more = ["--validation.train_images=13", "--data.fractions={train: 1.0}", "--epochs=1"]
    one = trainer(small, tmp_path / "run", *more)
    sample = one.train_sample.table
    assert sample.class_counts.tolist() == [6, 6, 6]  # whole classes, until they have 13 images
    assert trainer(small, tmp_path / "other", *more).train_sample.table.frame.equals(sample.frame)
    assert not trainer(small, tmp_path / "other", *more, "--seed=1").train_sample.table.frame.equals(sample.frame)
    one.fit()
    metrics = pd.read_csv(one.run.metrics)
    assert list(metrics) == ["step", "epoch", "train recall@1"]  # there is no split val
    expected = evaluate(one.embedder.embed(one.train_sample, progress=False), sample).metrics["recall@1"]
    assert metrics["train recall@1"].iloc[-1] == pytest.approx(expected, abs=1e-5)
    assert not one.run.best.exists()
    small_val = trainer(small, tmp_path / "val", "--validation.train_images=999", "--epochs=1")
    small_val.fit()
    metrics = pd.read_csv(small_val.run.metrics)
    assert len(small_val.train_sample) == len(small_val.images)
    assert list(metrics)[-1] == "train recall@1"
    assert "val train recall@1" not in Embedder.from_pretrained(small_val.run.model).metrics


def test_samples_of_training_classes() -> None:
    frame = pd.DataFrame({"label": list("abcdeffff"), "is_query": False, "is_gallery": True})
    samples = [sample_classes(Table(frame), 2, seed) for seed in range(20)]
    assert all((sample.class_counts >= 2).any() and len(sample.classes) >= 2 for sample in samples)
    assert len({tuple(sample.classes) for sample in samples}) > 5
    assert not any(sample.has("is_query") for sample in samples)
    assert len(sample_classes(Table(frame), 99, seed=0)) == 9
    with pytest.raises(InputError, match=r"validation.train_images = 3 must be 0: no training class has two images"):
        sample_classes(Table(frame[:5]), 3, seed=0)


def test_any_metric_decides_which_weights_are_best(small: list[str], tmp_path: Path) -> None:
    for metric in ("recall@5", "precision@3", "mAP@4", "MRR"):
        one = trainer(small, tmp_path / metric, f"--validation.metric={metric}", "--epochs=1", "--seed=3")
        one.start()
        one.validate()
        metrics = pd.read_csv(one.run.metrics)
        assert {"recall@1", "recall@4", "mAP@R", metric} < set(metrics)
        assert load_checkpoint(one.run.best)["metrics"][metric] == pytest.approx(metrics[metric][0], abs=1e-5)
    with pytest.raises(InputError, match=r"validation.metric = recall@6 needs more than the 6 images of the split val"):
        trainer(small, tmp_path / "run", "--validation.metric=recall@6")
    frame = pd.DataFrame({"label": list("aabb"), "is_query": [True, True, False, False]})
    require_validatable(Table(frame.assign(is_gallery=True)), "recall@4")
    message = r"validation.metric = precision@3 needs more than 2 gallery images in the split val"
    with pytest.raises(InputError, match=message):
        require_validatable(Table(frame.assign(is_gallery=[True, False, True, False])), "precision@3")
