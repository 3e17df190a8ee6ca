"""Noise in labels and images of a table: exact fractions, seeds, and what is known of it afterwards."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
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


NOISES = {**LABEL_NOISES, "foreign": lambda table, fraction, seed: foreign_images(table, foreign(300), fraction, seed)}


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


@pytest.mark.parametrize("kind", NOISES)
def test_noise_depends_on_the_seed_and_a_larger_fraction_contains_a_smaller_one(kind: str) -> None:
    table, column = animals(), "path" if kind == "foreign" else "label"
    few = NOISES[kind](table, 0.2, 1)
    np.random.seed(6)
    assert NOISES[kind](table, 0.2, 1).frame.equals(few.frame)
    assert not NOISES[kind](table, 0.2, 2).frame.equals(few.frame)
    many = NOISES[kind](table, 0.6, 1)
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


def test_only_the_first_training_classes_stay() -> None:
    table = animals(classes=20)
    for first, classes in ((0.5, 5), (0.16, 2), (1, 10), (1.0, 10), (2, 2), (9.0, 9)):
        kept = first_classes(table, first)
        assert kept.subset("train").classes == [f"animal {each:02d}" for each in range(classes)]
        assert kept.subset("test").frame.equals(table.subset("test").frame)
        assert kept.frame.equals(table.frame[table.frame["label"].isin(kept.classes)].reset_index(drop=True))
    refused_call(r"classes is 0.04, of 10 training classes; give a fraction up to 1 that", first_classes, table, 0.04)


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
    files = {"foreign": str(tmp_path / "birds.csv"), "confusions": str(tmp_path / "pairs.csv")}
    amounts = {"classes": 0.8, "random_labels": 0.1, "foreign_fraction": 0.05, "confused_labels": 0.2}
    settings = NoiseSettings(**files, **amounts, open_set_labels=0.25, open_set_cluster_size=4)
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
        refused_call("no training images to alter; its splits: test", noise, table, 0.1, 0)


@pytest.mark.parametrize("add", NOISES.values(), ids=NOISES)
def test_fractions_out_of_range(add) -> None:
    for fraction in (1.5, float("nan"), -0.1):
        refused_call(f"the fraction of noise is {fraction}; it must be from 0 to 1", add, animals(), fraction, 0)


def test_noise_that_cannot_be_added() -> None:
    for settings, seed, message in (
        ({"random_labels": 0.1}, -1, "seed is -1; it must not be negative"),
        ({"random_labels": 0.1, "classes": 0.2}, 0, "random labels need two training classes or more; there is only"),
        ({"confusions": "nowhere.csv", "confused_labels": 0.1}, 0, "nowhere.csv: no such file"),
        ({"open_set_labels": 1.0}, 0, r"a fraction of 1.0 dissolves all training classes \(5\); use less, so that"),
    ):
        refused_call(message, add_noise, animals(), NoiseSettings(**settings), seed)


def test_invalid_foreign_images() -> None:
    table = animals()
    with pytest.raises(InputError, match=r"0.2 of 100 training images are 20, but there are only 19 foreign images"):
        foreign_images(table, Table(pd.concat([foreign(19).frame] * 2)), 0.2)
    with pytest.raises(InputError, match=r"^/animals/.*.png is not a foreign image: it is one of the table's own"):
        foreign_images(table, table.subset("test"), 0.1)
    refused_call("no column 'path'", foreign_images, table, Table(pd.DataFrame({"label": [1]})), 0.1)


def test_foreign_images_of_a_table_with_another_root(tmp_path: Path) -> None:
    (tmp_path / "foreign.csv").write_text("path\nx.png\ny.png\n")
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["a", "b"]}))
    source, root = str(tmp_path / "foreign.csv"), str(tmp_path / "elsewhere")
    noisy = add_noise(table, NoiseSettings(foreign=source, foreign_fraction=1.0, foreign_root=root))
    assert {Path(path).parent for path in noisy.paths} == {Path(root)}


def test_invalid_settings() -> None:
    for settings, message in (
        ({"random_labels": 1.5}, "data.noise.random_labels = 1.5 must be from 0 to 1"),
        ({"random_labels": float("nan")}, "data.noise.random_labels = nan must be from 0 to 1"),
        ({"foreign_fraction": 0.1}, "data.noise.foreign_fraction = 0.1 must be above 0 with data.noise.foreign, else"),
        ({"foreign": "digits"}, "data.noise.foreign_fraction = 0.0 must be above 0 with data.noise.foreign"),
        ({"foreign_root": "x"}, "data.noise.foreign_root = x must be null without data.noise.foreign"),
        ({"open_set_cluster_size": 3.0}, "must be left alone unless data.noise.open_set_labels is above 0"),
        ({"open_set_labels": 0.2, "open_set_cluster_size": 0.5}, "open_set_cluster_size = 0.5 must be 1 or more"),
        ({"classes": 0}, "data.noise.classes = 0 must be above 0 or null"),
    ):
        refused_call(message, NoiseSettings, **settings)


def animals(classes: int = 10, samples_per_class: int = 20, text: bool = True) -> Table:
    """Half of the classes are the split train, in mixed order; two super-labels, and two above them."""
    number = np.random.default_rng(5).permutation(np.repeat(np.arange(classes), samples_per_class))
    frame = pd.DataFrame({"path": [f"{row}.png" for row in range(len(number))]})
    frame["label"] = [f"animal {each:02d}" for each in number] if text else number
    frame["coarse"], frame["coarse_2"] = [f"kind {each % 4}" for each in number], number % 2
    frame["split"], frame["camera"] = np.where(number < classes / 2, "train", "test"), np.arange(len(number)) / 7
    return Table(frame, root="/animals")


def foreign(images: int) -> Table:
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(images)]}), root="/foreign")


def altered(before: Table, after: Table, column: str) -> np.ndarray:
    return (before.frame[column] != after.frame[column]).to_numpy()


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


def test_invalid_confusions(tmp_path: Path) -> None:
    for confusions, message in (
        ({}, "confusions are empty; name at least one class and the one it is confused with"),
        ({"wolf": "animal 00"}, "confusions: 'wolf' is not a training class; there are 5, such as 'animal 00'"),
        ({"animal 00": "wolf"}, "confusions: 'wolf' is not a training class"),
        ({"animal 00": ["animal 01", "animal 00"]}, "confusions: 'animal 00' is confused with itself; name another"),
        ("animal 00,animal 01\nanimal 02,animal 02\n", "pairs.csv, line 3: 'animal 02' is confused with itself"),
        ("animal 00,animal 01,animal 02\n", "pairs.csv, line 2: 3 fields where the header has 2"),
        ("", "pairs.csv: a header and no rows"),
    ):
        given = pairs(tmp_path / "pairs.csv", confusions) if isinstance(confusions, str) else confusions
        refused_call(message, confused_labels, animals(), given, 0.5)


def test_a_file_of_confusions_has_two_columns_of_known_names(tmp_path: Path) -> None:
    for header in ("label,mistaken_for", "class,confused_with", "label,confused_with,label"):
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


def test_images_of_near_embeddings_stay_together() -> None:
    """Rows that are not trained on stand before and between those that are."""
    number, rng = np.repeat(np.arange(100), 24), np.random.default_rng(0)
    table = Table(pd.DataFrame({"label": number, "split": np.where(number % 2, "train", "test")}))
    spot = np.arange(len(table)) % 6  # six spots in each class, of four images
    embeddings = 10 * rng.normal(size=(6, 5))[spot] + 0.01 * rng.normal(size=(len(table), 5))
    frame = open_set_labels(table, 0.3, cluster_size=4, embeddings=embeddings).frame.assign(spot=spot)
    wrong = frame[frame["noisy_label"]]
    assert (wrong.groupby(["label_clean", "spot"])["label"].nunique() == 1).all()
    assert wrong.groupby("label_clean")["label"].nunique().mean() > 5
    at_random = open_set_labels(table, 0.3, cluster_size=4).frame.assign(spot=spot)
    assert (at_random[at_random["noisy_label"]].groupby(["label_clean", "spot"])["label"].nunique() > 1).mean() > 0.9


def test_invalid_embeddings() -> None:
    with pytest.raises(InputError, match="embeddings: 7 embeddings for a table of 200 rows; there must be one per row"):
        open_set_labels(animals(), 0.5, embeddings=np.ones((7, 2)))


def test_one_class_stays_as_it_is_or_cannot_be_dissolved() -> None:
    assert not open_set_labels(even(1, 9), 0.4).frame["noisy_label"].any()
    refused_call(r"dissolves all training classes \(1\)", open_set_labels, even(1, 9), 0.6)
