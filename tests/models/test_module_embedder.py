"""Embedders around modules of the user: saved by import path, loaded only if the import is allowed."""

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.conftest import output
from tests.refusals import refused_call
from vicinal import Embedder
from vicinal.cli.main import main
from vicinal.data import ImageTransform
from vicinal.models import add_lora
from vicinal.utils.errors import InputError

CODE = """
from subprocess import Popen
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, act="Identity"):
        super().__init__()
        pool = getattr(nn, act)(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), *pool)
    def forward(self, images):
        return self.layers(images)

def build(width):
    return Net(width)

def nothing():
    return "a module"
"""
TRANSFORM = ImageTransform(size=16)


@pytest.fixture
def my_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that was never imported before."""
    name = f"my_nets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    return name


def saved(name: str, folder: Path, **options: object) -> Embedder:
    torch.manual_seed(0)
    module = getattr(__import__(name), "Net")(**options.get("arguments", {}))  # type: ignore[call-overload]  # noqa: B009
    model = Embedder.from_module(module, TRANSFORM, **options).eval()  # type: ignore[arg-type]
    model.save_pretrained(folder)
    sys.modules.pop(name)
    return model


def test_a_module_is_embedded_saved_and_loaded(my_nets: str, tmp_path: Path) -> None:
    model = saved(my_nets, tmp_path / "model", path=f"{my_nets}.build", arguments={"width": 6})
    images = torch.rand(3, 3, 16, 16)
    vectors = torch.from_numpy(model.embed(images, progress=False))
    assert model.dim == 6
    torch.testing.assert_close(vectors, F.normalize(model.backbone(images)))
    with pytest.raises(
        InputError, match=rf"{my_nets}\.build is code that would be imported; .*--allow_import {my_nets}"
    ):
        Embedder.from_pretrained(tmp_path / "model")
    assert my_nets not in sys.modules
    loaded = Embedder.from_pretrained(tmp_path / "model", allow_imports=[my_nets])
    assert loaded.fingerprint() == model.fingerprint()
    torch.testing.assert_close(torch.from_numpy(loaded.embed(images, progress=False)), vectors)
    assert f'allow_imports=["{my_nets}"]' in (tmp_path / "model" / "README.md").read_text()


def test_a_saved_folder_names_nothing_but_what_is_allowed(my_nets: str, tmp_path: Path) -> None:
    saved(my_nets, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for path, message in (
        ("os.system", r"os\.system is code that would be imported"),
        (f"{my_nets}.Popen", r"Popen is of the module subprocess, whose import is not allowed"),
        (f"{my_nets}.os.system", "cannot be imported"),
        (f"{my_nets}.Lost", "has no Lost"),
        (f"{my_nets}.nothing", "builds str; it must build a torch.nn.Module"),
        (f"{my_nets}.build", "fails: .*width"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "backbone": f"import:{path}"}))
        refused_call(message, Embedder.from_pretrained, tmp_path / "model", allow_imports=[my_nets])


def test_modules_that_cannot_be_embedded_with_or_saved(my_nets: str, tmp_path: Path) -> None:
    for module, message in (
        (torch.relu, "module is .*; it must be a torch.nn.Module"),
        (nn.Flatten(), "has no weights"),
        (nn.Conv2d(3, 4, 3), r"maps an image \[1, 3, 16, 16\] to \[1, 4, 14, 14\]; it must give vectors"),
        (nn.Linear(5, 4), "the module fails for an image"),
    ):
        refused_call(message, Embedder.from_module, module, TRANSFORM)
    module = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    with pytest.raises(InputError, match="dim is 5, but the module gives vectors of 4 dimensions"):
        Embedder.from_module(module, TRANSFORM, dim=5)
    with pytest.raises(InputError, match="Sequential builds one with other weights; say how it is built with path="):
        Embedder.from_module(module, TRANSFORM).save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()

    class Local(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images.flatten(1))

    with pytest.raises(InputError, match="it is not in a module that can be imported"):
        Embedder.from_module(Local(768, 4), TRANSFORM).save_pretrained(tmp_path / "model")


def test_what_is_saved_gives_the_same_vectors(my_nets: str, tmp_path: Path) -> None:
    module = __import__(my_nets).Net(act="ReLU").eval()
    with pytest.raises(InputError, match="Net builds one that gives other vectors; say how it is built with path="):
        Embedder.from_module(module, TRANSFORM).save_pretrained(tmp_path / "model")
    model = Embedder.from_module(module, TRANSFORM, arguments={"act": "ReLU"})
    images = torch.rand(3, 3, 16, 16)
    add_lora(model, rank=2, targets=["layers.0"])
    torch.nn.init.normal_(module.layers[0].lora_B["default"].weight)
    model.save_pretrained(tmp_path / "model")  # with merged adapters
    loaded = Embedder.from_pretrained(tmp_path / "model", allow_imports=[my_nets])
    torch.testing.assert_close(*(torch.from_numpy(each.embed(images, progress=False)) for each in (loaded, model)))
    model.half().save_pretrained(tmp_path / "model")


def test_the_command_imports_what_its_flag_allows(my_nets: str, photos: Path, tmp_path: Path, capsys) -> None:
    saved(my_nets, tmp_path / "model")
    words = ["index", "build", tmp_path / "index", photos / "class0", "--model", tmp_path / "model"]
    assert main([str(word) for word in words]) == 2
    assert f"add --allow_import {my_nets}" in capsys.readouterr().err
    output(capsys, *words, "--allow_import", my_nets)
    search = ["search", tmp_path / "index", photos / "class0" / "0.png", "-k", "1"]
    sys.modules.pop(my_nets)
    assert main([str(word) for word in search]) == 2  # the index remembers the model, but allows nothing
    assert output(capsys, *search, "--allow_import", my_nets).splitlines()[1].split()[1] == "1.0000"
