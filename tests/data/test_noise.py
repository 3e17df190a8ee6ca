from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table, add_noise, first_classes, foreign_images, random_labels
from vicinal.errors import InputError


def animals(classes: int = 10, per_class: int = 20, text: bool = True) -> Table:
    """Half of the classes are the split train, in mixed order; two super-labels, and two above them."""
    number = np.random.default_rng(5).permutation(np.repeat(np.arange(classes), per_class))
    return Table(
        pd.DataFrame(
            {
                "path": [f"{row}.png" for row in range(len(number))],
                "label": [f"animal {each:02d}" for each in number] if text else number,
                "coarse": [f"kind {each % 4}" for each in number],
                "coarse_2": number % 2,
                "split": np.where(number < classes / 2, "train", "test"),
                "camera": np.arange(len(number)) / 7,
            }
        ),
        root="/animals",
    )


def foreign(images: int) -> Table:
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(images)]}), root="/foreign")


def altered(before: Table, after: Table, column: str) -> np.ndarray:
    return (before.frame[column] != after.frame[column]).to_numpy()


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.128, 0.2, 1.0])
def test_exactly_a_share_of_the_training_images_has_the_label_of_another_training_class(
    share: float, text: bool
) -> None:
    table = animals(text=text)
    noisy = random_labels(table, share, seed=3)
    changed = altered(table, noisy, "label")
    assert changed.sum() == round(share * 100)
    assert (noisy.frame["noisy_label"] == changed).all()
    assert noisy.frame["noisy_label"].dtype == bool
    train = (table.frame["split"] == "train").to_numpy()
    assert not changed[~train].any()
    assert set(noisy.frame["label"][train]) <= set(table.frame["label"][train])
    for column in ("path", "split", "camera"):
        assert noisy.frame[column].equals(table.frame[column])
    assert noisy.frame.dtypes[table.frame.columns].equals(table.frame.dtypes)
    assert "noisy_label" not in table.frame


def test_the_coarse_labels_of_a_random_label_are_those_of_its_class() -> None:
    table = animals()
    noisy = random_labels(table, 0.5)
    assert altered(table, noisy, "coarse").any()
    known = table.frame.groupby("label")[["coarse", "coarse_2"]].first()
    for column in known:
        assert noisy.frame.groupby("label")[column].nunique().max() == 1
        assert (noisy.frame[column] == noisy.frame["label"].map(known[column])).all()


def test_every_other_class_is_drawn_as_often() -> None:
    table = Table(pd.DataFrame({"label": np.repeat(np.arange(5), 2000)}))
    noisy = random_labels(table, 1.0)
    counts = pd.crosstab(table.frame["label"], noisy.frame["label"]).to_numpy()
    assert (np.diag(counts) == 0).all()
    assert np.abs(counts[~np.eye(5, dtype=bool)] - 500).max() < 100


def test_exactly_a_share_of_the_training_images_gives_way_to_foreign_ones() -> None:
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


@pytest.mark.parametrize("column", ["label", "path"])
def test_noise_is_a_function_of_the_seed_and_a_larger_share_holds_a_smaller(column: str) -> None:
    table = animals()

    def noisy(share: float, seed: int) -> Table:
        np.random.seed(int(share * 10))
        return random_labels(table, share, seed) if column == "label" else foreign_images(table, pool, share, seed)

    pool = foreign(50)
    assert noisy(0.1, 1).frame.equals(noisy(0.1, 1).frame)
    assert not noisy(0.1, 1).frame.equals(noisy(0.1, 2).frame)
    few, many = noisy(0.1, 1), noisy(0.3, 1)
    rows = altered(table, few, column)
    assert few.frame[column][rows].equals(many.frame[column][rows])


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
        with pytest.raises(InputError, match=r"first classes are 0.04 of 10; give a share up to 1 that leaves some"):
            first_classes(table, first)
        return
    kept = first_classes(table, first)
    assert kept.subset("train").classes == [f"animal {each:02d}" for each in range(classes)]
    assert kept.subset("test").frame.equals(table.subset("test").frame)
    assert kept.frame.equals(table.frame[table.frame["label"].isin(kept.classes)].reset_index(drop=True))


def test_integer_classes_are_counted_in_the_order_of_numbers() -> None:
    assert first_classes(Table(pd.DataFrame({"label": [10, 9, 100, 11]})), 2).classes == [9, 10]


def test_marks_outlive_a_file(tmp_path: Path) -> None:
    noisy = random_labels(animals(), 0.1, seed=1)
    noisy.save(tmp_path / "noisy.csv")
    again = random_labels(Table.load(tmp_path / "noisy.csv"), 0.1, seed=2)
    both = noisy.frame["noisy_label"] | random_labels(animals(), 0.1, seed=2).frame["noisy_label"]
    assert again.frame["noisy_label"].equals(both)


def test_what_was_done_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    foreign(10).save(tmp_path / "birds.csv")
    noisy = add_noise(animals(), 0.8, 0.1, tmp_path / "birds.csv", 0.05, seed=1)
    assert capsys.readouterr().err.splitlines() == [
        "kept the first 4 of 5 training classes; left out 20 images",
        "gave 8 of 80 training images the label of another class",
        "put foreign images in the place of 4 of 80 training images",
    ]
    one_by_one = foreign_images(random_labels(first_classes(animals(), 0.8), 0.1, 1), foreign(10), 0.05, 1)
    assert noisy.frame.equals(one_by_one.frame)


def test_without_noise_the_table_is_the_very_same() -> None:
    table = animals()
    assert add_noise(table) is table


def test_no_noise_where_there_is_nothing_to_train_on() -> None:
    table = animals().subset("test")
    for noise in (lambda: random_labels(table, 0.1), lambda: first_classes(table, 2)):
        with pytest.raises(InputError, match="no training images to alter; its splits: test"):
            noise()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_share": 1.5}, "the share of noise is 1.5; it must be from 0 to 1"),
        ({"label_share": float("nan")}, "the share of noise is nan"),
        ({"label_share": -0.1}, "the share of noise is -0.1"),
        ({"label_share": 0.1, "seed": -1}, "seed is -1; it must not be negative"),
        ({"label_share": 0.1, "classes": 0.2}, "random labels take two training classes or more; there is only 'anim"),
        ({"foreign_share": 0.1}, "both a source"),
        ({"foreign": "digits"}, "both a source"),
        ({"foreign": "nowhere", "foreign_share": 0.1}, "nowhere: no such folder"),
        ({"classes": 6}, "first classes are 6 of 5; give a share up to 1 that leaves some, or a number of classes"),
        ({"classes": 2.5}, "first classes are 2.5 of 5"),
        ({"classes": float("nan")}, "first classes are nan of 5"),
    ],
)
def test_what_noise_cannot_be(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        add_noise(animals(), **arguments)


def test_what_foreign_images_cannot_be() -> None:
    table = animals()
    with pytest.raises(InputError, match=r"0.2 of 100 training images are 20, but there are only 19 foreign images"):
        foreign_images(table, Table(pd.concat([foreign(19).frame] * 2)), 0.2)
    with pytest.raises(InputError, match=r"^/animals/.*.png is no foreign image: it is one of the table's own"):
        foreign_images(table, table.subset("test"), 0.1)
    with pytest.raises(InputError, match="no column 'path'"):
        foreign_images(table, Table(pd.DataFrame({"label": [1]})), 0.1)


def test_foreign_images_of_a_table_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "foreign.csv").write_text("path\nx.png\ny.png\n")
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["a", "b"]}))
    noisy = add_noise(table, foreign=tmp_path / "foreign.csv", foreign_share=1.0, foreign_root=tmp_path / "elsewhere")
    assert {Path(path).parent for path in noisy.paths} == {tmp_path / "elsewhere"}
    with pytest.raises(InputError, match="without their source"):
        add_noise(table, foreign_root=tmp_path)
