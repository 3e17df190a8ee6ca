from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vicinal.data.splits import (
    class_folds,
    order_classes,
    shared_classes,
    splits_by_fraction,
    splits_by_list,
)
from vicinal.utils.errors import InputError


@given(classes=st.integers(3, 200), train=st.floats(0.34, 0.6), val=st.floats(0.34, 0.39), seed=st.integers(0, 99))
def test_shares_give_each_class_one_split_in_the_right_numbers(
    classes: int, train: float, val: float, seed: int
) -> None:
    chosen = splits_by_fraction(range(classes), {"val": val, "train": train}, seed)
    numbers = pd.Series(chosen).value_counts()
    assert abs(numbers["train"] - train * classes) <= 0.5
    assert abs(numbers["train"] + numbers["val"] - (train + val) * classes) <= 0.5


def test_all_shares_together_take_every_class() -> None:
    assert len(splits_by_fraction(range(7), {"train": 0.7, "val": 0.2, "test": 0.1}, 0)) == 7


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
        with pytest.raises(InputError, match=f"{folds} folds of {classes} classes"):
            class_folds(names, folds, seed)
        return
    found = class_folds(names, folds, seed)
    sizes = [len(fold) for fold in found]
    assert len(found) == folds
    assert max(sizes) - min(sizes) <= 1
    assert sorted(name for fold in found for name in fold) == names
    assert found == class_folds(names, folds, seed)
    in_order = class_folds(names[::-1], folds, order="in_order")
    assert [name for fold in in_order for name in fold] == names


def test_folds_depend_on_the_seed_and_one_fold_is_refused() -> None:
    assert class_folds(range(20), 4, 0) != class_folds(range(20), 4, 1)
    with pytest.raises(InputError, match="1 folds of 5 classes; give 2 folds or more"):
        class_folds(range(5), 1)


def test_long_lists_of_classes_are_cut_in_errors() -> None:
    with pytest.raises(InputError, match=r"there are 0, 1, 2, 3, 4, 5, 6, 7 and 92 more$"):
        splits_by_list(range(100), {"train": ["x"]})


def test_shared_classes_with_all_their_splits() -> None:
    frame = pd.DataFrame({"label": [2, 1, 2, 2, 3], "split": ["test", "val", "train", "test", "val"]})
    assert shared_classes(frame) == {2: ["train", "test"]}
    assert shared_classes(frame[["label"]]) == {}
