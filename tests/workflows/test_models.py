"""Models and devices that the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vicinal.models import ContextRefiner, Embedder
from vicinal.models.execution import usable_device
from vicinal.training.checkpoint import save_checkpoint
from vicinal.training.recipes.recipe import Recipe
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.models import check_backbone, load_model, load_refiner


def test_refiners_from_their_folder_and_their_run(tmp_path: Path) -> None:
    refiner = ContextRefiner(8, depth=2, num_heads=2)
    refiner.save_pretrained(tmp_path / "run" / "model")
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        assert load_refiner(str(path)).fingerprint() == refiner.fingerprint()


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 0\n")
    ContextRefiner(8, num_heads=2).save_pretrained(tmp_path / "refiner" / "model")
    (tmp_path / "refiner" / "recipe.yaml").write_text("seed: 0\n")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for path, message in (
        (tmp_path / "none", "no such folder"),
        (tmp_path / "empty", r"has no config\.json"),
        (tmp_path / "run", "run has no finished refiner"),
        (tmp_path / "model", "is an embedder, not a context refiner; give it with --model"),
        ("someone/refiner-that-is-nowhere", "none from the hub"),
    ):
        with pytest.raises(InputError, match=message):
            load_refiner(str(path))
    with pytest.raises(InputError, match="run has no finished model; continue the run with: vicinal train"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(InputError, match="is a context refiner, not an embedder; give it with --refiner"):
        load_model(str(tmp_path / "refiner"))


def test_a_run_that_is_not_finished_has_the_weights_of_its_best_evaluation(tmp_path: Path, capsys) -> None:
    settings = ["--model.backbone=test_resnet", "--model.pretrained=false", "--model.dim=8", "--transform.size=32"]
    recipe = Recipe.load(overrides=settings)
    run = RunFolder(tmp_path)
    recipe.save(run.recipe)
    trained = recipe.create_embedder()
    state = {f"embedder.{name}": value for name, value in trained.state_dict().items()}
    save_checkpoint(run.best, {"module": state, "metrics": {}, "epoch": 3})
    assert load_model(str(tmp_path)).fingerprint() == trained.fingerprint()
    assert "is not finished: taking the weights of its best evaluation so far, after epoch 3" in capsys.readouterr().err
    save_checkpoint(run.best, {"module": {"embedder.adapter": torch.zeros(1)}, "metrics": {}, "epoch": 3})
    with pytest.raises(InputError, match=r"best\.pt does not fit its recipe without adapters; finish the run with"):
        load_model(str(tmp_path))


def test_untrained_backbones(offline: None) -> None:
    model = load_model("timm/test_resnet.r160_in1k")
    assert not model.training
    assert (model.dim, model.config["pooling"], model.config["norm"], model.config["dim"]) == (
        96,
        "backbone",
        "none",
        None,
    )
    assert load_model("timm/test_resnet", "gem").config["pooling"] == "gem"
    assert load_model("test_resnet").config["backbone"] == "test_resnet"
    assert load_model("timm/deit_s16_in1k").config["pooling"] == "token"


def test_a_folder_wins_over_a_backbone_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained("resnet50")
    assert load_model("resnet50").dim == 8


def test_untrained_backbones_that_do_not_exist(offline: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model timm/resnet5O: backbone: timm has no model 'resnet5O'; nearest:"):
        load_model("timm/resnet5O")
    with pytest.raises(InputError, match="model resnet5O: no such folder; backbone: timm has no"):
        load_model("resnet5O")
    with pytest.raises(InputError, match="model timm/test_resnet: pooling 'token': test_resnet has no class token"):
        load_model("timm/test_resnet", "token")
    with pytest.raises(InputError, match="model timm/: backbone: 'timm/' is not the name of a timm model"):
        check_backbone("timm/")
    with pytest.raises(InputError, match="run has its own pooling; pooling is for backbones"):
        load_model(str(tmp_path / "run"), "gem")


def test_usable_device() -> None:
    assert usable_device("cpu") == "cpu"
    with pytest.raises(InputError, match="device nonsense cannot be used"):
        usable_device("nonsense")
