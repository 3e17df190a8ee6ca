"""Dividing the classes of a table that has splits: its test split stays as it is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vicinal.data import DataSettings, Table
from vicinal.data.dataset import divide
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError

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


def test_listed_classes_leave_the_test_split_as_it_is() -> None:
    split = with_splits(train=4, test=2).split_classes(classes={"train": [0, 1], "val": ["3"]})
    assert classes(split) == {"train": [0, 1], "val": [3], "test": [4, 5]}


def test_redivide_divides_all_classes() -> None:
    split = with_splits(train=8, test=6).split_classes(HALVES, order="in_order", redivide=True)
    assert classes(split) == {"train": list(range(7)), "val": list(range(7, 14))}


def test_classes_shared_with_the_test_split_may_stay_shared() -> None:
    frame = pd.DataFrame({"label": ["a", "a", "b", "b"], "split": ["train", "test"] * 2})
    with pytest.warns(UserWarning, match="is in the splits train and test"):
        table = Table(frame)
    split = table.split_classes(HALVES, order="in_order")
    assert split.frame["split"].tolist() == ["train", "test", "val", "test"]


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
    with pytest.raises(InputError, match="has a test split of 6 images"):
        Table(table.frame.assign(half=halves)).split_classes(column="half")


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


@pytest.mark.parametrize(
    ("sizes", "arguments", "message"),
    [
        ({"train": 4, "test": 2}, {"fractions": {"train": 0.5, "test": 0.5}}, "has a test split of 6 images, which a"),
        ({"train": 4, "test": 2}, {"classes": {"train": [0], "test": [1]}}, "divide the others into train and val, or"),
        ({"train": 4, "test": 2}, {"classes": {"val": [5]}}, "val: class '5' is in the table's own test split; leave"),
        ({"train": 4, "test": 2}, {"classes": {"val": [6]}}, "val: no class '6'; there are 0, 1, 2, 3"),
        ({"train": 4, "test": 2}, {"fractions": HALVES, "order": "sorted"}, "order is 'sorted'; it can be random or"),
        ({"train": 4, "test": 2}, {"fractions": HALVES, "seed": -1}, "seed is -1; it must not be negative"),
        ({"test": 2}, {"fractions": {"train": 1.0}}, "the table has only the split test"),
    ],
)
def test_divisions_that_are_refused(sizes: dict[str, int], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        with_splits(**sizes).split_classes(**arguments)


def test_settings_divide_as_the_table_does() -> None:
    table = with_splits(train=4, test=2)
    assert divide(table, DataSettings()) is table
    settings = DataSettings(fractions=HALVES, order="in_order")
    assert classes(divide(table, settings)) == {"train": [0, 1], "val": [2, 3], "test": [4, 5]}
    anew = DataSettings(classes={"train": [5], "test": [0]}, redivide=True)
    assert classes(divide(table, anew)) == {"train": [5], "test": [0]}
