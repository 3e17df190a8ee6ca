"""`--weights FILE`: a pretrained network with weights of one's own, in every verb that takes `--model`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch

from tests.conftest import output
from vicinal.cli.main import main
from vicinal.data import load_embeddings
from vicinal.models import Embedder
from vicinal.retrieval import Index
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


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_verbs_embed_by_the_weights(weights: Path, photos: Path, tmp_path: Path, capsys) -> None:
    model, file, whitening = ("--model", NAME, "--weights", weights), tmp_path / "v.parquet", tmp_path / "w.safetensors"
    expected = load_model(NAME, weights=str(weights))
    assert torch.equal(expected.backbone.bn1.weight, torch.load(weights)["state_dict"]["model.bn1.weight"])
    output(capsys, "embed", photos, *model, "--out", file)
    vectors, table = load_embeddings(file)
    torch.testing.assert_close(torch.tensor(vectors), torch.tensor(expected.embed(table)))
    stored = json.loads(output(capsys, "evaluate", file, "--json"))["results"]
    for words in (["--images", photos, *model], [photos, *model], ["--images", photos, NAME, *model[2:]]):
        results = json.loads(output(capsys, "evaluate", *words, "--json"))["results"]
        assert [each["value"] for each in results] == [each["value"] for each in stored]
    for words in (["clean", photos], ["calibrate", photos], ["whiten", photos, "--out", whitening, "--dim", "8"]):
        output(capsys, *words, *model)
    shards = ["embed", photos, *model, "--out", tmp_path / "shards", "--shard", "1/1"]
    output(capsys, *shards)
    assert load_embeddings(tmp_path / "shards")[0].shape == vectors.shape


def test_an_index_remembers_the_weights(weights: Path, photos: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path))  # where no exported model is kept
    index, picture = tmp_path / "index", photos / "class3" / "2.png"
    output(capsys, "index", "build", index, photos, "--model", NAME, "--weights", weights.name)
    assert Index.load(index).made_with == {"engine": "torch", "model": NAME, "weights": str(weights)}
    monkeypatch.chdir(photos)
    assert output(capsys, "search", index, picture, "-k", "1").splitlines()[1].split()[1] == "1.0000"
    started = []
    monkeypatch.setattr("vicinal.serving.app.run", lambda service, *_: started.append(service))
    output(capsys, "serve", index, "--decode_workers", "1")
    assert started[0].embedder.fingerprint == Index.load(index).model_fingerprint
    others = save_weights(tmp_path / "others.ckpt", 2)
    error = refused(capsys, "search", index, picture, "--model", NAME, "--weights", others)
    assert f"give --weights {weights}, or build the index again" in error
    weights.unlink()
    assert main(["search", str(index), str(picture)]) == 2
    assert f"--weights {weights}, which is not there; say where it is: --weights" in capsys.readouterr().err


def test_an_exported_model_has_the_weights(weights: Path, photos: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("onnx")
    out = tmp_path / "model.onnx"
    output(capsys, "export", NAME, "--weights", weights, "--out", out)
    output(capsys, "embed", photos, "--model", out, "--out", tmp_path / "v.parquet")
    vectors, table = load_embeddings(tmp_path / "v.parquet")
    ours = load_model(NAME, weights=str(weights)).embed(table)
    torch.testing.assert_close(torch.tensor(vectors), torch.tensor(ours), atol=1e-5, rtol=1e-4)
    error = refused(capsys, "embed", photos, "--model", out, "--weights", weights, "--out", tmp_path / "w.npy")
    assert f"{out} is an exported model, which has its own; leave out --weights" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "own.pth cannot be read as weights: "),
        (b"PK\3\4 broken", "own.pth cannot be read as weights: "),
        ({"conv9.weight": torch.ones(1)}, "own.pth does not fit test_resnet: it lacks conv1.0.weight"),
        ({"conv9.weight": 1}, "own.pth does not hold named tensors"),
        (print, "own.pth cannot be read as weights: "),
        (None, "own.pth: no such file or folder"),
    ],
    ids=["empty", "damaged", "another network", "no tensors", "code", "missing"],
)
def test_a_file_that_is_not_for_the_network(photos: Path, tmp_path: Path, capsys, content, message) -> None:
    path = tmp_path / "own.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    for words in (["evaluate", "--images", photos, "--model", NAME], ["export", NAME, "--out", tmp_path / "m.onnx"]):
        error = refused(capsys, *words, "--weights", path)
        assert message in error
        assert "pretrained" not in error


def test_other_files_and_models_that_have_weights(weights: Path, photos: Path, tmp_path: Path, capsys) -> None:
    assert "does not end in one of" in refused(capsys, "clean", photos, "--model", NAME, "--weights", __file__)
    assert "no such file" in refused(capsys, "clean", photos, "--model", NAME, "--weights", photos)
    Embedder(NAME, dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for model in (tmp_path / "model", "someone/model"):
        error = refused(capsys, "clean", photos, "--model", model, "--weights", weights)
        assert f"{model} has its own weights; weights is for backbones, such as --model timm/resnet50" in error
    output(capsys, "embed", photos, "--model", tmp_path / "model", "--out", tmp_path / "v.npy")
    error = refused(capsys, "evaluate", tmp_path / "v.npy", "--weights", weights)
    assert "holds embeddings already; leave out --weights" in error
    assert "leave out --model" in refused(capsys, "evaluate", "--images", photos, NAME, "--model", NAME)
