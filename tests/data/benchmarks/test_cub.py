from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.benchmarks.published import IMAGES, accept_small, write_cub
from vicinal.data import load_table
from vicinal.data.benchmarks import cub
from vicinal.utils.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_small(monkeypatch, "cub")
    write_cub(tmp_path)
    return tmp_path / "CUB_200_2011"


def test_the_published_files(folder: Path) -> None:
    table = load_table("cub", root=folder.parent)
    train, test = table.subset("train"), table.subset("test")
    assert train.classes == [f"{number:03d}.Bird_{number}" for number in range(1, 7)]
    assert test.classes == [f"{number}.Bird_{number}" for number in range(101, 105)]
    assert train.class_counts.tolist() == [IMAGES] * 6
    assert table.paths[-1] == str(folder / "images" / "104.Bird_104" / "Bird_104_0004.jpg")
    assert table.frame[["box_x_1", "box_y_1", "box_x_2", "box_y_2"]].iloc[0].tolist() == [2, 3, 13, 15]
    assert cub(folder).paths == table.paths


@pytest.mark.parametrize("place", ["cub", "cub/CUB_200_2011"])
def test_where_the_folder_may_be(folder: Path, place: str) -> None:
    root = folder.parent / "elsewhere"
    (root / place).parent.mkdir(parents=True)
    folder.rename(root / place)
    assert cub(root).paths[0].startswith(str(root / place / "images"))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("classes.txt", "104 ", "204 ", r"classes\.txt: no line for 104, nor for 4 others"),
        ("bounding_boxes.txt", "11.0 12.0", "0.0 12.0", r"boxes\.txt, image 1: the bounding box from \(2, 3\) to"),
        ("images.txt", "0000.jpg", "0009.jpg", r"1 of 50 images that its lists name are absent: images/001\.Bird_1/"),
    ],
)
def test_bad_files(folder: Path, file: str, old: str, new: str, message: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        cub(folder)


def test_a_wrong_root_is_told_what_was_looked_for_and_found(folder: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"images: no image_class_labels\.txt in cub/, CUB_200_2011/ or the folder itself; it holds 001\.B.*"
        r" and 2 more; download CUB_200_2011\.tgz from https://.*, or give the folder that holds it as root",
    ):
        cub(folder / "images")
    (folder / "image_class_labels.txt").unlink()
    with pytest.raises(InputError, match=r"itself; CUB_200_2011/ holds bounding_boxes\.txt, classes\.txt, images, "):
        cub(folder.parent)
    with pytest.raises(InputError, match=r"itself; it cannot be read \(no such file or directory\)"):
        cub(folder / "nowhere")
