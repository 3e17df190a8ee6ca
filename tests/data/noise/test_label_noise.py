from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.animals import altered, animals
from vicinal.data import Table, confused_labels, random_labels
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.128, 0.2, 1.0])
def test_an_exact_fraction_of_the_training_images_has_the_label_of_another_training_class(
    fraction: float, text: bool
) -> None:
    table = animals(text=text)
    noisy = random_labels(table, fraction, seed=3)
    changed = altered(table, noisy, "label")
    assert changed.sum() == round(fraction * 100)
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


def pairs(path: Path, text: str) -> Path:
    path.write_text("label,confused_with\n" + text)
    return path


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.33, 1.0])
def test_an_exact_fraction_of_the_images_of_confused_classes_has_the_label_of_the_other(
    fraction: float, text: bool
) -> None:
    table = animals(text=text)
    one, two, three = table.subset("train").classes[:3]
    noisy = confused_labels(table, {one: two, two: [one, three]}, fraction, seed=3)
    changed = altered(table, noisy, "label")
    assert changed.sum() == round(fraction * 40)
    before, after = table.frame["label"][changed], noisy.frame["label"][changed]
    assert set(zip(before, after, strict=True)) <= {(one, two), (two, one), (two, three)}
    assert noisy.frame["label"].dtype == table.frame["label"].dtype


def test_a_class_is_confused_with_each_other_as_often_as_it_is_listed() -> None:
    table = Table(pd.DataFrame({"label": np.repeat(np.arange(4), 3000)}))
    noisy = confused_labels(table, {0: [1, 2, 2], 1: 3}, 1.0)
    counts = pd.crosstab(table.frame["label"], noisy.frame["label"]).reindex(columns=range(4), fill_value=0).to_numpy()
    assert np.abs(counts[0] - [0, 1000, 2000, 0]).max() < 100
    assert counts[1:].tolist() == [[0, 0, 0, 3000], [0, 0, 3000, 0], [0, 0, 0, 3000]]


def test_confused_images_are_drawn_at_random_from_all_classes_that_are_confused() -> None:
    table = Table(pd.DataFrame({"label": np.repeat(np.arange(4), 3000)}))
    changed = altered(table, confused_labels(table, {0: 1, 1: 0, 2: 3}, 0.5), "label")
    assert np.abs(changed.reshape(4, 3000).sum(axis=1) - [1500, 1500, 1500, 0]).max() < 100


@pytest.mark.parametrize("text", [True, False])
def test_confusions_of_a_file_are_those_of_a_mapping(text: bool, tmp_path: Path) -> None:
    table = animals(text=text)
    one, two, three = table.subset("train").classes[:3]
    path = pairs(tmp_path / "pairs.csv", f"{one},{two}\n{two},{one}\n{one},{three}\n")
    from_file = confused_labels(table, path, 0.5)
    assert altered(table, from_file, "label").sum() == 20
    assert from_file.frame.equals(confused_labels(table, {one: [two, three], two: one}, 0.5).frame)
    assert from_file.frame.equals(
        confused_labels(table, {str(one): [str(two), str(three)], str(two): str(one)}, 0.5).frame
    )


@pytest.mark.parametrize(
    ("confusions", "message"),
    [
        ({}, "there are no confusions; name at least one class and what it is confused with"),
        ({"animal 00": []}, "there are no confusions"),
        ({"wolf": "animal 00"}, "confusions: 'wolf' is no training class; there are 5, such as 'animal 00'"),
        ({"animal 00": "wolf"}, "confusions: 'wolf' is no training class"),
        ({"animal 00": "animal 09"}, "confusions: 'animal 09' is no training class"),
        ({"animal 00": ["animal 01", "animal 00"]}, "confusions: 'animal 00' is confused with itself; name another"),
        ({"wolf": "wolf"}, "confusions: 'wolf' is no training class"),
        ("animal 00,animal 01\nanimal 02,animal 02\n", "pairs.csv, line 3: 'animal 02' is confused with itself"),
        ("animal 00,\n", "pairs.csv, line 2: '' is no training class"),
        ("animal 00,animal 01,animal 02\n", "pairs.csv, line 2: 3 fields where the header has 2"),
        ("", "pairs.csv: a header and no rows"),
    ],
)
def test_invalid_confusions(confusions: dict[str, object] | str, message: str, tmp_path: Path) -> None:
    given = pairs(tmp_path / "pairs.csv", confusions) if isinstance(confusions, str) else confusions
    with pytest.raises(InputError, match=message):
        confused_labels(animals(), given, 0.5)


@pytest.mark.parametrize("header", ["label,mistaken_for", "class,confused_with", "label,confused_with,label"])
def test_a_file_of_confusions_has_two_columns_of_known_names(header: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(f"{header}\n" + ",".join(["a"] * len(header.split(","))) + "\n")
    message = r"pairs.csv: a list of confusions has one column label and one column confused_with"
    with pytest.raises(InputError, match=message):
        confused_labels(animals(), tmp_path / "pairs.csv", 0.5)
