"""`--weights FILE`: a pretrained network with weights of one's own, in every verb that takes `--model`."""

import json
from pathlib import Path

import pytest
import timm
import torch

from tests.conftest import draw_photos, output, refused
from vicinal.data import load_embeddings
from vicinal.models import Embedder
from vicinal.workflows import load_model

NAME = "test_resnet"


def save_weights(path: Path, seed: int) -> Path:
    """A checkpoint as Lightning writes it, of a network with random weights."""
    torch.manual_seed(seed)
    state = {f"model.{name}": tensor for name, tensor in timm.create_model(NAME).state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.6.6"}, path)
    return path


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return save_weights(tmp_path / "own.ckpt", 1)


def test_verbs_embed_by_the_weights(weights: Path, tmp_path: Path, capsys) -> None:
    photos = draw_photos(tmp_path / "photos", 2, 3)
    model, file = ("--model", NAME, "--weights", weights), tmp_path / "v.parquet"
    expected = load_model(NAME, weights=str(weights))
    assert torch.equal(expected.backbone.bn1.weight, torch.load(weights)["state_dict"]["model.bn1.weight"])
    output(capsys, "embed", photos, *model, "--out", file)
    vectors, table = load_embeddings(file)
    torch.testing.assert_close(torch.tensor(vectors), torch.tensor(expected.embed(table)))
    stored = json.loads(output(capsys, "evaluate", file, "--json"))["results"]
    for words in (["--images", photos, *model], ["--images", photos, NAME, *model[2:]]):
        results = json.loads(output(capsys, "evaluate", *words, "--json"))["results"]
        assert [each["value"] for each in results] == [each["value"] for each in stored]


def test_other_files_and_models_that_have_weights(weights: Path, photos: Path, tmp_path: Path, capsys) -> None:
    assert "w.pth: no such file or folder" in refused(capsys, "clean", photos, "--model", NAME, "--weights", "w.pth")
    assert "does not end in one of" in refused(capsys, "clean", photos, "--model", NAME, "--weights", __file__)
    assert "no such file" in refused(capsys, "clean", photos, "--model", NAME, "--weights", photos)
    Embedder(NAME, dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for model in (tmp_path / "model", "someone/model"):
        error = refused(capsys, "clean", photos, "--model", model, "--weights", weights)
        assert f"{model} has its own weights; weights is for backbones, such as --model timm/resnet50" in error
    output(capsys, "embed", photos, "--model", tmp_path / "model", "--out", tmp_path / "v.npy")
    error = refused(capsys, "evaluate", tmp_path / "v.npy", "--weights", weights)
    assert "already holds embeddings; leave out --weights" in error
    assert "leave out --model" in refused(capsys, "evaluate", "--images", photos, NAME, "--model", NAME)
