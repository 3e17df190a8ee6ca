from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vicinal.data.splits import shared_classes, splits_by_fraction, splits_by_list
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


def test_long_lists_of_classes_are_cut_in_errors() -> None:
    with pytest.raises(InputError, match=r"there are 0, 1, 2, 3, 4, 5, 6, 7 and 92 more$"):
        splits_by_list(range(100), {"train": ["x"]})


def test_shared_classes_with_all_their_splits() -> None:
    frame = pd.DataFrame({"label": [2, 1, 2, 2, 3], "split": ["test", "val", "train", "test", "val"]})
    assert shared_classes(frame) == {2: ["train", "test"]}
    assert shared_classes(frame[["label"]]) == {}
