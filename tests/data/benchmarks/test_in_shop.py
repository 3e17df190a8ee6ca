from __future__ import annotations

from pathlib import Path

import pytest

from vicinal.data import load_table
from vicinal.data.benchmarks import in_shop
from vicinal.utils.errors import InputError

LIST = """6
image_name                         item_id      evaluation_status
img/WOMEN/Dresses/id_00000002/02_1_front.jpg   id_00000002   train
img/WOMEN/Dresses/id_00000002/02_2_side.jpg    id_00000002   train
img/MEN/Tees/id_00000007/01_1_front.jpg        id_00000007   query
img/MEN/Tees/id_00000007/01_4_full.jpg         id_00000007   gallery
img/MEN/Tees/id_00000009/01_1_front.jpg        id_00000009   query
img/MEN/Tees/id_00000009/01_2_side.jpg         id_00000009   gallery
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in_shop" / "img").mkdir(parents=True)
    (tmp_path / "in_shop" / "list_eval_partition.txt").write_text(LIST)
    return tmp_path / "in_shop"


def test_the_published_list(folder: Path) -> None:
    table = in_shop(folder.parent)
    assert table.frame["label"].tolist()[1:3] == ["id_00000002", "id_00000007"]
    assert table.frame["split"].tolist() == ["train", "train", "test", "test", "test", "test"]
    assert table.frame["is_query"].tolist() == [False, False, True, False, True, False]
    assert table.frame["is_gallery"].tolist() == [False, False, False, True, False, True]
    assert table.paths[3] == str(folder / "img/MEN/Tees/id_00000007/01_4_full.jpg")
    assert load_table("in_shop", root=folder.parent).paths == table.paths


def test_the_folders_as_published(folder: Path) -> None:
    (folder / "Eval").mkdir()
    (folder / "list_eval_partition.txt").rename(folder / "Eval" / "list_eval_partition.txt")
    (folder / "Img").mkdir()
    (folder / "img").rename(folder / "Img" / "img")
    assert in_shop(folder.parent).paths[0].startswith(str(folder / "Img" / "img" / "WOMEN"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("6\n", "7\n", "names 7 images in its first line, but has 6; download it again"),
        ("   query\n", "   val\n", "line 5: 'val'; an image is for train, query or gallery"),
        ("   query\n", "\n", "line 5: 2 fields where there must be 3"),
        ("6\n", "", "line 1: 3 fields where there must be 1"),
        (LIST[LIST.index("img") :], "", "names no image"),
        (LIST, "", "names no image"),
    ],
)
def test_bad_lists(folder: Path, old: str, new: str, message: str) -> None:
    (folder / "list_eval_partition.txt").write_text(LIST.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"list_eval_partition\.txt.*{message}"):
        in_shop(folder.parent)


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"in_shop: no list_eval_partition\.txt, nor one in Eval/; download .* https://"
    ):
        in_shop(tmp_path)
