"""Conditions on the columns of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.data.conditions import matching_rows
from vicinal.utils.errors import InputError

FRAME = pd.DataFrame(
    {
        "category": ["cup", "bowl", "cup", None],
        "price": [12.5, 8.0, np.nan, 30.0],
        "text_price": ["12.5", "8", "", "30"],  # as in a CSV file
        "label": [1, 2, 3, 4],
        "sold": [True, False, True, False],
        "unit price": [1, 2, 3, 4],
        "name": ["blue cup", "red's bowl", "`odd` and", "x"],
        "list": [10.0, 10.0, 10.0, 10.0],
    }
)
CASES = {
    "category == 'cup'": [0, 2],
    "category != 'cup'": [1],  # a missing value fulfills no comparison
    "not category == 'cup'": [1, 3],
    "category == 'cup' and price < 20": [0],
    "category == 'bowl' or price >= 30": [1, 3],
    "5 <= price < 12.5": [1],
    "price <= 12.5": [0, 1],
    "20 > text_price": [0, 1],
    "text_price == 8": [1],
    "text_price == '8'": [1],
    "text_price is None": [2],
    "price is not None": [0, 1, 3],
    "label in [1, 4]": [0, 3],
    "label not in (1, 4)": [1, 2],
    "category not in ['cup']": [1],
    "'bowl' in name": [1],
    "'\\'s' in name": [1],
    '"`odd` and" in name': [2],
    "`unit price` > 2 and not sold": [3],
    "sold": [0, 2],
    "sold == True": [0, 2],
    "price > list": [0, 3],
    "label > -1 and (label == 1 or label == 2)": [0, 1],
}


@pytest.mark.parametrize("condition", CASES)
def test_rows_that_fulfill_a_condition(condition: str) -> None:
    assert np.flatnonzero(matching_rows(FRAME, condition)).tolist() == CASES[condition]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "it is empty"),
        ("price <", "cannot be parsed"),
        ("prise < 3", "no column 'prise', did you mean 'price'"),
        ("`unit cost` < 3", "no column 'unit cost'"),
        ("weight < 3", "no column 'weight'; the columns are category, price"),
        ("category < 3", "column 'category' is compared with a number, but row 0 holds 'cup'"),
        ("label == '7'", "column 'label' is a number and '7' a text"),
        ("price", "holds no booleans"),
        ("1 < 2", "of which none is a column"),
        ("price == None", "is asked for by `column is None`"),
        ("price is 3", "use =="),
        ("price in []", "one value or more"),
        ("3 in price", "`in` takes a column"),
        ("price + 1 < 3", r"price \+ 1 is neither"),
        ("-category == 'a'", "-category is neither"),
        ("__import__('os').system('true') == 0", "is neither a column"),
        ("(lambda: 1)() == price", "is neither a column"),
        ("category.str.len() == 3", "is neither a column"),
        ("[x for x in name]", "is no condition"),
        ("(price := 3) == label", "is neither a column"),
        ("f'{name}' == category", "is neither a column"),
        ("price < 1\0", "cannot be parsed"),
        ("(" * 5000 + "sold" + ")" * 4000, "nested too deeply|cannot be parsed"),
        ("not " * 2000 + "sold", "nested too deeply|cannot be parsed"),
        ("sold or " * 2000 + "sold", "at most 10,000"),
    ],
)
def test_anything_else_is_an_error_of_one_line(condition: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        matching_rows(FRAME, condition)
    assert len(str(error.value)) < 500


def test_a_table_keeps_the_rows_and_columns() -> None:
    table = Table(FRAME.drop(columns="category"))
    assert table.where("sold").frame["unit price"].tolist() == [1, 3]
    assert len(table.where("label > 9")) == 0
