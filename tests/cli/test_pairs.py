"""`vicinal evaluate --pairs`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import output, refused
from vicinal.data import Table, save_embeddings
from vicinal.evaluation import evaluate_pairs


@pytest.fixture
def embeddings(tmp_path: Path) -> tuple[Path, np.ndarray]:
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    table = Table(pd.DataFrame({"path": [f"{i}.png" for i in range(40)]}), root=tmp_path)
    save_embeddings(tmp_path / "v.parquet", vectors, table)
    return tmp_path / "v.parquet", vectors


def write_pairs(path: Path, rows: np.ndarray, same: np.ndarray, suffix: str = ".png", **columns: object) -> Path:
    frame = pd.DataFrame({"a": rows[:, 0].astype(str), "b": rows[:, 1].astype(str)}) + suffix
    frame.assign(same=same, **columns).to_csv(path, index=False)
    return path


def test_pairs_by_path_and_by_row(embeddings: tuple[Path, np.ndarray], tmp_path: Path, capsys) -> None:
    source, vectors = embeddings
    rng = np.random.default_rng(1)
    rows, same = rng.integers(0, 40, (60, 2)), rng.random(60) < 0.5
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = (unit[rows[:, 0]] * unit[rows[:, 1]]).sum(axis=1)
    by_path = write_pairs(tmp_path / "p.csv", rows, same)
    by_row = write_pairs(tmp_path / "r.csv", rows, same.astype(int), "", fold=np.arange(60) % 3)
    expected = evaluate_pairs(similarities, same)
    found = json.loads(output(capsys, "evaluate", source, "--pairs", by_path, "--json"))
    assert found["accuracy"] == pytest.approx(expected.accuracy)
    assert found["auroc"] == pytest.approx(expected.auroc)
    assert (found["num_same"], len(found["folds"])) == (same.sum(), 10)
    text = output(capsys, "evaluate", source, "--pairs", by_row)
    expected = evaluate_pairs(similarities, same, np.arange(60) % 3)
    assert f"accuracy        {100 * expected.accuracy:6.2f} % ± {100 * expected.standard_error:.2f}" in text
    assert "TAR@FAR=0.01" in text


def test_a_model_embeds_the_listed_images(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    names = [(f"class{i % 8}/{i % 6}.png", f"class{(i + i % 2) % 8}/{(i + 1) % 6}.png", 1 - i % 2) for i in range(40)]
    pd.DataFrame(names, columns=["a", "b", "same"]).to_csv(tmp_path / "p.csv", index=False)
    words = ["evaluate", "--pairs", tmp_path / "p.csv", "--root", photos, "--json"]
    found = json.loads(output(capsys, *words, "--model", run))
    assert (found["num_same"], found["num_different"]) == (20, 20)
    words[4] = photos / ".." / photos.name
    assert json.loads(output(capsys, *words, "--model", run)) == found


def test_bad_lists_are_told(embeddings: tuple[Path, np.ndarray], tmp_path: Path, capsys) -> None:
    source = embeddings[0]
    for text, words, message in (
        ("a,b\n0.png,1.png\n", [source], "p.csv: no column 'same'"),
        ("a,b,same\n0.png,1.png,1\n0.png,2.png,maybe\n", [source], "p.csv, line 3: same is 'maybe'; use 1 or 0"),
        ("a,b,same\n0.png,1.png,1\n0.png,99.png,0\n", [source], "99.png is not among the 40 images"),
        ("a,b,same\n0,1,1\n0,99,0\n", [source], "p.csv, line 3: 99 is not among the 40 images"),
        ("a,b,same\n", [source], "a header and no rows"),
        ("a,b,same\n0.png,1.png,1\n", [], "--pairs needs a source with the images, or --model"),
        ("a,b,same\n0.png,1.png,1\n", [source, "--compare"], "--compare is for rankings"),
    ):
        (tmp_path / "p.csv").write_text(text)
        assert message in refused(capsys, "evaluate", *words, "--pairs", tmp_path / "p.csv")
