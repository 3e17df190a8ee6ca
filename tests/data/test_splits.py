"""Dividing the classes of a table that has splits: its test split stays as it is."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused_call
from vicinal.data import DataSettings, Table
from vicinal.data.dataset import load_dataset
from vicinal.data.splits import class_folds, hold_out_images, order_classes, shared_classes, splits_by_fraction
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError


@given(classes=st.integers(3, 200), train=st.floats(0.34, 0.6), val=st.floats(0.34, 0.39), seed=st.integers(0, 99))
def test_fractions_give_each_class_one_split_in_right_numbers(
    classes: int, train: float, val: float, seed: int
) -> None:
    chosen = splits_by_fraction(range(classes), {"val": val, "train": train}, seed)
    numbers = pd.Series(chosen).value_counts()
    assert abs(numbers["train"] - train * classes) <= 0.5
    assert abs(numbers["train"] + numbers["val"] - (train + val) * classes) <= 0.5


def test_in_order_sorts_numbers_as_numbers_and_other_names_as_text() -> None:
    assert order_classes([10, 9, 100], "in_order") == [9, 10, 100]
    assert order_classes(["10", "9", "007", "7"], "in_order") == ["007", "7", "9", "10"]
    assert order_classes(["10", "9", "a"], "in_order") == ["10", "9", "a"]
    assert order_classes([-2, -10, 3], "in_order") == [-10, -2, 3]
    splits = splits_by_fraction(["9", "10", "1"], {"val": 0.3, "train": 0.7}, 0, "in_order")
    assert splits == {"1": "train", "9": "train", "10": "val"}


@given(classes=st.integers(2, 60), folds=st.integers(2, 60), seed=st.integers(0, 9))
def test_folds_are_disjoint_of_one_size_and_seeded(classes: int, folds: int, seed: int) -> None:
    names = list(range(classes))
    if folds > classes:
        refused_call(f"{folds} folds of {classes} classes", class_folds, names, folds, seed)
        return
    found = class_folds(names, folds, seed)
    sizes = [len(fold) for fold in found]
    assert len(found) == folds
    assert max(sizes) - min(sizes) <= 1
    assert sorted(name for fold in found for name in fold) == names
    assert found == class_folds(names, folds, seed)
    in_order = class_folds(names[::-1], folds, order="in_order")
    assert [name for fold in in_order for name in fold] == names


def test_shared_classes_with_all_their_splits() -> None:
    frame = pd.DataFrame({"label": [2, 1, 2, 2, 3], "split": ["test", "val", "train", "test", "val"]})
    assert shared_classes(frame) == {2: ["train", "test"]}
    assert shared_classes(frame[["label"]]) == {}


HALVES = {"train": 0.5, "val": 0.5}


def with_splits(**sizes: int) -> Table:
    """A table of classes 0, 1, ... with three images each: the first ones in train, and so on; rows are shuffled."""
    splits = [split for split, size in sizes.items() for _ in range(3 * size)]
    frame = pd.DataFrame({"label": np.repeat(np.arange(len(splits) // 3), 3), "split": splits})
    return Table(frame.assign(row=frame.index).sample(frac=1, random_state=0))


def classes(table: Table) -> dict[str, list[int]]:
    return {split: [int(name) for name in table.subset(split).classes] for split in table.splits}


@pytest.mark.parametrize("own", [{"train": 8, "test": 6}, {"train": 5, "val": 3, "test": 6}])
def test_the_classes_of_train_and_val_are_divided_and_test_stays(own: dict[str, int], capsys) -> None:
    table = with_splits(**own)
    split = table.split_classes(HALVES, seed=3)
    assert "the split test stays as it is: 18 images" in capsys.readouterr().err
    found = classes(split)
    assert sorted(found["train"] + found["val"]) == list(range(8))
    assert (len(found["train"]), found["test"]) == (4, list(range(8, 14)))
    assert split.frame["row"].tolist() == table.frame["row"].tolist()
    assert found != classes(table.split_classes(HALVES, seed=4))
    in_order = table.split_classes(HALVES, order="in_order")
    assert classes(in_order) == {"train": [0, 1, 2, 3], "val": [4, 5, 6, 7], "test": list(range(8, 14))}
    assert classes(table.split_classes({"train": 1.0}))["train"] == list(range(8))


def test_redivide_divides_all_classes() -> None:
    split = with_splits(train=8, test=6).split_classes(HALVES, order="in_order", redivide=True)
    assert classes(split) == {"train": list(range(7)), "val": list(range(7, 14))}


def test_a_column_divides_whole_groups_of_the_training_classes() -> None:
    table = with_splits(train=8, test=4)
    table = Table(table.frame.assign(coarse=table.frame["label"] % 4))
    split = table.split_classes(HALVES, column="coarse", order="in_order")
    assert classes(split) == {"train": [0, 1, 4, 5], "val": [2, 3, 6, 7], "test": [8, 9, 10, 11]}


def test_a_column_of_splits_must_leave_the_test_split_as_it_is() -> None:
    table = with_splits(train=4, test=2)
    halves = np.where(table.frame["label"] < 2, "train", "val")
    is_test = table.frame["split"] == "test"
    new = Table(table.frame.assign(half=np.where(is_test, "test", halves)))
    assert classes(new.split_classes(column="half")) == {"train": [0, 1], "val": [2, 3], "test": [4, 5]}
    refused_call("has a test split of 6 images", Table(table.frame.assign(half=halves)).split_classes, column="half")


def test_training_images_in_a_new_val_are_queries_and_gallery() -> None:
    table = with_splits(train=4, test=2)
    is_test, is_query = table.frame["split"] == "test", table.frame["row"] % 3 == 0
    table = Table(table.frame.assign(is_query=is_test & is_query, is_gallery=is_test & ~is_query))
    split = table.split_classes(HALVES)
    val, sides = split.subset("val"), ["is_query", "is_gallery"]
    assert val.frame[sides].all(axis=None)
    assert not split.subset("train").frame[sides].any(axis=None)
    assert split.subset("test").frame[sides].equals(table.subset("test").frame[sides])
    embeddings = np.random.default_rng(0).normal(size=(len(val), 4))
    alone = Table(val.frame.drop(columns=sides))
    assert evaluate(embeddings, val).metrics == evaluate(embeddings, alone).metrics


def test_divisions_that_are_refused() -> None:
    for sizes, arguments, message in (
        ({"train": 4, "test": 2}, {"fractions": {"train": 0.5, "test": 0.5}}, "has a test split of 6 images, which a"),
        ({"train": 4, "test": 2}, {"classes": {"train": [0], "test": [1]}}, "divide the others into train and val, or"),
        ({"train": 4, "test": 2}, {"classes": {"val": [5]}}, "val: class '5' is in the table's own test split; leave"),
        ({"train": 4, "test": 2}, {"classes": {"val": [6]}}, "val: no class '6'; there are 0, 1, 2, 3"),
        ({"train": 4, "test": 2}, {"fractions": HALVES, "order": "sorted"}, "order is 'sorted'; it can be random or"),
        ({"train": 4, "test": 2}, {"fractions": HALVES, "seed": -1}, "seed is -1; it must not be negative"),
        ({"test": 2}, {"fractions": {"train": 1.0}}, "the table has only the split test"),
    ):
        refused_call(re.escape(message), with_splits(**sizes).split_classes, **arguments)


def test_a_fraction_of_each_class_is_held_out_two_images_or_none_at_least() -> None:
    frame = pd.DataFrame({"label": 20 * ["a"] + 6 * ["b"] + 4 * ["c"] + 3 * ["d"]}).sample(frac=1, random_state=1)
    frame = frame.reset_index(drop=True)
    counts = hold_out_images(frame, 0.3, seed=3).groupby(["split", "label"]).size().to_dict()
    val = {"a": 6, "b": 2, "c": 2}
    train = {"a": 14, "b": 4, "c": 2, "d": 3}
    assert counts == {("val", k): n for k, n in val.items()} | {("train", k): n for k, n in train.items()}
    same, other = (hold_out_images(frame, 0.3, seed)["split"].tolist() for seed in (3, 4))
    assert same == hold_out_images(frame, 0.3, 3)["split"].tolist() != other


def test_only_training_images_are_held_out_and_they_become_queries_and_gallery_images() -> None:
    frame = pd.DataFrame({"label": 8 * ["a"] + 8 * ["b"], "split": 8 * ["train"] + 8 * ["test"]})
    frame["is_query"] = frame["is_gallery"] = frame["split"] == "test"
    held = hold_out_images(frame, 0.25)
    assert held["split"].value_counts().to_dict() == {"test": 8, "train": 6, "val": 2}
    assert held.loc[held["split"] == "val", ["is_query", "is_gallery"]].all().all()


def test_groups_stay_together_and_have_matches_in_other_groups() -> None:
    """Shelves show several classes; `solo` has one shelf, and `pair` two: neither can be validated."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"label": rng.choice(["a", "b", "c"], 300), "group": rng.integers(0, 40, 300)})
    alone = pd.DataFrame({"label": 9 * ["solo"] + 8 * ["pair"], "group": 9 * [40] + 4 * [41] + 4 * [42]})
    single = pd.DataFrame({"label": 10 * ["d"], "group": -1})  # without groups
    frame = pd.concat([frame, alone, single]).sample(frac=1, random_state=1).reset_index(drop=True)
    held = hold_out_images(frame, 0.2, seed=3)
    val, train = (held[held["split"] == split] for split in ("val", "train"))
    shared = set(val["group"]) & set(train["group"])
    assert shared == {-1}
    assert set(val["label"]) == {"a", "b", "c", "d"}
    assert (val.groupby("label")["group"].nunique()[["a", "b", "c"]] >= 2).all()
    assert (val["label"] == "d").sum() == 2
    fractions = val["label"].value_counts() / held["label"].value_counts()
    assert fractions[["a", "b", "c"]].between(0.19, 0.32).all()
    assert held["split"].tolist() == hold_out_images(frame, 0.2, seed=3)["split"].tolist()
    assert held["split"].tolist() != hold_out_images(frame, 0.2, seed=4)["split"].tolist()
    text = frame.assign(group=frame["group"].map("shelf{}".format))
    assert not set(hold_out_images(text, 0.2).query("split == 'val'")["group"]) & set(
        hold_out_images(text, 0.2).query("split == 'train'")["group"]
    )


def test_what_cannot_be_held_out_is_an_error() -> None:
    with pytest.raises(InputError, match="there is one already"):
        hold_out_images(pd.DataFrame({"label": ["a"] * 8, "split": ["train", "val"] * 4}), 0.2)
    refused_call("holds out no image", hold_out_images, pd.DataFrame({"label": ["a"] * 3}), 0.2)
    with pytest.raises(InputError, match="no class has two groups for val and one for train"):
        hold_out_images(pd.DataFrame({"label": ["a"] * 8, "group": [0, 1] * 4}), 0.2)
    refused_call("no labels", hold_out_images, pd.DataFrame({"path": ["a.jpg"]}), 0.2)
    refused_call(r"data.val_images = 1.0 must be from 0", DataSettings, val_images=1.0)


def test_all_classes_of_a_folder_are_trained_on_if_images_validate_or_classes_are_few(photos, tmp_path, capsys) -> None:
    known = load_dataset(DataSettings(str(photos), val_images=0.3))
    assert known.splits == ["train", "val"]
    assert known.subset("train").classes == known.subset("val").classes == known.classes
    assert "held out 16 images of 8 training classes" in capsys.readouterr().err
    tested = load_dataset(DataSettings(str(photos), fractions={"train": 0.75, "test": 0.25}, val_images=0.3))
    assert [len(tested.subset(split)) for split in ("train", "val", "test")] == [24, 12, 12]
    for number in range(3):
        (tmp_path / f"class{number}").symlink_to(photos / f"class{number}")
    assert load_dataset(DataSettings(str(tmp_path))).splits == ["train"]
    assert "training on all 3 classes" in capsys.readouterr().err
