import warnings

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.data.columns import validate_frame
from vicinal.utils.errors import InputError


def test_invalid_values_are_reported_with_their_row() -> None:
    for column, values, message in (
        ("label", ["a", None, "b"], "row 1 has no label; every row needs one"),
        ("label", [float("nan"), "a", ""], r"row 0 has no label \(nor have 1 others\)"),
        ("label", ["a", 3], "row 1: label is 3; a label is text or a 64-bit integer, the same type in all rows"),
        ("label", [1.0, 2.5], r"row 1: label is 2\.5"),
        ("label", [1, 2**70], "row 1: label is 1180591620717411303424; a label is text or a 64-bit integer"),
        ("label", np.array([1, 2**63], dtype=np.uint64), "row 1: label is 9223372036854775808"),
        ("label", [np.array(["a", "b"]), np.array(["c"])], "row 0: label is array"),
        ("path", pd.Series(["a.png", "b\udcff.png"], dtype=object), r"row 1: the file name 'b\\udcff.png' is not"),
        ("label", [True, False], "row 0: label is True"),
        ("path", ["a.png", ""], "row 1 has no path"),
        ("path", ["a.png", 7], "row 1: path 7 is not text"),
        ("split", ["train", "valid"], "row 1: split is 'valid'; it can be train, val or test"),
        ("is_query", ["true", "maybe"], "row 1: is_query is 'maybe'; it can be true or false"),
        ("noisy_image", [None, True], "row 0 has no noisy_image"),
    ):
        refused_call(message, validate_frame, pd.DataFrame({column: pd.Series(values)}), None)


def test_values_come_to_one_type() -> None:
    frame = pd.DataFrame({"is_query": ["Yes", "0"], "is_gallery": [1, 0], "other": [None, 2.5], "coarse": [1.0, 2.0]})
    frame = frame.assign(label=pd.Categorical(["b", "a"]), group=np.array([1, 2], dtype=np.int8))
    checked = validate_frame(frame, None)
    assert checked["label"].tolist() == ["b", "a"]
    assert (checked["coarse"].dtype, checked["group"].dtype) == (np.int64, np.int64)
    assert checked["is_query"].tolist() == [True, False]
    assert checked["is_gallery"].dtype == bool
    assert checked["other"].isna().tolist() == [True, False]


def test_labels_and_clean_labels_come_to_one_type() -> None:
    mixed = validate_frame(pd.DataFrame({"label": [1, 2], "label_clean": ["x", "2"], "coarse": [3, 4]}), None)
    assert mixed.to_numpy().tolist() == [["1", "x", 3], ["2", "2", 4]]
    assert mixed["label"].dtype == mixed["label_clean"].dtype
    numbers = validate_frame(pd.DataFrame({"label": [1, 2], "label_clean": [1.0, 1.0]}), None)
    assert numbers.dtypes.tolist() == [np.int64, np.int64]


BOXES = {"x_1": ["0", ""], "y_1": ["1.5", ""], "x_2": ["3", ""], "y_2": ["4", ""]}


def test_boxes_are_numbers_or_empty() -> None:
    checked = validate_frame(pd.DataFrame(BOXES), None)
    assert checked.dtypes.tolist() == [np.float64] * 4
    assert checked.iloc[0].tolist() == [0, 1.5, 3, 4]
    assert checked.iloc[1].isna().all()
    alone = pd.DataFrame({"x_1": ["left"]})
    assert validate_frame(alone, None)["x_1"].tolist() == ["left"]  # no box without the other three
    above = pd.DataFrame({"x_1": [0], "y_1": [-5], "x_2": [3], "y_2": [-1]})
    refused_call(r"from \(0, -5\) to \(3, -1\) is empty or outside of its image", validate_frame, above, None)
    with pytest.raises(InputError, match=r"lacks .y_2. of the box columns x_1, y_1, x_2, y_2; add"):
        validate_frame(pd.DataFrame(BOXES).drop(columns="y_2"), None)


def test_invalid_boxes() -> None:
    for column, value, message in (
        ("x_1", "left", "row 0: x_1 is 'left'; it is a number of pixels"),
        ("x_2", "0", r"row 0: the bounding box from \(0, 1\.5\) to \(0, 4\) is empty or outside of its image; x_1,"),
        ("y_2", "inf", r"row 0: the bounding box from \(0, 1\.5\) to \(3, inf\)"),
        ("y_2", "", r"row 0: the bounding box from \(0, 1\.5\) to \(3, nan\) lacks an edge; give all four"),
    ):
        refused_call(message, validate_frame, pd.DataFrame(BOXES | {column: [value, ""]}), None)


BOX = {"x_1": [0.0, 5.0], "y_1": [0.0, 0.0], "x_2": [5.0, 9.0], "y_2": [9.0, 9.0]}


def _read(frame: pd.DataFrame) -> Table:
    return Table.from_frame(frame, path_column=None, label_column=None)


def test_repeated_images_are_counted_and_one_is_named() -> None:
    frame = pd.DataFrame({"path": [f"/{name}.png" for name in "abcadb"], "label": list("xyzxwz")})
    with pytest.warns(UserWarning, match=r"^2 images are in several rows, such as /a\.png \(rows 0 and 3\), 1 of them"):
        _read(frame)
    with pytest.warns(UserWarning, match=r"^1 image is in several rows, such as /a\.png \(rows 0 and 3\): such rows"):
        _read(frame.drop(columns="label").iloc[:5])


def test_rows_that_cannot_find_each_other_are_not_repeated() -> None:
    for columns in (
        {"path": ["/a.png", "/b.png"]},
        {"label": [1, 1]},
        {"split": ["train", "test"]},
        {"is_query": [True, False], "is_gallery": [False, True]},
        BOX,
        {**BOX, "x_1": [0.0, np.nan], "y_1": [0.0, np.nan], "x_2": [5.0, np.nan], "y_2": [9.0, np.nan]},
    ):
        path = {} if "label" in columns else {"path": ["/a.png", "/a.png"]}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _read(pd.DataFrame({**path, **columns}))


def test_equal_boxes_and_gallery_rows_are_repeated() -> None:
    for columns in ({name: [edge[0]] * 2 for name, edge in BOX.items()}, {"is_gallery": [True, True]}):
        with pytest.warns(UserWarning, match="1 image is in several rows"):
            _read(pd.DataFrame({"path": ["/a.png", "/a.png"], **columns}))
