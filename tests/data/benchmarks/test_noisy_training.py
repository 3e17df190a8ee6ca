"""Cars98N and Food-101N: images from the web for training, another dataset for testing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.data.benchmarks.published_more import (
    accept_small_more,
    food_classes,
    replace_text,
    write_cars98n,
    write_food_101n,
)
from vicinal.data import load_table
from vicinal.data.benchmarks import cars, cars98n, food_101n
from vicinal.utils.errors import InputError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)


def test_cars98n(tmp_path: Path) -> None:
    write_cars98n(tmp_path)
    table = load_table("cars98n", root=tmp_path)
    assert table.subset("train").classes == [1, 2, 3, 11, 12, 13]  # the list has 1, 2, 6, 3, 4, 5
    assert table.subset("test").frame.equals(cars(tmp_path).subset("test").frame[["path", "label", "split"]])
    assert table.paths[10].startswith(str(tmp_path / "cars98n/img_v3/10/"))
    assert all(Path(path).is_file() for path in table.paths)


def test_images_that_could_not_be_downloaded_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cars98n(tmp_path)
    folder = tmp_path / "cars98n"
    shutil.rmtree(folder / "img_v3/2")
    next((folder / "img_v3/0").iterdir()).unlink()
    table = cars98n(tmp_path)
    assert table.subset("train").class_counts.tolist() == [4, 5, 5, 5, 5]
    assert "left out 6 of 30 images whose files are absent" in capsys.readouterr().err
    shutil.rmtree(folder / "img_v3")
    with pytest.raises(InputError, match=r"cars98n: none of the 30 images of CARSN_train\.csv is in img_v3/; get the"):
        cars98n(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("/img_v3/", "/img_v2/", r"train\.csv, line 1: '/data/cars_noise/img_v2/0/.*'; a line is"),
        (".jpg,1\n", ".jpg,2\n", r"train\.csv, line 2: the label 1 in the folder 0, whose is 2"),
        ("/data/", "/dat/", r"train\.csv: the split train of cars98n has 30 images"),
    ],
)
def test_bad_lists_of_cars98n(tmp_path: Path, monkeypatch, old: str, new: str, message: str) -> None:
    write_cars98n(tmp_path)
    replace_text(tmp_path / "cars98n/CARSN_train.csv", old, new)
    if "has 30 images" in message:
        monkeypatch.undo()
    with pytest.raises(InputError, match=message):
        cars98n(tmp_path)


def test_food_101n(tmp_path: Path) -> None:
    write_food_101n(tmp_path)
    table = load_table("food_101n", root=tmp_path)
    train, test = table.subset("train"), table.subset("test")
    assert train.classes == food_classes()[:6]
    assert test.classes == food_classes()[97:]
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
    assert len(food_101n(together.parent)) == len(table)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("Food-101N_release/meta/classes.txt", "dish_050", "soup", r"names other classes than that of"),
        ("Food-101N_release/meta/imagelist.tsv", "dish_000/", "dish_000", r"imagelist\.tsv, line 2: 'dish_000.*'; a"),
        ("Food-101N_release/meta/verified_val.tsv", "\t0", "\t2", r"val\.tsv, line 2: the verdict '2'; it can be 1"),
        ("Food-101N_release/meta/verified_train.tsv", "dish_000/", "dish_9/", r"line 2: dish_9/.* is not in imagelist"),
        ("food-101/meta/train.txt", "dish_000/", "", r"train\.txt, line 1: '0'; a line is <class>/<image>"),
        ("food-101/meta/test.txt", "dish_099/", "dish_000/", r"test of food_101n has 19 images of 4 classes, but 20"),
    ],
)
def test_bad_lists_of_food_101n(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    write_food_101n(tmp_path)
    replace_text(tmp_path / file, old, new)
    with pytest.raises(InputError, match=message):
        food_101n(tmp_path)
