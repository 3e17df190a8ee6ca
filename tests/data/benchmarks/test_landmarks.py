"""Google Landmarks v1 and v2, and SfM-120k."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.benchmarks.published_more import (
    accept_small_more,
    replace_text,
    write_landmarks_v1,
    write_landmarks_v2,
    write_pickle,
    write_sfm_120k,
)
from vicinal.data import load_table
from vicinal.data.benchmarks import landmarks_v1, landmarks_v2, landmarks_v2_full, sfm_120k
from vicinal.data.benchmarks.cache import COUNTS
from vicinal.utils.errors import InputError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)


def test_landmarks_v1(tmp_path: Path) -> None:
    write_landmarks_v1(tmp_path)
    table = load_table("landmarks_v1", root=tmp_path)
    assert table.subset("train").classes == [0, 1, 2, 3, 4, 5]
    assert table.subset("val").class_counts.tolist() == [5, 5]
    assert all(Path(path).is_file() for path in table.paths)
    assert landmarks_v1(tmp_path / "gl18").paths == table.paths
    (tmp_path / "gl18/images/train").rename(tmp_path / "gl18/jpg")
    (tmp_path / "gl18/gl18.pkl").rename(tmp_path / "gl18/db_gl18.pkl")
    assert landmarks_v1(tmp_path).paths[0] == str(tmp_path / "gl18/jpg" / Path(table.paths[0]).name)
    (tmp_path / "gl18/jpg").rename(tmp_path / "gl18/elsewhere")
    with pytest.raises(InputError, match=r"gl18: has db_gl18\.pkl, but no folder of images: images/train, train, jpg"):
        landmarks_v1(tmp_path)


def test_sfm_120k(tmp_path: Path) -> None:
    write_sfm_120k(tmp_path)
    table = load_table("sfm_120k", root=tmp_path)
    assert table.subset("train").classes == [f"train/{number}" for number in range(6)]
    assert table.subset("val").classes == ["val/0", "val/1"]
    name = Path(table.paths[0]).name
    folder = tmp_path / "retrieval-SfM-120k"
    assert table.paths[0] == str(folder / "ims" / name[-2:] / name[-4:-2] / name[-6:-4] / name)
    assert sfm_120k(folder).paths == table.paths
    Path(table.paths[3]).unlink()
    with pytest.raises(InputError, match=r"SfM-120k: 1 of 40 images that its lists name are absent: ims/"):
        sfm_120k(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("val"), r"gl18\.pkl: no dicts 'train' and 'val'"),
        (lambda content: content["val"]["cluster"].pop(), r"gl18\.pkl: val: 'cids' and 'cluster' are not two lists"),
        (
            lambda content: content["val"]["cluster"].append([1]) or content["val"]["cids"].append("a" * 9),
            "of one type",
        ),
        (lambda content: content["val"]["cids"].__setitem__(0, 7), r"val: '7' in 'cids' is not the id of an image"),
        (lambda content: content["val"]["cids"].__setitem__(0, "aa/../../etc/passwd"), r"'aa/\.\./\.\./etc/passwd' in"),
        (lambda content: content["val"]["cids"].__setitem__(0, content["val"]["cids"][1]), r"the id .* is there twice"),
        (lambda content: content["val"].update(cluster=["a"] * 10), r"train and val are of two types"),
        (lambda content: content["train"].update(cids=Evil()), r"gl18\.pkl: not a pickle of plain data"),
    ],
)
def test_pickles_of_another_structure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_landmarks_v1(tmp_path)
    content = pickle.loads((tmp_path / "gl18/gl18.pkl").read_bytes())
    change(content)
    write_pickle(tmp_path / "gl18/gl18.pkl", content)
    with pytest.raises(InputError, match=message):
        landmarks_v1(tmp_path)
    assert not Path("evil").exists()


@pytest.mark.parametrize("name", ["landmarks_v2", "landmarks_v2_full"])
def test_landmarks_v2(tmp_path: Path, name: str) -> None:
    write_landmarks_v2(tmp_path)
    table = load_table(name, root=tmp_path)
    train, test = table.subset("train").frame, table.subset("test").frame
    assert train["label"].value_counts().to_dict() == {f"train/{number}": 5 for number in range(6)}
    assert not (train["is_query"] | train["is_gallery"]).any()
    gallery, queries = test[test["is_gallery"]], test[test["is_query"]]
    assert gallery["label"].value_counts().to_dict() == {f"index/{number}": 5 for number in range(4)}
    assert queries["query_set"].tolist() == ["private", "public", "private", "public"]
    assert queries["label"].tolist() == [f"index/{number}" for number in range(4)]
    of_first = gallery["image_id"][gallery["label"] == "index/0"]
    assert queries["positives"].iloc[0] == " ".join(of_first)
    image = train["image_id"].iloc[0]
    assert train["path"].iloc[0] == str(tmp_path / "google-landmark/train" / "/".join(image[:3]) / f"{image}.jpg")
    assert all(Path(path).is_file() for path in table.paths)


def test_parts_of_landmarks_v2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_landmarks_v2(tmp_path)
    folder = tmp_path / "google-landmark"
    (folder / "index.csv").rename(folder / "kept.csv")
    assert landmarks_v2(tmp_path).splits == ["train"]
    assert "no index.csv, so landmarks_v2 has no queries and gallery" in capsys.readouterr().err
    (folder / "kept.csv").rename(folder / "index.csv")
    (folder / "train.csv").unlink()
    assert landmarks_v2_full(tmp_path).splits == ["test"]
    assert "no train.csv, so landmarks_v2_full has no training images" in capsys.readouterr().err
    assert landmarks_v2(tmp_path).splits == ["train", "test"]
    with pytest.raises(InputError, match=r"nowhere: no train_clean\.csv or index\.csv in landmarks_v2/,"):
        landmarks_v2(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("train_clean.csv", "landmark_id", "landmark", r"train_clean\.csv: no column 'landmark_id'"),
        ("train_clean.csv", " ", " x", r"google-landmark: a list has the id 'x[0-9a-f]{16}'; ids are 16 digits"),
        ("index.csv", "\n", "\n0123456789abcdef\n", r"index_image_to_landmark\.csv: no line for 0123456789abcdef"),
        ("retrieval_solution_v2.1.csv", "Public", "Secret", r"2\.1\.csv, line 4: Usage is not Public, Private,"),
        ("retrieval_solution_v2.1.csv", ",None,Ignored", ",None,Public", r"index\.csv: no line for None"),
        ("retrieval_solution_v2.1.csv", ",None,Ignored", ",,Public", r"2\.1\.csv, line 2: no images; a query that is"),
    ],
)
def test_bad_lists_of_landmarks_v2(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    write_landmarks_v2(tmp_path)
    replace_text(tmp_path / "google-landmark" / file, old, new)
    with pytest.raises(InputError, match=message):
        landmarks_v2(tmp_path)


def test_partial_copies_of_landmarks_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_landmarks_v2(tmp_path)
    folder = tmp_path / "google-landmark"
    path = landmarks_v2(tmp_path).paths[-1]
    Path(path).unlink()
    with pytest.raises(InputError, match=r"google-landmark: 1 of 24 images that its lists name are absent: test/"):
        landmarks_v2(tmp_path)
    lines = (folder / "index.csv").read_text().splitlines()
    (folder / "index.csv").write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(InputError, match=r"google-landmark: the lists name image [0-9a-f]{16} of index/ twice"):
        landmarks_v2(tmp_path)
    (folder / "index.csv").unlink()
    monkeypatch.setitem(COUNTS, "landmarks_v2", {"train": (1_580_470, 81_313)})
    with pytest.raises(InputError, match=r"train of landmarks_v2 has 30 images of 6 classes, but 1,580,470 of 81,313"):
        landmarks_v2(tmp_path)
