"""`vicinal adapt`, `vicinal embed --adapter` and `vicinal evaluate --cross`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import refused
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.data.embedding_files import read_fingerprint
from vicinal.retrieval import LinearAdapter


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of the same images by two models, and of a third one of another dimension."""
    folder, rng, labels = tmp_path_factory.mktemp("models"), np.random.default_rng(0), np.repeat(np.arange(8), 6)
    new = (rng.standard_normal((8, 6))[labels] + 0.8 * rng.standard_normal((48, 6))).astype(np.float32)
    old = ((new + 0.5 * rng.standard_normal(new.shape)) @ np.linalg.qr(rng.standard_normal((6, 6)))[0]).astype("f4")
    frame = pd.DataFrame({"path": [f"{row}.png" for row in range(48)], "label": [f"class{label}" for label in labels]})
    frame["split"] = np.where(labels < 4, "train", "test")
    for name, vectors in (("old", old), ("new", new), ("short", new[:, :4])):
        save_embeddings(folder / f"{name}.parquet", vectors, Table(frame), f"fingerprint of {name}")
    save_embeddings(folder / "other.parquet", new[::-1], Table(frame.iloc[::-1]), "other")
    return folder


def run(files: Path, words: str) -> int:
    return main(words.replace("~", str(files)).split())


def test_an_adapter_maps_stored_vectors_and_its_loss_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "adapt ~/old.parquet ~/new.parquet --out ~/a.safetensors") == 0
    assert "from 6 to 6 dimensions, learned from 24 embeddings" in capsys.readouterr().err  # of the split train
    assert run(files, "embed ~/old.parquet --adapter ~/a.safetensors --out ~/adapted.parquet") == 0
    expected = LinearAdapter.load(files / "a.safetensors").apply(load_embeddings(files / "old.parquet")[0])
    np.testing.assert_allclose(load_embeddings(files / "adapted.parquet")[0], expected, atol=1e-6)
    assert read_fingerprint(files / "adapted.parquet") == "fingerprint of new"
    capsys.readouterr()
    cross = "evaluate ~/old.parquet ~/new.parquet --cross --split test"
    assert run(files, f"{cross} --adapter ~/a.safetensors --tolerance 0.001 --json") == 0
    printed = capsys.readouterr()
    models = list(dict.fromkeys(row["model"] for row in json.loads(printed.out)["results"]))
    assert models == ["old/old", "new/old", "new/new", "new/adapted"]
    assert "warning: new/adapted loses" in printed.err
    assert "more than the tolerance of 0.1" in printed.err
    assert run(files, f"{cross} --adapter ~/a.safetensors --tolerance 1") == 0
    assert "more than the tolerance" not in capsys.readouterr().err


def test_ridge_is_for_other_dimensions(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "adapt ~/old.parquet ~/short.parquet --out ~/r.safetensors --method ridge --alpha 0.1") == 0
    assert run(files, "evaluate ~/old.parquet ~/short.parquet --cross --adapter ~/r.safetensors") == 0
    assert "new/old" not in capsys.readouterr().out


def test_invalid_input_is_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(files, "adapt ~/old.parquet ~/new.parquet --out ~/a.safetensors")
    for words, message in (
        ("adapt ~/old.parquet ~/new.parquet --out ~/x.npy", "ending in .safetensors"),
        ("adapt ~/old.parquet ~/new.parquet --out ~/x.safetensors --alpha 2", "--alpha is for ridge"),
        ("adapt ~/old.parquet ~/none.parquet --out ~/x.safetensors", "none.parquet"),
        ("embed ~/new.parquet --adapter ~/a.safetensors --out ~/y.parquet", "maps embeddings of fingerprint of old"),
        ("embed ~/new.parquet --adapter ~/none.safetensors --out ~/y.parquet", "none.safetensors: no such file"),
        ("embed ~/old.parquet --adapter ~/a.safetensors --shard 1/2 --out ~/y", "--adapter maps the embeddings of one"),
        ("evaluate ~/old.parquet ~/new.parquet --adapter ~/a.safetensors", "give --cross too"),
        ("evaluate ~/old.parquet --cross", "--cross needs two sources"),
        ("evaluate ~/old.parquet ~/new.parquet --cross --compare", "--compare cannot be combined with --cross"),
        ("evaluate ~/old.parquet ~/new.parquet --cross --tolerance 2", "--tolerance 2 must be from 0 to 1"),
        ("evaluate ~/new.parquet ~/old.parquet --cross --adapter ~/a.safetensors", "and these are of fingerprint"),
    ):
        assert message in refused(capsys, *words.replace("~", str(files)).split()).splitlines()[-1]
        assert not any((files / name).exists() for name in ("x.safetensors", "x.npy", "y.parquet", "y"))
