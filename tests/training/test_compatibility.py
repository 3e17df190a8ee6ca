"""Backward-compatible training: the loss against its formula, processes, micro-batches, resuming, and invalid input."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.conftest import SMALL
from tests.training.runs import assert_same_run, interrupted, trainer
from vicinal.cli.main import main
from vicinal.losses import NormSoftmaxLoss
from vicinal.models import Embedder
from vicinal.similarity.pair_source import PairSource
from vicinal.training import Recipe, feature_cache, resume, train
from vicinal.training.class_centers import losses_with_centers
from vicinal.training.compatibility import CompatibilityLoss
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

CLASSES, DIM, SIZE = 5, 6, 24


def loss_of(centers: Tensor) -> CompatibilityLoss:
    loss = CompatibilityLoss(CLASSES, DIM, scale=7.0).double()
    loss.set_old_centers(centers)
    return loss


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SIZE, 8, dtype=torch.float64, generator=generator)
    centers = torch.randn(CLASSES, DIM, dtype=torch.float64, generator=generator)
    return images, torch.arange(SIZE) % CLASSES, centers


def by_hand(embeddings: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """The formula, one anchor at a time."""
    values = []
    for x, label in zip(embeddings, labels, strict=True):
        logits = torch.stack([7.0 * (x @ o) / (x.norm() * o.norm()) for o in centers])
        values.append(-(logits[label].exp() / logits.exp().sum()).log())
    return torch.stack(values)


def test_value_and_gradient_are_those_of_the_formula() -> None:
    images, labels, centers = batch()
    mine, reference = (images[:, :DIM].clone().requires_grad_() for _ in range(2))
    loss, expected = loss_of(centers), by_hand(reference, labels, centers)
    value = loss(mine, labels)
    torch.testing.assert_close(value, expected.mean(), rtol=1e-12, atol=0)
    value.backward(), expected.mean().backward()
    torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-10, atol=1e-14)
    source = PairSource.from_batch(mine.detach(), labels)
    torch.testing.assert_close(loss.anchor_values(source), expected.detach(), rtol=1e-12, atol=0)


def test_centers_of_a_run_have_the_names_of_one_without_the_term() -> None:
    loss = NormSoftmaxLoss(CLASSES, DIM) + CompatibilityLoss(CLASSES, DIM)
    assert list(losses_with_centers(loss)) == [""]


@pytest.fixture(scope="module")
def old_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(
        Recipe.load(overrides=[f"--data.source={photos}", *SMALL, "--epochs=1", "--seed=5"]),
        tmp_path_factory.mktemp("old") / "run",
    )


@pytest.fixture
def settings(small: list[str], old_run: RunFolder, tmp_path: Path) -> list[str]:
    return [*small, "--epochs=2", f"--compatible_with={old_run.path}", f"--feature_cache={tmp_path / 'cache'}"]


def test_old_centers_are_the_mean_old_embeddings_of_each_class_computed_once(
    settings: list[str], old_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(settings, tmp_path / "run", "--compatible_weight=0.5")
    one.start()
    table = one.images.table
    vectors = Embedder.from_pretrained(old_run.model).embed(table, progress=False).astype(np.float64)
    expected = [vectors[table.labels == label].mean(axis=0) for label in range(len(table.classes))]
    (term,) = (part for part in one.loss.modules() if isinstance(part, CompatibilityLoss))
    np.testing.assert_allclose(term.old_centers.cpu().numpy(), expected, rtol=0, atol=1e-6)
    assert one.loss.weights[-1] == 0.5
    monkeypatch.setattr(feature_cache, "_write", lambda *arguments: pytest.fail("the features are computed again"))
    trainer(settings, tmp_path / "second").start()


def test_a_run_is_resumed_exactly_without_old_model(settings: list[str], old_run: RunFolder, tmp_path: Path) -> None:
    settings = [*settings, "--micro_batch_size=3", "--model.dropout=0.3"]
    straight = train(Recipe.load(overrides=settings), tmp_path / "straight")
    begun = interrupted(settings, tmp_path / "run", 3)
    hidden = old_run.path.rename(old_run.path.with_name("hidden"))
    try:
        run = resume(begun.path)
    finally:
        hidden.rename(old_run.path)
    assert_same_run(run, straight)
    assert "CompatibilityLoss" in pd.read_csv(run.log)


def test_features_that_are_frozen_are_trained_to_be_compatible_too(settings: list[str], tmp_path: Path) -> None:
    more = ["--features=frozen", "--data.cache=false", "--transform.scale=[1, 1]", "--transform.flip=0"]
    run = train(Recipe.load(overrides=[*settings, *more]), tmp_path / "run")
    assert "CompatibilityLoss" in pd.read_csv(run.log)


def test_invalid_settings(settings: list[str], tmp_path: Path, capsys) -> None:
    for more, message in (
        (["--model.dim=9"], "have 16 dimensions, those of the new model 9; give model.dim = 16"),
        (["--model.projector=12"], "projector"),
        (["--compatible_with=nowhere"], "compatible_with: .*nowhere"),
    ):
        assert main(["train", *settings, *more, f"--out={tmp_path / 'run'}"]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert re.search(message, lines[-1])
        assert not (tmp_path / "run" / "model").exists()


def test_invalid_batches() -> None:
    images, labels, centers = batch()
    loss = loss_of(centers)
    for call, message in (
        (partial(loss, images, labels), "embeddings have 8 dimensions and old ones 6"),
        (partial(loss, images[:, :DIM], labels + 1), "label"),
        (partial(loss, images[:, :DIM], labels, images[:3, :DIM], labels[:3]), "old class centers"),
    ):
        with pytest.raises(InputError, match=message):
            call()
