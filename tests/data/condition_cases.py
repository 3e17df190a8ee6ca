"""Conditions and the rows that fulfill them, in a table, a folder, PostgreSQL and Milvus alike."""

import numpy as np
import pandas as pd

FRAME = pd.DataFrame(
    {
        "category": ["cup", "bowl", "cup", None],
        "price": [12.5, 8.0, np.nan, 30.0],
        "text_price": ["12.5", "8", "", "30"],  # as in a CSV file
        "label": [1, 2, 3, 4],
        "sold": [True, False, True, False],
        "is_new": pd.array([True, None, False, None], dtype="boolean"),
        "unit price": [1, 2, 3, 4],
        "name": ["blue cup", "red's bowl", "`odd` and", "Ünicode"],
        "list": [10.0, 10.0, 10.0, 10.0],
        "ean": pd.array([2**53, 2**53 + 1, None, 2**63 - 1], dtype="Int64"),
        "text_ean": [str(2**53), str(2**53 + 1), None, "7"],
        "huge": [2.0**53, 1e300, None, -1e300],
        "day": pd.to_datetime(["2020-01-01", "2020-01-31 12:30", None, "2021-01-01"], format="ISO8601"),
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
    "price != 8": [0, 3],
    "20 > text_price": [0, 1],
    "text_price == 8": [1],
    "text_price == '8'": [1],
    "text_price is None": [2],
    "text_price != 30": [0, 1],
    "price is not None": [0, 1, 3],
    "label in [1, 4]": [0, 3],
    "label in [1.0, 2.5]": [0],
    "label not in (1, 4)": [1, 2],
    "category not in ['cup']": [1],
    "'bowl' in name": [1],
    "'' in category": [0, 1, 2],
    "'\\'s' in name": [1],
    '"`odd` and" in name': [2],
    "name > 'b'": [0, 1, 3],  # in the order of Unicode
    "name < 'b'": [2],
    "`unit price` > 2 and not sold": [3],
    "sold": [0, 2],
    "sold == True": [0, 2],
    "sold < 1": [1, 3],
    "sold == 2": [],
    "is_new": [0],
    "not is_new": [1, 2, 3],
    "is_new != True": [2],
    "is_new is None": [1, 3],
    "label > -1 and (label == 1 or label == 2)": [0, 1],
    "label > 2.5": [2, 3],
    "label != 2.5": [0, 1, 2, 3],
    # integers that no float holds
    f"ean == {2**53 + 1}": [1],
    f"ean > {2**53}": [1, 3],
    f"ean < {2.0**53 + 2:.1f}": [0, 1],
    f"ean == {2**63 - 1}": [3],
    f"ean < {2**63}": [0, 1, 3],
    f"ean > {2**63}": [],
    f"ean != {2**64 + 1}": [0, 1, 3],
    f"ean > -{10**309}": [0, 1, 3],
    f"ean not in [{2**53}, {2**70}]": [1, 3],
    f"text_ean == {2**53 + 1}": [1],
    f"text_ean < {2**53 + 1}": [0, 3],
    f"text_ean < {2**70}": [0, 1, 3],
    f"huge == {2**53}": [0],
    f"huge == {2**53 + 1}": [],
    f"huge < {2**53 + 1}": [0, 3],
    f"huge >= {2**53 + 1}": [1],
    f"price < {10**309}": [0, 1, 3],
    f"price > {10**309}": [],
    f"huge > -{10**309}": [0, 1, 3],
    # times are texts, and a missing one fulfills nothing
    "day == '2020-01-01'": [0],
    "'2020-01-31' < day < '2020-02'": [1],
    "day >= '2020-01-31 12:30:00'": [1, 3],
    "day is None": [2],
}
OF_COLUMNS = {"price > list": [0, 3], "label == `unit price`": [0, 1, 2, 3], "text_price >= price": [0, 1, 3]}
WRONG = {
    "prise < 3": "no column 'prise', did you mean 'price'",
    "weight < 3": "no column 'weight'; the columns are ",
    "category < 3": "column 'category' holds texts that are not numbers, and 3 is a number",
    "day < 3": "column 'day' holds texts that are not numbers",
    "label == '7'": "column 'label' is a number and '7' a text",
    "price": "column 'price' is not boolean",
    "'a' in price": "`in` needs a column",
    "import os": "cannot be parsed",
}
