"""The fingerprint of a split: the same for the same images, labels and splits, in any folder and order."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from vicinal.data import Table, split_fingerprint
from vicinal.utils.errors import InputError

FRAME = pd.DataFrame(
    {"path": ["x/a.jpg", "x/b.jpg", "y/c.jpg"], "label": [1, 1, 2], "split": ["train", "train", "test"]},
)


def fingerprint(root: str = "/data", **columns: list[object]) -> str:
    return split_fingerprint(Table(FRAME.assign(**columns), root))


def test_it_does_not_depend_on_folder_order_or_file(tmp_path: Path) -> None:
    assert len(fingerprint()) == 16
    assert fingerprint(root="/home/me/images") == fingerprint()
    assert split_fingerprint(Table(FRAME[::-1], "/data")) == fingerprint()
    assert fingerprint(photographer=["Ada", "Ada", "Bob"]) == fingerprint()
    Table(FRAME.assign(label=["1", "1", "2"]), "/data").save(tmp_path / "table.csv")
    assert split_fingerprint(Table.from_csv(tmp_path / "table.csv")) == fingerprint()


@pytest.mark.parametrize(
    "columns",
    [
        {"label": [2, 2, 1]},
        {"split": ["train", "train", "val"]},
        {"path": ["x/a.jpg", "y/b.jpg", "y/c.jpg"]},
        {"path": ["x/a.jpg", "x/b.jpg", "yc.jpg"]},
        {"is_query": [False, False, True]},
    ],
)
def test_it_depends_on_every_image_label_and_split(columns: dict[str, list[object]]) -> None:
    assert fingerprint(**columns) != fingerprint()


def test_one_folder_no_rows_and_no_paths() -> None:
    one = Table(FRAME[:1], "/data")
    assert split_fingerprint(one) == split_fingerprint(Table(FRAME[:1].assign(path="a.jpg"), "/elsewhere"))
    assert split_fingerprint(one.take([])) != split_fingerprint(one)
    with pytest.raises(InputError, match="no column 'path'"):
        split_fingerprint(Table(FRAME[["label"]]))
