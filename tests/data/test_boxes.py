"""The warning of images that are in several rows of a table."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table

BOX = {"x_1": [0.0, 5.0], "y_1": [0.0, 0.0], "x_2": [5.0, 9.0], "y_2": [9.0, 9.0]}


def read(frame: pd.DataFrame) -> Table:
    return Table.from_frame(frame, path_column=None, label_column=None)


def test_repeated_images_are_counted_and_one_is_named() -> None:
    frame = pd.DataFrame({"path": [f"/{name}.png" for name in "abcadb"], "label": list("xyzxwz")})
    with pytest.warns(UserWarning, match=r"^2 images are in several rows, such as /a\.png \(rows 0 and 3\), 1 of them"):
        read(frame)
    with pytest.warns(UserWarning, match=r"^1 image is in several rows, such as /a\.png \(rows 0 and 3\): such rows"):
        read(frame.drop(columns="label").iloc[:5])


@pytest.mark.parametrize(
    "columns",
    [
        {"path": ["/a.png", "/b.png"]},
        {"label": [1, 1]},
        {"split": ["train", "test"]},
        {"is_query": [True, False], "is_gallery": [False, True]},
        BOX,
        {**BOX, "x_1": [0.0, np.nan], "y_1": [0.0, np.nan], "x_2": [5.0, np.nan], "y_2": [9.0, np.nan]},
    ],
)
def test_rows_that_cannot_find_each_other_are_not_repeated(columns: dict[str, Any]) -> None:
    path = {} if "label" in columns else {"path": ["/a.png", "/a.png"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(pd.DataFrame({**path, **columns}))


def test_equal_boxes_and_gallery_rows_are_repeated() -> None:
    for columns in ({name: [edge[0]] * 2 for name, edge in BOX.items()}, {"is_gallery": [True, True]}):
        with pytest.warns(UserWarning, match="1 image is in several rows"):
            read(pd.DataFrame({"path": ["/a.png", "/a.png"], **columns}))
