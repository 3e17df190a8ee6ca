"""`timm/NAME` as a model: what a backbone gives without training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import output
from vicinal.cli.main import main

pytestmark = pytest.mark.usefixtures("offline")


def test_untrained_backbones_are_evaluated(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ("timm/test_resnet", "timm/test_vit")
    results = json.loads(output(capsys, "evaluate", "--images", photos, *models, "--json"))["results"]
    assert {(result["model"], result["num_queries"]) for result in results} == {(model, 48) for model in models}


def test_an_index_of_an_untrained_backbone(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "timm/test_resnet", "--pooling", "max")
    assert main(["index", "build", str(tmp_path / "index"), str(photos), "--model", "timm/nothing"]) == 2
    assert "timm has no model 'nothing'" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
    output(capsys, "embed", photos, *model, "--out", tmp_path / "v.npy")
    assert main(["evaluate", str(tmp_path / "v.npy"), "--pooling", "max"]) == 2
    assert "leave out --pooling" in capsys.readouterr().err
