"""More benchmarks in the layout of their published files: their tables, and damaged or partial copies."""

import gzip
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.benchmarks import published_more as published
from tests.refusals import refused_call
from vicinal.data import benchmarks, load_table
from vicinal.data.benchmarks import cars98n, grocery, landmarks_v1, landmarks_v2, met, mnist
from vicinal.data.benchmarks.mnist import read_idx
from vicinal.utils.errors import InputError

ARCHIVE = Path(__file__).parents[4] / "shared" / "data" / "grocery" / "grocery.zip"
ARCHIVE = Path(os.environ.get("VICINAL_GROCERY") or ARCHIVE)

pytestmark = pytest.mark.filterwarnings("ignore:class '(0|10)' is in the splits train and test")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    published.accept_small_more(monkeypatch)


def test_landmarks_v1(tmp_path: Path) -> None:
    published.write_landmarks_v1(tmp_path)
    table = load_table("landmarks_v1", root=tmp_path)
    assert table.subset("train").classes == [0, 1, 2, 3, 4, 5]
    assert table.subset("val").class_counts.tolist() == [5, 5]
    assert all(Path(path).is_file() for path in table.paths)
    assert landmarks_v1(tmp_path / "gl18").paths == table.paths
    (tmp_path / "gl18/images/train").rename(tmp_path / "gl18/jpg")
    (tmp_path / "gl18/gl18.pkl").rename(tmp_path / "gl18/db_gl18.pkl")
    assert landmarks_v1(tmp_path).paths[0] == str(tmp_path / "gl18/jpg" / Path(table.paths[0]).name)
    (tmp_path / "gl18/jpg").rename(tmp_path / "gl18/elsewhere")
    refused_call(r"gl18: has db_gl18\.pkl, but no folder of images: images/train, train, jpg", landmarks_v1, tmp_path)


def test_sfm_120k(tmp_path: Path) -> None:
    published.write_sfm_120k(tmp_path)
    table = load_table("sfm_120k", root=tmp_path)
    assert table.subset("train").classes == [f"train/{number}" for number in range(6)]
    assert table.subset("val").classes == ["val/0", "val/1"]
    name = Path(table.paths[0]).name
    folder = tmp_path / "retrieval-SfM-120k"
    assert table.paths[0] == str(folder / "ims" / name[-2:] / name[-4:-2] / name[-6:-4] / name)
    assert benchmarks.sfm_120k(folder).paths == table.paths
    Path(table.paths[3]).unlink()
    refused_call(r"SfM-120k: 1 of 40 images in its lists are missing: ims/", benchmarks.sfm_120k, tmp_path)


def test_pickles_of_another_structure(tmp_path: Path) -> None:
    published.write_landmarks_v1(tmp_path)
    whole = (tmp_path / "gl18/gl18.pkl").read_bytes()
    for change, message in (
        (lambda content: content.pop("val"), r"gl18\.pkl: no dicts 'train' and 'val'"),
        (lambda content: content["val"]["cluster"].pop(), r"gl18\.pkl: val: 'cids' and 'cluster' are not two lists"),
        (
            lambda content: content["val"]["cluster"].append([1]) or content["val"]["cids"].append("a" * 9),
            "of one type",
        ),
        (lambda content: content["val"]["cids"].__setitem__(0, 7), r"val: '7' in 'cids' is not the id of an image"),
        (lambda content: content["val"]["cids"].__setitem__(0, "aa/../../etc/passwd"), r"'aa/\.\./\.\./etc/passwd' in"),
        (lambda content: content["val"]["cids"].__setitem__(0, content["val"]["cids"][1]), r"the id .* appears twice"),
        (lambda content: content["val"].update(cluster=["a"] * 10), r"train and val are of two types"),
    ):
        content = pickle.loads(whole)
        change(content)
        published.write_pickle(tmp_path / "gl18/gl18.pkl", content)
        refused_call(message, landmarks_v1, tmp_path)


@pytest.mark.parametrize("name", ["landmarks_v2", "landmarks_v2_full"])
def test_landmarks_v2(tmp_path: Path, name: str) -> None:
    published.write_landmarks_v2(tmp_path)
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
    published.write_landmarks_v2(tmp_path)
    folder = tmp_path / "google-landmark"
    (folder / "index.csv").rename(folder / "kept.csv")
    assert landmarks_v2(tmp_path).splits == ["train"]
    assert "no index.csv, so landmarks_v2 has no queries and gallery" in capsys.readouterr().err
    (folder / "kept.csv").rename(folder / "index.csv")
    (folder / "train.csv").unlink()
    assert benchmarks.landmarks_v2_full(tmp_path).splits == ["test"]
    assert "no train.csv, so landmarks_v2_full has no training images" in capsys.readouterr().err
    assert landmarks_v2(tmp_path).splits == ["train", "test"]
    refused_call(r"nowhere: no train_clean\.csv or index\.csv in landmarks_v2/,", landmarks_v2, tmp_path / "nowhere")


def test_partial_copies_of_landmarks_v2(tmp_path: Path) -> None:
    published.write_landmarks_v2(tmp_path)
    folder = tmp_path / "google-landmark"
    path = landmarks_v2(tmp_path).paths[-1]
    Path(path).unlink()
    refused_call(r"google-landmark: 1 of 24 images in its lists are missing: test/", landmarks_v2, tmp_path)
    lines = (folder / "index.csv").read_text().splitlines()
    (folder / "index.csv").write_text("\n".join([*lines, lines[-1]]))
    refused_call(r"google-landmark: the lists name image [0-9a-f]{16} of index/ twice", landmarks_v2, tmp_path)


def test_the_catalog_of_met_is_for_training_and_the_gallery(tmp_path: Path) -> None:
    published.write_met(tmp_path)
    folder = tmp_path / "met"
    table = load_table("met", root=folder.parent)
    train, test = table.subset("train"), table.subset("test").frame
    assert train.classes == [10, 11, 12, 13, 14, 15]
    assert not (train.frame["is_query"] | train.frame["is_gallery"]).any()
    assert test["path"][test["is_gallery"]].tolist() == train.paths
    for part in ("val", "test"):
        queries = test[test["query_set"] == part]
        assert queries["is_query"].all()
        assert queries["label"].tolist() == [10, 11, 12, 13, -1, -1]
    assert all(Path(path).is_file() for path in table.paths)
    assert met(folder).paths == table.paths
    with pytest.warns(UserWarning, match="class '10' is in the splits train and test"):
        assert len(benchmarks.met_mini(folder).subset("train")) == 15


def test_partial_copies_of_met(tmp_path: Path) -> None:
    published.write_met(tmp_path)
    folder = tmp_path / "met"
    path = folder / "ground_truth/MET_database.json"
    path.write_text("{}")
    refused_call(r"MET_database\.json: is not a list of images", met, folder)
    refused_call(r"no ground_truth/MET_database\.json or MET_database\.json in met/, MET/ or", met, folder / "images")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("mnist", published.write_mnist),
        ("fashion_mnist", published.write_fashion_mnist),
        ("kmnist", published.write_kmnist),
    ],
)
def test_images_are_those_of_the_files_of_mnist(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    table = load_table(name, root=tmp_path)
    assert [table.subset(split).class_counts.tolist() for split in ("train", "test")] == [[5] * 6, [2] * 6]
    images = read_idx(next(path for path in tmp_path.rglob("t10k-images*")), 3)
    testing = table.subset("test")
    assert testing.labels.tolist() == list(range(6)) * 2
    for path, pixels in zip(testing.paths, images, strict=True):
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels)


def test_images_are_written_once_and_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.write_mnist(tmp_path / "data", folder="MNIST/raw", suffix=".gz")
    for path in (tmp_path / "data/MNIST/raw").iterdir():  # as some archives name them
        path.rename(path.with_name(path.name.replace("-idx", ".idx").replace(".gz", "-ubyte.gz")))
    written = mnist(tmp_path / "data").paths[0]
    assert written == str(tmp_path / "data/mnist/png/train/0/00000.png")
    time = Path(written).stat().st_mtime_ns
    assert mnist(tmp_path / "data").paths[0] == written
    assert Path(written).stat().st_mtime_ns == time
    published.write_mnist(tmp_path / "kept")
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path / "cache"))
    (tmp_path / "kept/mnist").chmod(0o555)
    try:
        assert mnist(tmp_path / "kept").paths[0].startswith(str(tmp_path / "cache/mnist/png"))
    finally:
        (tmp_path / "kept/mnist").chmod(0o755)


def test_missing_and_damaged_files_of_mnist_leave_nothing_behind(tmp_path: Path) -> None:
    published.write_mnist(tmp_path)
    folder = tmp_path / "mnist"
    with pytest.raises(InputError, match=r"nothing: no train-images-idx3-ubyte or .* in mnist/, MNIST/raw/, MNIST/ or"):
        mnist(tmp_path / "nothing")
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    labels.unlink()
    refused_call(r"mnist: no t10k-labels-idx1-ubyte or .*; put the four files there", mnist, tmp_path)
    for damaged, message in (
        (whole[:-9], r"ubyte\.gz: not a valid gzip file"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\x01aaaa"), r"ubyte\.gz: not an idx file of bytes with 1 axes"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05aaaa"), r"ubyte\.gz: not the 5 bytes that its header says"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05aaaaaa"), r"ubyte\.gz: not the 5 bytes that its header says"),
        (gzip.compress(b"\0\0\x08"), r"ubyte\.gz: not an idx file"),
    ):
        labels.write_bytes(damaged)
        refused_call(message, mnist, tmp_path)
    published.write_idx(labels, np.arange(5))
    refused_call(r"mnist: 12 images for test but 5 labels", mnist, tmp_path)
    assert not (folder / "png").exists()


def test_cars98n(tmp_path: Path) -> None:
    published.write_cars98n(tmp_path)
    table = load_table("cars98n", root=tmp_path)
    assert table.subset("train").classes == [1, 2, 3, 11, 12, 13]  # the list has 1, 2, 6, 3, 4, 5
    assert table.subset("test").frame.equals(benchmarks.cars(tmp_path).subset("test").frame[["path", "label", "split"]])
    assert table.paths[10].startswith(str(tmp_path / "cars98n/img_v3/10/"))
    assert all(Path(path).is_file() for path in table.paths)


def test_images_that_could_not_be_downloaded_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published.write_cars98n(tmp_path)
    folder = tmp_path / "cars98n"
    shutil.rmtree(folder / "img_v3/2")
    next((folder / "img_v3/0").iterdir()).unlink()
    table = cars98n(tmp_path)
    assert table.subset("train").class_counts.tolist() == [4, 5, 5, 5, 5]
    assert "left out 6 of 30 images whose files are missing" in capsys.readouterr().err
    shutil.rmtree(folder / "img_v3")
    refused_call(r"cars98n: none of the 30 images of CARSN_train\.csv is in img_v3/; get the", cars98n, tmp_path)


def test_food_101n(tmp_path: Path) -> None:
    published.write_food_101n(tmp_path)
    table = load_table("food_101n", root=tmp_path)
    train, test = table.subset("train"), table.subset("test")
    assert train.classes == published.food_classes()[:6]
    assert test.classes == published.food_classes()[97:]
    assert test.class_counts.tolist() == [5] * 4
    assert train.frame["verification"].tolist() == ["wrong", "right"] * 4 + ["none"] * 22
    assert train.frame["noisy_label"].sum() == 4
    assert not test.frame["noisy_label"].any()
    assert train.paths[0].startswith(str(tmp_path / "Food-101N_release/images/dish_000/"))
    assert test.paths[0].startswith(str(tmp_path / "food-101/images/dish_097/"))
    together = tmp_path / "elsewhere/food_101n"
    together.mkdir(parents=True)
    for name in ("Food-101N_release", "food-101"):
        (tmp_path / name).rename(together / name)
    assert len(benchmarks.food_101n(together.parent)) == len(table)


def test_the_archive_of_grocery_is_unpacked_once(tmp_path: Path) -> None:
    published.write_grocery(tmp_path)
    table = load_table("grocery", root=tmp_path)
    assert {split: len(table.subset(split).classes) for split in table.splits} == {"train": 6, "val": 2, "test": 4}
    assert set(table.subset("train").frame["coarse"]) == {"Train-0", "Train-1"}
    assert sorted(set(table.frame["group"])) == ["test", "train"]
    assert table.paths[0] == str(tmp_path / "grocery/images/Train-0/Product-0/train_000.jpg")
    (tmp_path / "grocery.zip").unlink()
    assert grocery(tmp_path).paths == table.paths
    assert grocery(tmp_path / "grocery/images").paths == table.paths
    written = tmp_path / "grocery" / "images" / "table.csv"
    written.write_text("".join(written.read_text().splitlines(keepends=True)[:-1]))
    refused_call(r"table.csv has changed or is damaged; delete the folder .*/images to", grocery, tmp_path)


@pytest.mark.parametrize("name", ["../evil.jpg", "a/../../evil/c.jpg", "/etc/a/evil.jpg", "a/b/c/d.jpg", "other.csv"])
def test_archives_of_grocery_of_other_layouts_are_refused(tmp_path: Path, name: str) -> None:
    published.write_grocery(tmp_path)
    with zipfile.ZipFile(tmp_path / "grocery.zip", "a") as archive:
        archive.writestr(name, "")
    refused_call(r"grocery\.zip: holds '.*'; its images must be <coarse>/<product>/", grocery, tmp_path)
    assert not (tmp_path / "grocery/images").exists()
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"no {ARCHIVE}; set VICINAL_GROCERY to its place")
def test_the_published_archive_of_grocery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "grocery.zip").symlink_to(ARCHIVE)
    table = grocery(tmp_path)
    assert len(set(table.frame["coarse"])) == 33
    assert not set(table.subset("train").frame["coarse"]) & set(table.subset("test").frame["coarse"])
