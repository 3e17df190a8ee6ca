from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.benchmarks.published import accept_small, write_sop
from vicinal.data import load_table
from vicinal.data.benchmarks import sop
from vicinal.utils.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_small(monkeypatch, "sop")
    write_sop(tmp_path)
    return tmp_path / "Stanford_Online_Products"


def test_the_published_lists(folder: Path) -> None:
    table = load_table("sop", root=folder.parent)
    assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
    assert table.subset("test").classes == [11319, 11320, 11321, 11322]
    assert set(table.class_counts) == {5}
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["bicycle"], ["coffee_maker"]] * 5
    assert table.paths[5] == str(folder / "coffee_maker_final" / "2_0.JPG")
    assert sop(folder).paths == table.paths


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("Ebay_test.txt", "\n31 ", "\n1 ", "its lists have two images with the id 1"),
        ("Ebay_train.txt", "\n2 1 1 ", "\n2 1 13 ", r"Ebay_train\.txt, line 3: has the super-class 13; there are 1"),
        ("Ebay_train.txt", "super_class_id", "super", r"line 1: 'image_id class_id super path'; the columns must be"),
    ],
)
def test_bad_lists(folder: Path, file: str, old: str, new: str, message: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        sop(folder)
