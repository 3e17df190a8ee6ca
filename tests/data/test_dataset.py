"""Datasets of settings, and lists of training images with labels of their own, as PRISM published them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.benchmarks import published
from tests.data.benchmarks.published_more import cub_rows, write_cub_train_list
from tests.refusals import refused_call
from vicinal.data import DataSettings, NoiseSettings, Table, load_dataset, load_table
from vicinal.data.dataset import use_train_list
from vicinal.utils.errors import InputError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    published.accept_small(monkeypatch, "cub", "cars", "sop")
    published.write_cub(tmp_path)
    return tmp_path


def test_the_labels_are_those_of_the_list(root: Path) -> None:
    table = use_train_list(load_table("cub", root=root), write_cub_train_list(root))
    training, own = table.subset("train"), load_table("cub", root=root)
    assert sorted(training.paths) == sorted(own.subset("train").paths)
    assert training.frame["label"].tolist()[:6] == ["listed/4", "listed/4", *["listed/1"] * 3, "listed/2"]
    assert training.class_counts.tolist() == [3, 5, 5, 7, 5, 5]
    assert training.frame["box_x_1"].tolist() == [2] * 30
    assert table.subset("test").frame[["path", "label"]].equals(own.subset("test").frame[["path", "label"]])


def test_noise_is_known_if_the_clean_list_is_there(root: Path) -> None:
    table = load_table("cub", root=root)
    frame = use_train_list(table, write_cub_train_list(root)).frame
    assert frame["noisy_label"].tolist() == [True] * 2 + [False] * 48
    assert frame["label_clean"].tolist()[:3] == ["listed/1"] * 3
    assert (frame["label"] != frame["label_clean"]).tolist() == frame["noisy_label"].tolist()
    clean_list = root / "CUB_0.1noised_cleaned_train.csv"
    clean = use_train_list(table, clean_list)
    assert len(clean.subset("train")) == 28
    assert not clean.has("noisy_label")
    clean_list.write_text(f"{clean_list.read_text()}/old{clean_list.read_text().splitlines()[0]}\n")
    refused_call("line 29: .* is the image of line 1 again", use_train_list, table, clean_list)


def car_rows() -> list[str]:
    """As published: a folder per class, the second of two images of one name with a suffix, numbers as labels."""
    names = ["00001.jpg", "00002.jpg", "00003.jpg", "00001_2.jpg", "00002_2.jpg"]
    return [f"/data/cars196/images/Model 1 C-V 2012/{name},7" for name in names]


def all_car_rows(table: Table) -> list[str]:
    """The other classes too, each image under the name that it has, in the folder of its class."""
    frame = table.subset("train").frame
    others = frame[frame["label"] != 1]
    names: set[str] = set()
    rows = car_rows()
    for path, label in zip(others["path"], others["label"], strict=True):
        name = f"Model {label} C-V 2012/{Path(path).name}"
        rows.append(f"/data/cars196/images/{name.replace('.jpg', '_2.jpg') if name in names else name},{label}")
        names.add(name)
    return rows


@pytest.mark.parametrize("write", [published.write_cars_devkit, published.write_cars_class_folders])
def test_cars_with_training_and_test_images_of_the_same_names(root: Path, write: Callable[[Path], None]) -> None:
    write(root / "cars")
    table = load_table("cars", root=root)
    published.write_lines(root / "list.csv", *all_car_rows(table))
    listed = use_train_list(table, root / "list.csv").subset("train")
    assert len(set(listed.paths)) == 30
    folders = ["test" if "test" in path.removeprefix(str(root)) else "train" for path in listed.paths[:5]]
    assert folders == ["train"] * 3 + ["test"] * 2
    clean = dict(zip(table.paths, table.frame["label"], strict=True))
    expected = [label if label != 1 else 7 for label in map(clean.get, listed.paths)]
    assert listed.frame["label"].tolist() == [f"listed/{label}" for label in expected]
    assert use_train_list(table, root / "list.csv").subset("test").classes == ["100", "101", "102", "99"]


def test_products(root: Path) -> None:
    published.write_sop(root)
    published.write_lines(
        root / "list.csv", *(f"/data/Stanford_Online_Products/bicycle_final/1_{i}.JPG,9" for i in range(5))
    )
    listed = use_train_list(load_table("sop", root=root), root / "list.csv").subset("train")
    assert listed.classes == ["listed/9"]
    assert listed.has("coarse")


def test_bad_lists(root: Path) -> None:
    for lines, message in (
        (["a/1.jpg"], r"list\.csv, line 1: 1 fields where there must be 2"),
        (["a/1.jpg,one"], r"list\.csv, line 1: 'one' is not an integer"),
        (cub_rows(1) + cub_rows(1), r"list\.csv, line 6: /data/.*Bird_1_0000\.jpg appears twice, first in line 1"),
        (cub_rows(1, 101), r"5 of 10 images are not in the training split: /data/.*/101\.Bird_101/Bird_101_0000\.jpg"),
        ([], r"list\.csv: names no image"),
    ):
        published.write_lines(root / "list.csv", *lines)
        refused_call(message, use_train_list, load_table("cub", root=root), root / "list.csv")
        refused_call(r"nowhere\.csv: no such file", use_train_list, load_table("cub", root=root), root / "nowhere.csv")


@pytest.fixture
def source(tmp_path: Path) -> str:
    frame = pd.DataFrame({"path": "x.png", "label": np.repeat(np.arange(10), 4), "coarse": np.repeat([0, 1], 20)})
    Table(frame, root=tmp_path).save(tmp_path / "t.csv")
    return str(tmp_path / "t.csv")


def sizes(table: Table) -> dict[str, int]:
    return {split: len(table.subset(split).classes) for split in table.splits}


def test_a_dataset_is_split_by_default_fractions_and_as_the_settings_say(source: str) -> None:
    assert sizes(load_dataset(DataSettings(source))) == {"train": 6, "val": 2, "test": 2}
    assert sizes(load_dataset(DataSettings(source, fractions={"train": 0.5, "test": 0.5}))) == {"train": 5, "test": 5}
    assert sizes(load_dataset(DataSettings(source, classes={"train": [1, 2]}))) == {"train": 2}
    by_coarse = load_dataset(DataSettings(source, fractions={"train": 0.5, "val": 0.5}, split_column="coarse"))
    assert sizes(by_coarse) == {"train": 5, "val": 5}
    assert by_coarse.frame.groupby("coarse")["split"].nunique().max() == 1


def test_the_seed_of_a_dataset_determines_splits_and_noise(source: str) -> None:
    settings = DataSettings(source, noise=NoiseSettings(random_labels=0.25))
    one, same, other = (load_dataset(settings, seed).frame for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one["split"].equals(other["split"])
    assert one["noisy_label"].sum() == 6


def test_datasets_that_cannot_be_used(source: str) -> None:
    for settings, message in (
        ({"source": None}, "data.source is missing: give a folder of class folders"),
        ({"classes": {"val": [1]}}, "has no rows in the split train; its splits: val"),
        ({"label_column": "path"}, "only one class"),
        ({"label_column": None}, "has no labels; training needs a folder for each class, all at the same depth, or a"),
    ):
        if settings.get("label_column", "") is None:
            Table.from_csv(source, label_column=None).frame.drop(columns="label").to_csv(source, index=False)
        refused_call(message, load_dataset, DataSettings(**{"source": source, **settings}))


def test_settings_of_a_division_without_a_division() -> None:
    with pytest.raises(InputError, match=r"data\.order = in_order must be random unless data\.fractions"):
        DataSettings(order="in_order", classes={"train": ["a"]})
    refused_call(r"data\.redivide = true needs data\.fractions, data\.classes or", DataSettings, redivide=True)
