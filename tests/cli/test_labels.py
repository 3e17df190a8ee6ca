"""`--labels`: the table of embeddings in a file of its own, for every verb that reads embeddings."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import output, refused
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.retrieval import Index
from vicinal.workflows.embedded_table import load_file

LABELS = ("--labels", "y.csv", "--label_column", "kind", "--path_column", "file")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng, classes = np.random.default_rng(0), np.repeat(np.arange(6), 6)
    np.save("x.npy", np.eye(6, 4)[classes] + 0.5 * rng.normal(size=(36, 4)))
    split = np.where(classes < 3, "train", "test")
    rows = {"file": [f"{row}.jpg" for row in range(36)], "kind": [f"k{label}" for label in classes], "split": split}
    pd.DataFrame(rows).to_csv("y.csv", index=False)
    return tmp_path


def test_findings_are_told_by_them(folder: Path, capsys) -> None:
    counts = json.loads(output(capsys, "clean", "x.npy", *LABELS, "--json", "--csv", "f.csv"))["findings"]
    assert counts["label_error"] > 0
    assert Path(pd.read_csv("f.csv")["path"][0]).parent == folder
    assert "--csv y.csv: is --labels too" in refused(capsys, "clean", "x.npy", "--labels", "y.csv", "--csv", "y.csv")


def test_an_index_and_a_file_keep_them(folder: Path, capsys) -> None:
    output(capsys, "index", "build", "i", "x.npy", *LABELS)
    assert Index.load("i").contents()[1]["label"][7] == "k1"
    output(capsys, "embed", "x.npy", *LABELS, "--out", "z.parquet")
    assert load_embeddings("z.parquet")[1].paths[7] == str(folder / "7.jpg")
    found = json.loads(output(capsys, "search", "i", "x.npy", *LABELS, "-k", "1", "--exclude_self", "--json"))
    assert all(each["matches"][0]["path"] != each["query"]["path"] for each in found)


def test_a_calibration_needs_them_in_the_order_of_the_embeddings(folder: Path, capsys) -> None:
    message = "x.npy has no labels; give them with --labels FILE, or in x.table.csv"
    assert message in refused(capsys, "calibrate", "x.npy")
    assert json.loads(output(capsys, "calibrate", "x.npy", *LABELS, "--json"))["num_queries"] == 36
    pd.DataFrame({"path": [f"old/{row}.jpg" for row in range(36)]}).to_csv("x.table.csv", index=False)
    output(capsys, "evaluate", "x.npy", *LABELS)  # the same files, which have been moved
    frame = pd.read_csv("y.csv")
    pd.concat([frame[1:], frame[:1]]).to_csv("y.csv", index=False)
    message = "y.csv: row 0 is 1.jpg, but its embedding in x.npy is of 0.jpg; put the rows"
    assert message in refused(capsys, "evaluate", "x.npy", *LABELS)


@pytest.mark.parametrize("name", ["z.npy", "z.parquet"])
def test_labels_without_paths_keep_those_of_the_embeddings(name: str) -> None:
    boxes = {"x_1": 0.0, "y_1": 0.0, "x_2": np.arange(1.0, 37.0), "y_2": 9.0}
    own = Table(pd.DataFrame({"path": "/p/a.jpg", "label": "?", **boxes}))
    save_embeddings(name, np.load("x.npy"), own)
    np.save("y.npy", np.arange(36))
    table = load_file(name, labels="y.npy").table
    assert table.labels.tolist() == list(range(36))
    assert table.image_keys == own.image_keys


def test_what_they_cannot_be_given_to(capsys) -> None:
    for words, message in (
        ("clean digits --labels y.csv --model timm/resnet50", "--labels is for files of embeddings, and digits is"),
        ("index sync i digits --labels y.csv --model timm/resnet50", "files of embeddings, and digits is not one"),
        ("embed --merge . --out z.npy --labels y.csv", "--labels is for one file of embeddings; merge"),
        ("whiten x.npy --labels z.csv --out w.safetensors", "z.csv: no such file"),
        ("refine --embeddings x.npy --labels z.csv --out r", "z.csv: no such file"),
    ):
        assert message in refused(capsys, *words.split())
