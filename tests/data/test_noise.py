from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data.animals import altered, animals, foreign
from vicinal.data import (
    NoiseSettings,
    Table,
    add_noise,
    confused_labels,
    first_classes,
    foreign_images,
    load_table,
    open_set_labels,
    random_labels,
)
from vicinal.utils.errors import InputError

LABEL_NOISES = {
    "random": random_labels,
    "confused": lambda table, fraction, seed: confused_labels(
        table, {"animal 00": ["animal 01", "animal 02"], "animal 01": "animal 04"}, fraction, seed
    ),
    "open-set": lambda table, fraction, seed: open_set_labels(table, fraction, seed=seed),
    "open-set, nearby": lambda table, fraction, seed: open_set_labels(
        table, fraction, embeddings=np.random.default_rng(1).normal(size=(len(table), 4)), seed=seed
    ),
}


def test_an_exact_fraction_of_the_training_images_is_replaced_by_foreign_ones() -> None:
    table = animals()
    noisy = foreign_images(table, foreign(30), 0.2, seed=3)
    changed = altered(table, noisy, "path")
    assert changed.sum() == 20
    assert (noisy.frame["noisy_image"] == changed).all()
    assert not changed[(table.frame["split"] == "test").to_numpy()].any()
    put = noisy.frame["path"][changed]
    assert put.str.startswith("/foreign/").all()
    assert put.is_unique
    for column in ("label", "coarse", "coarse_2", "split", "camera"):
        assert noisy.frame[column].equals(table.frame[column])
    assert noisy.frame["path"].dtype == table.frame["path"].dtype


def test_foreign_images_have_no_bounding_box() -> None:
    table = animals()
    noisy = foreign_images(Table(table.frame.assign(x_1=0, y_1=0, x_2=5, y_2=5)), foreign(30), 0.2)
    assert (noisy.frame[["x_1", "y_1", "x_2", "y_2"]].isna().all(axis=1) == noisy.frame["noisy_image"]).all()
    assert noisy.frame["x_2"].notna().sum() == len(table) - 20


@pytest.mark.parametrize("kind", [*LABEL_NOISES, "foreign"])
def test_noise_depends_on_the_seed_and_a_larger_fraction_contains_a_smaller_one(kind: str) -> None:
    table = animals()

    def noisy(fraction: float, seed: int) -> Table:
        np.random.seed(int(fraction * 10))
        return (
            foreign_images(table, pool, fraction, seed)
            if kind == "foreign"
            else LABEL_NOISES[kind](table, fraction, seed)
        )

    pool, column = foreign(70), "path" if kind == "foreign" else "label"
    assert noisy(0.2, 1).frame.equals(noisy(0.2, 1).frame)
    assert not noisy(0.2, 1).frame.equals(noisy(0.2, 2).frame)
    few, many = noisy(0.2, 1), noisy(0.6, 1)
    rows = altered(table, few, column)
    assert rows.any()
    assert altered(table, many, column)[rows].all()
    if kind.startswith("open-set"):  # a class that took in images of another may be dissolved itself
        rows = rows & few.frame["label"].isin(many.classes).to_numpy()
        assert rows.any()
    assert few.frame[column][rows].equals(many.frame[column][rows])


@pytest.mark.parametrize("kind", LABEL_NOISES)
def test_what_labels_were_before_the_first_noise_is_kept(kind: str) -> None:
    table = animals()
    once = LABEL_NOISES[kind](table, 0.5, 1)
    changed = altered(table, once, "label")
    assert once.frame["label_clean"].equals(table.frame["label"].rename("label_clean"))
    assert (once.frame["noisy_label"] == changed).all()
    assert changed.any()
    twice = random_labels(once, 0.5, seed=2)
    assert twice.frame["label_clean"].equals(once.frame["label_clean"])
    assert (twice.frame["noisy_label"] == changed | altered(once, twice, "label")).all()
    assert "label_clean" not in table.frame
    assert "label_clean" not in foreign_images(table, foreign(9), 0.01).frame


@pytest.mark.parametrize("kind", LABEL_NOISES)
def test_label_noise_alters_labels_of_training_images_and_their_coarse_labels_alone(kind: str) -> None:
    table = animals()
    noisy = LABEL_NOISES[kind](table, 0.5, 3)
    train = (table.frame["split"] == "train").to_numpy()
    assert altered(table, noisy, "label")[train].any()
    assert not altered(table, noisy, "label")[~train].any()
    assert set(noisy.frame["label"][train]) <= set(table.frame["label"][train])
    known = table.frame.groupby("label")[["coarse", "coarse_2"]].first()
    for column in known:
        assert altered(table, noisy, column).any()
        assert (noisy.frame[column] == noisy.frame["label"].map(known[column])).all()
    for column in ("path", "split", "camera"):
        assert noisy.frame[column].equals(table.frame[column])
    assert noisy.frame.dtypes[table.frame.columns].equals(table.frame.dtypes)


def test_two_kinds_of_noise_do_not_choose_the_same_rows() -> None:
    table = Table(pd.DataFrame({"path": [f"{i}.png" for i in range(4000)], "label": np.arange(4000) % 4}))
    frame = foreign_images(random_labels(table, 0.5), foreign(2000), 0.5).frame
    assert 900 < (frame["noisy_label"] & frame["noisy_image"]).sum() < 1100


def test_in_a_table_without_splits_all_rows_are_training_images() -> None:
    table = Table(animals().frame.drop(columns="split"))
    assert altered(table, random_labels(table, 0.5), "label").sum() == 100
    assert first_classes(table, 3).classes == ["animal 00", "animal 01", "animal 02"]


@pytest.mark.parametrize(("first", "classes"), [(0.5, 5), (0.04, 0), (0.16, 2), (1, 10), (1.0, 10), (2, 2), (9.0, 9)])
def test_only_the_first_training_classes_stay(first: float, classes: int) -> None:
    table = animals(classes=20)
    if not classes:
        with pytest.raises(InputError, match=r"classes is 0.04, of 10 training classes; give a fraction up to 1 that"):
            first_classes(table, first)
        return
    kept = first_classes(table, first)
    assert kept.subset("train").classes == [f"animal {each:02d}" for each in range(classes)]
    assert kept.subset("test").frame.equals(table.subset("test").frame)
    assert kept.frame.equals(table.frame[table.frame["label"].isin(kept.classes)].reset_index(drop=True))


def test_integer_classes_are_counted_in_the_order_of_numbers() -> None:
    assert first_classes(Table(pd.DataFrame({"label": [10, 9, 100, 11]})), 2).classes == [9, 10]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("text", [True, False])
def test_what_noise_leaves_outlives_a_file_and_a_split(ending: str, text: bool, tmp_path: Path) -> None:
    noisy = foreign_images(open_set_labels(animals(text=text), 0.4), foreign(9), 0.05)
    noisy.save(tmp_path / f"noisy.{ending}")
    again = load_table(tmp_path / f"noisy.{ending}")
    marks = ["label", "label_clean", "noisy_label", "noisy_image"]
    assert again.frame[marks].equals(noisy.frame[marks])
    assert again.statistics().noise == noisy.statistics().noise == {"noisy_labels": 0.2, "foreign_images": 0.025}
    split = again.split_classes({"train": 0.5, "test": 0.5}, redivide=True)
    assert split.frame[marks].equals(noisy.frame[marks])
    assert split.subset("test").frame["label_clean"].dtype == noisy.frame["label"].dtype


def test_every_kind_of_noise_is_added_in_order_and_logged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    foreign(10).save(tmp_path / "birds.csv")
    (tmp_path / "pairs.csv").write_text("label,confused_with\nanimal 00,animal 01\nanimal 01,animal 02\n")
    settings = NoiseSettings(
        classes=0.8,
        random_labels=0.1,
        foreign=str(tmp_path / "birds.csv"),
        foreign_fraction=0.05,
        confusions=str(tmp_path / "pairs.csv"),
        confused_labels=0.2,
        open_set_labels=0.25,
        open_set_cluster_size=4,
    )
    noisy = add_noise(animals(), settings, seed=2)
    assert capsys.readouterr().err.splitlines() == [
        "kept the first 4 of 5 training classes; left out 20 images",
        "gave 8 of 40 training images of 2 classes the label of a class theirs is confused with",
        "dissolved 1 of 4 training classes, 17 of 80 images, into 4 clusters under the labels of others",
        "gave 8 of 80 training images the label of another class",
        "replaced 4 of 80 training images by foreign images",
    ]
    pairs: dict[str, str | int | list[str | int]] = {"animal 00": "animal 01", "animal 01": "animal 02"}
    one_by_one = confused_labels(first_classes(animals(), 0.8), pairs, 0.2, 2)
    one_by_one = open_set_labels(one_by_one, 0.25, 4, seed=2)
    one_by_one = foreign_images(random_labels(one_by_one, 0.1, 2), foreign(10), 0.05, 2)
    assert noisy.frame.equals(one_by_one.frame)
    assert noisy.frame.equals(add_noise(animals(), replace(settings, confusions=pairs), seed=2).frame)


def test_random_labels_never_use_a_dissolved_class() -> None:
    noisy = add_noise(animals(), NoiseSettings(open_set_labels=0.4, random_labels=1.0)).subset("train")
    assert (len(noisy.classes), noisy.frame["label_clean"].nunique()) == (3, 5)


def test_noise_needs_training_images() -> None:
    table = animals().subset("test")
    for noise in (*LABEL_NOISES.values(), lambda table, fraction, seed: first_classes(table, 2)):
        with pytest.raises(InputError, match="no training images to alter; its splits: test"):
            noise(table, 0.1, 0)


@pytest.mark.parametrize("kind", [*LABEL_NOISES, "foreign"])
@pytest.mark.parametrize("fraction", [1.5, float("nan"), -0.1])
def test_fractions_out_of_range(kind: str, fraction: float) -> None:
    add = LABEL_NOISES.get(kind, lambda table, fraction, seed: foreign_images(table, foreign(300), fraction, seed))
    with pytest.raises(InputError, match=f"the fraction of noise is {fraction}; it must be from 0 to 1"):
        add(animals(), fraction, 0)


@pytest.mark.parametrize(
    ("settings", "seed", "message"),
    [
        ({"random_labels": 0.1}, -1, "seed is -1; it must not be negative"),
        ({"random_labels": 0.1, "classes": 0.2}, 0, "random labels take two training classes or more; there is only"),
        ({"confusions": "nowhere.csv", "confused_labels": 0.1}, 0, "nowhere.csv: no such file"),
        ({"open_set_labels": 1.0}, 0, r"a fraction of 1.0 dissolves all training classes \(5\); take less, so that"),
    ],
)
def test_noise_that_cannot_be_added(settings: dict[str, Any], seed: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        add_noise(animals(), NoiseSettings(**settings), seed)


def test_invalid_foreign_images() -> None:
    table = animals()
    with pytest.raises(InputError, match=r"0.2 of 100 training images are 20, but there are only 19 foreign images"):
        foreign_images(table, Table(pd.concat([foreign(19).frame] * 2)), 0.2)
    with pytest.raises(InputError, match=r"^/animals/.*.png is not a foreign image: it is one of the table's own"):
        foreign_images(table, table.subset("test"), 0.1)
    with pytest.raises(InputError, match="no column 'path'"):
        foreign_images(table, Table(pd.DataFrame({"label": [1]})), 0.1)


def test_foreign_images_of_a_table_with_another_root(tmp_path: Path) -> None:
    (tmp_path / "foreign.csv").write_text("path\nx.png\ny.png\n")
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["a", "b"]}))
    source, root = str(tmp_path / "foreign.csv"), str(tmp_path / "elsewhere")
    noisy = add_noise(table, NoiseSettings(foreign=source, foreign_fraction=1.0, foreign_root=root))
    assert {Path(path).parent for path in noisy.paths} == {Path(root)}
