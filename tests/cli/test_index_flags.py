"""An index knows the model that made it: searching and adding without --model."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from tests.conftest import output, refused
from vicinal.cli.main import main
from vicinal.data import Table
from vicinal.models import Embedder, default_transform
from vicinal.retrieval import Index, PCAWhitening


def test_a_backbone_with_its_flags(offline: None, photos: Path, tmp_path: Path, capsys) -> None:
    index, picture = tmp_path / "index", photos / "class3" / "2.png"
    flags = ["--model", "test_resnet", "--pooling", "max", "--scales", "1", str(0.5**0.5)]
    output(capsys, "index", "build", index, photos / "class3", *flags)
    stored = json.loads(output(capsys, "index", "list", index, "--facts", "--json"))
    assert [stored[name] for name in ("model", "pooling", "scales")] == ["test_resnet", "max", f"1 {0.5**0.5!r}"]
    assert main(["index", "add", str(index), str(photos / "class4")]) == 0
    assert f"--model test_resnet --pooling max --scales 1 {0.5**0.5!r}" in capsys.readouterr().err
    words = ["search", index, picture, "--json", "-k", "12"]
    found, same = (json.loads(output(capsys, *words, *more)) for more in ([], flags))
    assert found == same
    assert found[0]["matches"][0]["path"] == str(picture)
    error = refused(capsys, *words, "--pooling", "avg")
    assert "not of" in error
    assert "give --pooling max" in error


def test_a_model_with_whitening_that_is_lost_or_changed(photos: Path, tmp_path: Path, capsys) -> None:
    index, model, whitening = tmp_path / "index", tmp_path / "model", tmp_path / "w.safetensors"

    def save_model(seed: int) -> None:
        torch.manual_seed(seed)
        transform = default_transform("test_resnet")
        Embedder("test_resnet", dim=8, pretrained=False, transform=transform).save_pretrained(model)

    save_model(0)
    vectors = Embedder.from_pretrained(model).embed(Table.from_folder(photos))
    PCAWhitening.fit(vectors, 4).save(whitening)
    output(capsys, "index", "build", index, photos, "--model", model, "--whitening", whitening)
    search = ["search", index, photos / "class0" / "0.png"]
    assert output(capsys, *search, "-k", "1").splitlines()[1].split()[1] == "1.0000"
    save_model(1)
    for words in (search, ["index", "add", index, photos / "class0"]):
        assert f"--model {model} --whitening {whitening} gave embeddings of the model" in refused(capsys, *words)
    shutil.rmtree(model)
    assert f"built with --model {model}, which is not found; give its path: --model" in refused(capsys, *search)
    save_model(0)
    whitening.rename(tmp_path / "moved.safetensors")
    assert f"--whitening {whitening}, which is not found" in refused(capsys, *search)
    output(capsys, *search, "--whitening", tmp_path / "moved.safetensors")
    assert len(Index.load(index)) == 48


def test_an_index_of_an_unknown_model(photos: Path, tmp_path: Path, capsys) -> None:
    index = tmp_path / "index"
    Index.build(np.eye(48, dtype=np.float32), Table.from_folder(photos)).save(index)
    error = refused(capsys, "search", index, photos / "class0" / "0.png")
    assert "does not say which model made its embeddings; give --model" in error
