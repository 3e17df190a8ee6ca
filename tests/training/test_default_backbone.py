"""The backbone of a recipe that names none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL
from vicinal.training import Recipe, resume, train
from vicinal.training.recipes.recipe import SMALL_BACKBONE
from vicinal.utils.errors import InputError


def backbone(*overrides: str) -> str:
    return str(Recipe.load(overrides=overrides).config["model"]["backbone"])


@pytest.mark.parametrize("has_gpu", [False, True])
def test_without_a_gpu_and_a_backbone_it_is_small(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert backbone() == ("resnet50" if has_gpu else SMALL_BACKBONE)
    assert backbone("--accelerator=cpu") == SMALL_BACKBONE
    assert backbone("--model.backbone=resnet18") == "resnet18"
    assert backbone("--model.pretrained=weights.safetensors") == "resnet50"
    assert backbone("--model.pretrained=false", "--accelerator=cpu") == SMALL_BACKBONE
    assert backbone("--model.backbone_args={output_stride: 8}") == "resnet50"


def test_the_small_backbone_is_said_and_kept(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [f"--data.source={photos}", *(each for each in SMALL if "backbone" not in each), "--epochs=1"]
    run = train(Recipe.load(overrides=settings), tmp_path / "run")
    assert f"there is no GPU: model.backbone = {SMALL_BACKBONE}" in capsys.readouterr().err
    assert Recipe.load(run.recipe).model["backbone"] == SMALL_BACKBONE
    monkeypatch.setattr("vicinal.training.recipes.recipe._has_gpu", lambda accelerator: True)
    resume(run.path, Recipe.load(overrides=settings))  # on another machine
    with pytest.raises(InputError, match=r"model.backbone = resnet18 differs from the run's own"):
        resume(run.path, Recipe.load(overrides=[*settings, "--model.backbone=resnet18"]))
