"""Training from pretrained weights: what the head starts as, what training is compared with, and what is kept."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from tests.training.runs import trainer
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.models.head import set_to_attenuated_whitening
from vicinal.training import Recipe, train
from vicinal.training.runs import create_trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder


@pytest.fixture
def pretrained(small: list[str], tmp_path: Path) -> list[str]:
    """The settings of a small run that starts from weights in a file."""
    torch.manual_seed(7)
    weights = Embedder("test_resnet", dim=None, pretrained=False).backbone.state_dict()
    save_file({name: each.contiguous() for name, each in weights.items()}, tmp_path / "w.safetensors")
    return [*small, "--epochs=1", f"--model.pretrained={tmp_path / 'w.safetensors'}"]


def zero_shot(settings: list[str], norm: str = "none") -> Embedder:
    """The network as it is, without a recipe's help."""
    recipe = Recipe.load(overrides=settings)
    name, file = recipe.model["backbone"], recipe.model["pretrained"]
    return Embedder(name, dim=None, norm=norm, pretrained=file, transform=recipe.settings.transform)


@pytest.mark.parametrize("features", ["trained", "frozen"])
def test_the_first_score_is_that_of_pretrained_networks(pretrained: list[str], tmp_path: Path, features: str) -> None:
    settings = [*pretrained, *(["--features=frozen", f"--feature_cache={tmp_path}"] if features == "frozen" else [])]
    run = train(Recipe.load(overrides=settings), tmp_path / "run")
    val = Table.from_parquet(run.table).subset("val")
    expected = evaluate(zero_shot(settings).embed(val, progress=False), val).metrics["mAP@R"]
    metrics = pd.read_csv(run.metrics)
    assert metrics["mAP@R"][0] == pytest.approx(expected, abs=1e-5)
    assert metrics["step"][:2].tolist() == [0, 0]  # then the model before training
    scores = Embedder.from_pretrained(run.model).metrics
    assert max(scores["val mAP@R"], metrics["mAP@R"].max()) == scores["val mAP@R"]


@pytest.mark.parametrize(("features", "score"), [("trained", 0.0), ("frozen", 0.0), ("trained", "zero-shot")])
def test_a_training_that_does_not_help_keeps_the_pretrained_network(
    pretrained: list[str], tmp_path: Path, features: str, score: float | str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    settings = [*pretrained, *(["--features=frozen", f"--feature_cache={tmp_path}"] if features == "frozen" else [])]
    recipe = Recipe.load(overrides=settings)
    one = create_trainer(recipe, load_training_table(recipe.settings), RunFolder(tmp_path / "run"))
    monkeypatch.setattr(
        type(one.progress), "count_evaluation", lambda self, _: _count(self, self.zero_shot if score else 0.0)
    )
    one.fit()
    val = one.table.subset("val")
    kept = Embedder.from_pretrained(one.run.model)
    expected = zero_shot(settings).embed(val, progress=False)
    np.testing.assert_allclose(kept.embed(val, progress=False), expected, atol=1e-5)
    assert kept.metrics == {"val mAP@R": one.progress.zero_shot}
    assert "no epoch had a higher mAP@R than zero-shot: the model is the pretrained network" in capsys.readouterr().err


def _count(progress, score: float) -> bool:
    progress.best = max(progress.best, score)
    return progress.best == score


def test_the_head_of_a_pretrained_network_starts_as_a_whitening(pretrained: list[str], tmp_path: Path) -> None:
    one = trainer(pretrained, tmp_path / "run")
    one.start()
    features = torch.from_numpy(zero_shot(pretrained, "layer").embed(one.images.table, progress=False))
    linear = torch.nn.Linear(features.shape[1], one.embedder.dim)
    set_to_attenuated_whitening(linear, features * features.shape[1] ** 0.5)
    expected = torch.nn.functional.normalize(linear(features * features.shape[1] ** 0.5)).detach()
    vectors = torch.from_numpy(one.embedder.embed(one.images.table, progress=False))
    torch.testing.assert_close(vectors @ vectors.T, expected @ expected.T, atol=1e-2, rtol=0)


def test_statistics_of_batch_norm_are_frozen_where_they_are_pretrained(
    pretrained: list[str], small: list[str], tmp_path: Path
) -> None:
    for settings, is_frozen in ((pretrained, True), (small, False)):
        one = trainer(settings, tmp_path / f"run {is_frozen}")
        one.module.train()
        modes = {each.training for each in one.embedder.modules() if isinstance(each, torch.nn.BatchNorm2d)}
        assert modes == {not is_frozen}
        assert one.recipe.has_whitened_head == is_frozen


def test_the_outputs_of_an_attenuated_whitening_have_the_variances_of_its_definition() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(500, 6)) * [5, 3, 2, 1, 0.5, 0.1] + 4
    linear = torch.nn.Linear(6, 4)
    set_to_attenuated_whitening(linear, torch.from_numpy(features).float())
    outputs = linear(torch.from_numpy(features).float()).detach().double().numpy()
    variances = np.linalg.eigvalsh(np.cov(features.T, bias=True))[::-1]
    expected = variances[:4] / (variances[:4] + variances.mean() / 10) ** (1 / 4)
    covariance = np.cov(outputs.T, bias=True)
    np.testing.assert_allclose(np.diag(covariance) / covariance[0, 0], expected / expected[0], rtol=1e-4)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4)
    np.testing.assert_allclose(outputs.mean(axis=0), 0, atol=1e-4)


def test_a_whitening_of_a_head_without_its_layer_is_refused(pretrained: list[str]) -> None:
    with pytest.raises(InputError, match=r"head_init = whitening must be random where model\.dim is null"):
        _ = Recipe.load(overrides=[*pretrained, "--head_init=whitening", "--model.dim=null"]).has_whitened_head
