import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table, load_table
from vicinal.utils.errors import InputError


def animals() -> Table:
    frame = pd.DataFrame({"path": ["d.png", "b.png", "c.png", "a.png"], "label": ["dog", "cat", "dog", "owl"]})
    return Table(frame.assign(split=["train", "test", "train", "val"]), root="/pictures")


def test_labels_are_positions_among_the_sorted_classes() -> None:
    table = animals()
    assert table.classes == ["cat", "dog", "owl"]
    assert table.labels.tolist() == [1, 0, 1, 2]
    assert table.labels.dtype == np.int64
    assert table.class_counts.tolist() == [1, 2, 1]


def test_rows_are_renumbered_and_paths_resolved_against_the_root() -> None:
    frame = pd.DataFrame({"path": ["a/../b.png", "/elsewhere/c.png"]}, index=[7, 7])
    table = Table(frame, root="/pictures")
    assert table.frame.index.tolist() == [0, 1]
    assert table.paths == ["/pictures/b.png", "/elsewhere/c.png"]


def test_subset_and_take_keep_columns_and_number_classes_anew() -> None:
    train = animals().subset("train")
    assert (len(train), train.classes, train.labels.tolist()) == (2, ["dog"], [0, 0])
    taken = animals().take([3, 1])
    assert taken.paths == ["/pictures/a.png", "/pictures/b.png"]
    assert taken.labels.tolist() == [1, 0]
    assert taken.frame.index.tolist() == [0, 1]
    assert animals().take(np.array([True, False, False, True])).classes == ["dog", "owl"]
    assert len(animals().take([])) == 0


def test_take_checks_rows() -> None:
    for rows, message in (
        ([4], "no row 4; the table has 4"),
        ([-1], "no row -1"),
        ([0.5], "float64"),
        ([[0]], r"\[1, 1\]"),
    ):
        refused_call(message, animals().take, rows)


def test_a_missing_column_is_an_error_where_it_is_used() -> None:
    unlabeled = Table(pd.DataFrame({"path": ["a.png"]}))
    for use in (lambda: unlabeled.labels, lambda: unlabeled.classes, lambda: unlabeled.class_counts):
        refused_call(r"no column 'label' \(the images' classes\); its columns are path", use)
    with pytest.raises(InputError, match="no column 'path'"):
        _ = Table(pd.DataFrame({"label": ["a"]})).paths
    refused_call("no split 'val'; it has no column 'split'", unlabeled.subset, "val")
    refused_call("no split 'val'; its splits are train", Table(pd.DataFrame({"split": ["train"]})).subset, "val")


def test_a_class_in_two_splits_gives_a_warning() -> None:
    frame = pd.DataFrame({"label": ["cat", "cat", "dog", "dog", "owl"], "split": ["train", "test"] * 2 + ["val"]})
    with pytest.warns(UserWarning, match="class 'cat' is in the splits train and test, and so is 1 other") as seen:
        table = Table(frame)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.subset("train")
        animals()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_saved_table_is_read_back_the_same(tmp_path: Path, ending: str) -> None:
    texts = {"path": ["a, b.png", 'quo"te.png', "new\nline.png"], "label": ["NA", "null", "007"], "group": list("xyz")}
    frame = pd.DataFrame({**texts, "note": list("pqr"), "coarse": [3, 1, 2], "split": ["train", "val", "test"]})
    frame = frame.assign(is_query=[True, False, True], is_gallery=[False, True, True])
    table = Table(frame, root=tmp_path)
    table.save(tmp_path / "sub" / f"table.{ending}")
    again = load_table(tmp_path / "sub" / f"table.{ending}")
    pd.testing.assert_frame_equal(again.frame, table.frame)
    assert again.frame.dtypes.equals(table.frame.dtypes)


def test_from_frame_takes_columns_of_other_names() -> None:
    frame = pd.DataFrame({"file": ["a.png"], "species": ["owl"], "label": ["bird"]})
    table = Table.from_frame(frame, root="/x", path_column="file", label_column="species")
    assert (table.paths, table.classes) == (["/x/a.png"], ["owl"])


def test_split_classes_drops_classes_without_a_split(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(pd.DataFrame({"label": [1, 2, 3, 3]})).split_classes(classes={"train": ["1"], "test": [2]})
    assert table.frame["split"].tolist() == ["train", "test"]
    assert "left out 2 images" in capsys.readouterr().err


def test_invalid_splits() -> None:
    for arguments, message in (
        ({"fractions": {"train": 0.8, "test": 0.3}}, "fractions are train 0.8, test 0.3; each must be above 0"),
        ({"fractions": {"train": 0.9, "val": 0.01}}, "a fraction of 0.01 of 3 classes leaves val empty"),
        ({"fractions": {"dev": 0.5}}, "split 'dev': the splits are train, val and test"),
        ({"classes": {"train": ["zebra"]}}, "train: no class 'zebra'; there are a, b, c"),
        ({"classes": {"train": ["a"], "test": ["a"]}}, "class 'a' is listed for train and test"),
        ({"column": "part"}, "the table has no column 'part'"),
        ({"classes": {"train": ["x"], "test": ["y"]}, "column": "fold"}, "class 'a' would be in train and test"),
        ({"fractions": {"train": 1}, "classes": {"train": ["a"]}}, "one of fractions and classes, or a column"),
    ):
        table = Table(pd.DataFrame({"label": ["a", "b", "c", "a"], "fold": ["x", "y", "x", "y"]}))
        refused_call(message, table.split_classes, **arguments)
