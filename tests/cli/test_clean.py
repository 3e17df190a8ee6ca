"""`vicinal clean` of a folder, of embeddings and of what cannot be cleaned."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import output, refused
from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings


def test_a_folder_gives_a_page_and_a_table(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    shutil.copy(folder / "class0" / "0.png", folder / "class1" / "copy.png")
    (folder / "class2" / "broken.png").write_bytes(b"no image")
    page, file = tmp_path / "page.html", tmp_path / "findings.csv"
    text = output(capsys, "clean", folder, "--model", run, "--out", page, "--csv", file, "--json")
    found = json.loads(text)
    assert found["images"] == 50
    assert found["findings"]["broken"] == found["findings"]["exact_duplicate"] == 1
    assert found["page"] == str(page)
    lines = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert lines.query("finding == 'exact_duplicate'")["message"].tolist() == ["with different labels"] * 2
    lines.loc[lines["finding"] == "broken", "decision"] = "drop"
    lines.to_csv(file, index=False)
    output(capsys, "data", folder, "--apply", file, "--out", tmp_path / "new.csv", "--no_check")
    assert len(Table.from_csv(tmp_path / "new.csv")) == 49
    assert len(list(folder.rglob("*.png"))) == 50


def test_embeddings_need_no_images_and_no_labels(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    vectors[7] = vectors[3]
    save_embeddings("v.parquet", vectors, Table(pd.DataFrame({"path": [f"/lost/{n}.png" for n in range(30)]})))
    text = output(capsys, "clean", "v.parquet", "--num_neighbors", "5")
    assert "near duplicate   1" in text.splitlines()
    assert (tmp_path / "cleaning.html").is_file()


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_it_says_where_a_model_does_not_tell_classes_apart(spread: float, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.arange(60) % 4
    vectors = np.eye(4)[labels] + np.random.default_rng(0).normal(0, spread, (60, 4))
    labels[:3] = 3  # wrong
    save_embeddings("v.parquet", vectors.astype(np.float32), Table(pd.DataFrame({"label": labels})))
    assert main(["clean", "v.parquet", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["findings"]["label_error"] >= 3
    assert ("have a nearest neighbor of their class: either very many labels are wrong" in captured.err) == (spread > 1)


def test_neither_the_source_nor_decisions_are_written_over(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    save_embeddings("v.parquet", vectors, Table(pd.DataFrame({"label": range(9)})))
    before = Path("v.parquet").read_bytes()
    assert main(["clean", "v.parquet", "--csv", str(tmp_path / "v.parquet")]) == 2
    assert Path("v.parquet").read_bytes() == before
    output(capsys, "clean", "v.parquet", "--csv", "f.csv")
    output(capsys, "clean", "v.parquet", "--csv", "f.csv")  # nothing was decided yet
    lines = pd.read_csv("f.csv", dtype=str, keep_default_na=False)
    lines.assign(decision="keep").to_csv("f.csv", index=False)
    assert "f.csv: holds 9 decisions, which would be lost" in refused(capsys, "clean", "v.parquet", "--csv", "f.csv")


def test_the_page_of_one_split_tells_its_images_from_those_of_others(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    splits = ["test"] * 4 + ["train"] * 4
    paths = [f"/lost/{split}/owl/{row % 4}.png" for row, split in enumerate(splits)]
    table = Table(pd.DataFrame({"path": paths, "split": splits}))
    save_embeddings("v.parquet", np.ones((8, 2), dtype=np.float32), table)
    for selection in (["--split", "train"], ["--where", "split == 'train'"]):
        output(capsys, "clean", "v.parquet", *selection)
        page = Path("cleaning.html").read_text(encoding="utf-8")
        assert '"path":"train/owl/0.png"' in page
        assert '"path":"owl' not in page
