"""Conditions on the columns of a table."""

import numpy as np
import pandas as pd
import pytest

from tests.data.condition_cases import CASES, FRAME, OF_COLUMNS, WRONG
from vicinal.data import Table
from vicinal.data.conditions import matching_rows
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("condition", [*CASES, *OF_COLUMNS])
def test_rows_that_fulfill_a_condition(condition: str) -> None:
    assert np.flatnonzero(matching_rows(FRAME, condition)).tolist() == {**CASES, **OF_COLUMNS}[condition]


def test_columns_of_which_a_table_knows_more_than_a_database() -> None:
    frame = pd.DataFrame({
        "none": [None, None, None],
        "span": pd.to_timedelta([5, None, 7]),
        "path": pd.Series(["a\udcff.png", "b.png", "c.png"], dtype=object),  # a name that is not UTF-8
        "unsigned": np.array([7, 8, 9], np.uint64),
        "large": np.array([2**63 + 1, 2**63 + 3, 7], np.uint64),
    })  # fmt: skip
    cases = {"none < 3 or none == 'a' or none": [], "none is None": [0, 1, 2], "span is None": [1],
             "path == 'b.png'": [1], "unsigned >= 8": [1, 2]}  # fmt: skip
    for condition, rows in cases.items():
        assert np.flatnonzero(matching_rows(frame, condition)).tolist() == rows, condition
    for condition in ("span < 3", "large > 3", r"'\udcff' in path"):
        with pytest.raises(InputError, match=r"holds texts that are not numbers|more than 64 bits|half a character"):
            matching_rows(frame, condition)


def test_anything_else_is_an_error_of_one_line() -> None:
    for condition, message in (
        *WRONG.items(),
        ("", "it is empty"),
        ("price <", "cannot be parsed"),
        ("`unit cost` < 3", "no column 'unit cost'"),
        ("1 < 2", "but neither is a column"),
        ("price == None", "test for a missing value by `column is None`"),
        ("price is 3", "use =="),
        ("price in []", "one value or more"),
        ("price + 1 < 3", r"price \+ 1 is neither"),
        ("__import__('os').system('true') == 0", "is neither a column"),
        ("[x for x in name]", "is not a condition"),
        ("(" * 5000 + "sold" + ")" * 4000, "nested too deeply|cannot be parsed"),
        ("not " * 2000 + "sold", "nested too deeply|cannot be parsed"),
        ("sold or " * 2000 + "sold", "at most 10,000"),
    ):
        with pytest.raises(InputError, match=message) as error:
            matching_rows(FRAME, condition)
        assert len(str(error.value)) < 500


def test_a_table_keeps_the_rows_and_columns() -> None:
    table = Table(FRAME.drop(columns="category"))
    assert table.where("sold").frame["unit price"].tolist() == [1, 3]
    assert len(table.where("label > 9")) == 0
