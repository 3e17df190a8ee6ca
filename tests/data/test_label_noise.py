from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.animals import altered, animals
from vicinal.data import Table, confused_labels, open_set_labels, random_labels
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.128, 0.2, 1.0])
def test_an_exact_fraction_of_the_training_images_has_the_label_of_another_class(fraction: float, text: bool) -> None:
    table = animals(text=text)
    noisy = random_labels(table, fraction, seed=3)
    changed = altered(table, noisy, "label")
    assert changed.sum() == round(fraction * 100)
    assert (noisy.frame["noisy_label"] == changed).all()
    assert noisy.frame["noisy_label"].dtype == bool


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
def test_an_exact_fraction_of_the_images_of_confused_classes_has_the_other_label(fraction: float, text: bool) -> None:
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
        ({}, "confusions are empty; name at least one class and the one it is confused with"),
        ({"wolf": "animal 00"}, "confusions: 'wolf' is not a training class; there are 5, such as 'animal 00'"),
        ({"animal 00": "wolf"}, "confusions: 'wolf' is not a training class"),
        ({"animal 00": ["animal 01", "animal 00"]}, "confusions: 'animal 00' is confused with itself; name another"),
        ("animal 00,animal 01\nanimal 02,animal 02\n", "pairs.csv, line 3: 'animal 02' is confused with itself"),
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
    with pytest.raises(InputError, match=r"a list of confusions has one column label and one column confused_with"):
        confused_labels(animals(), tmp_path / "pairs.csv", 0.5)


def even(classes: int, samples_per_class: int) -> Table:
    return Table(pd.DataFrame({"label": np.repeat(np.arange(classes), samples_per_class)}))


def labels_of_dissolved(noisy: Table) -> list[np.ndarray]:
    """How many images of each dissolved class are under each label that some of them are under, largest first."""
    wrong = noisy.frame[noisy.frame["noisy_label"]]
    return [labels.value_counts().to_numpy() for _, labels in wrong.groupby("label_clean")["label"]]


@pytest.mark.parametrize(("fraction", "dissolved"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.25, 1), (0.5, 2), (0.85, 4)])
@pytest.mark.parametrize("nearby", [False, True])
def test_whole_classes_disappear_and_the_others_keep_all_images(fraction: float, dissolved: int, nearby: bool) -> None:
    table = animals()
    embeddings = np.random.default_rng(0).normal(size=(len(table), 3)) if nearby else None
    noisy = open_set_labels(table, fraction, embeddings=embeddings, seed=3)
    left = noisy.subset("train").classes
    assert len(left) == 5 - dissolved
    gone = (table.frame["split"] == "train") & ~table.frame["label"].isin(left)
    assert (altered(table, noisy, "label") == gone).all()
    assert gone.sum() == 20 * dissolved


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_the_fraction_of_noisy_labels_is_as_close_as_whole_classes_allow(fraction: float) -> None:
    sizes = np.random.default_rng(2).integers(1, 60, 50)
    table = Table(pd.DataFrame({"label": np.repeat(np.arange(50), sizes)}))
    noisy = [open_set_labels(table, fraction, seed=seed) for seed in range(20)]
    missed = [abs(each.statistics().noise["noisy_labels"] - fraction) * len(table) for each in noisy]
    assert max(missed) <= sizes.max() / 2
    assert len({tuple(each.classes) for each in noisy}) == 20


def test_clusters_are_many_and_small_and_some_are_large() -> None:
    counts = labels_of_dissolved(open_set_labels(even(400, 60), 0.05))
    assert len(counts) == 20
    assert 27.5 < np.mean([len(each) for each in counts]) < 30  # of 30, of which two may fall under one label
    assert 7 < np.mean([each[0] for each in counts]) < 12  # where clusters of even chances have 5
    assert 0.4 < np.mean(np.concatenate(counts) == 1) < 0.6


@pytest.mark.parametrize(("size", "labels"), [(3.5, 17), (1e9, 1)])
def test_a_class_makes_as_many_clusters_as_their_size_says(size: float, labels: int) -> None:
    (counts,) = labels_of_dissolved(open_set_labels(even(5000, 60), 1 / 5000, size, seed=1))
    assert counts.sum() == 60
    assert len(counts) == labels


def test_a_cluster_keeps_its_label_with_a_larger_fraction_unless_that_class_is_dissolved_too() -> None:
    table = even(40, 30)
    few, many = open_set_labels(table, 0.25), open_set_labels(table, 0.5)
    rows = altered(table, few, "label")
    kept = few.frame["label"].isin(many.classes).to_numpy()
    same = (few.frame["label"] == many.frame["label"]).to_numpy()
    assert (same[rows] == kept[rows]).all()
    assert 0.4 < kept[rows].mean() < 0.9


def test_images_of_near_embeddings_stay_together() -> None:
    table, rng = even(50, 24), np.random.default_rng(0)
    spot = np.arange(len(table)) % 6  # six spots in each class, of four images
    embeddings = 10 * rng.normal(size=(6, 5))[spot] + 0.01 * rng.normal(size=(len(table), 5))
    frame = open_set_labels(table, 0.3, cluster_size=4, embeddings=embeddings).frame.assign(spot=spot)
    wrong = frame[frame["noisy_label"]]
    assert (wrong.groupby(["label_clean", "spot"])["label"].nunique() == 1).all()
    assert wrong.groupby("label_clean")["label"].nunique().mean() > 5
    at_random = open_set_labels(table, 0.3, cluster_size=4).frame.assign(spot=spot)
    assert (at_random[at_random["noisy_label"]].groupby(["label_clean", "spot"])["label"].nunique() > 1).mean() > 0.9


def test_embeddings_are_those_of_all_rows_of_the_table() -> None:
    """Rows that are not trained on stand before and between those that are."""
    number = np.arange(400) % 20
    split = np.where(number < 10, "test", "train")
    table = Table(pd.DataFrame({"label": number, "split": split}))
    half = np.arange(400) >= 200
    frame = open_set_labels(table, 0.5, cluster_size=10, embeddings=half[:, None] * np.ones((1, 2))).frame
    wrong = frame[frame["noisy_label"]].assign(half=half[frame["noisy_label"]])
    assert (wrong.groupby(["label_clean", "half"])["label"].nunique() == 1).all()
    assert wrong.groupby("label_clean")["label"].nunique().mean() > 1  # the halves are two clusters


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (np.ones((7, 2)), r"embeddings: 7 embeddings for a table of 200 rows; there must be one per row"),
        (np.ones(200), r"embeddings: float64 \[200\]; embeddings are real numbers"),
        (np.full((200, 2), np.nan), "embeddings: the embedding of row 0 .* is not finite"),
    ],
)
def test_invalid_embeddings(embeddings: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_set_labels(animals(), 0.5, embeddings=embeddings)


def test_one_class_stays_as_it_is_or_cannot_be_dissolved() -> None:
    assert not open_set_labels(even(1, 9), 0.4).frame["noisy_label"].any()
    with pytest.raises(InputError, match=r"dissolves all training classes \(1\)"):
        open_set_labels(even(1, 9), 0.6)
