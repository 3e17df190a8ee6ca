from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.benchmarks.published import accept_small, write_in_shop, write_in_shop_highres
from vicinal.data import load_table
from vicinal.data.benchmarks import in_shop, in_shop_highres
from vicinal.utils.errors import InputError

LIST, BOXES = "list_eval_partition.txt", "list_bbox_inshop.txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_small(monkeypatch, "in_shop", "in_shop_highres")
    write_in_shop(tmp_path)
    return (tmp_path / "In-shop Clothes Retrieval Benchmark").rename(tmp_path / "in_shop")


def test_the_published_files(folder: Path) -> None:
    table = load_table("in_shop", root=folder.parent)
    train, test = table.subset("train").frame, table.subset("test").frame
    assert train["label"].unique().tolist() == [f"id_{number:08d}" for number in range(1, 7)]
    assert train["coarse"].unique().tolist() == ["MEN/Denim", "WOMEN/Dresses"]
    assert test["coarse"].unique().tolist() == ["MEN/Pants", "WOMEN/Skirts"]
    assert not train[["is_query", "is_gallery"]].any(axis=None)
    assert test["is_query"].tolist() == [True, True, False, False, False] * 4
    assert test["is_gallery"].tolist() == [False, False, True, True, True] * 4
    assert table.frame[["box_x_1", "box_y_1", "box_x_2", "box_y_2"]].values.tolist()[1::5] == [[3, 2, 20, 13]] * 10
    assert table.paths[0] == str(folder / "Img/img/MEN/Denim/id_00000001/00_1_front.jpg")


@pytest.mark.parametrize("place", ["Anno", "."])
def test_other_places_of_list_and_images(folder: Path, place: str) -> None:
    (folder / "Eval" / LIST).rename(folder / place / LIST)
    (folder / "Img" / "img").rename(folder / "img")
    table = in_shop(folder)
    assert table.paths[0].startswith(str(folder / "img"))
    assert table.has("box_x_1")
    (folder / "Anno" / BOXES).unlink()
    assert not in_shop(folder).has("box_x_1")


def test_images_of_high_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small(monkeypatch, "in_shop_highres")
    write_in_shop_highres(tmp_path)
    folder = tmp_path / "In-shop Clothes Retrieval Benchmark"
    table = in_shop_highres(tmp_path)
    assert table.paths[0].startswith(str(folder / "Img/img_highres/MEN"))
    assert not table.has("box_x_1")  # the boxes are those of the small images
    with pytest.raises(InputError, match="no folder img, nor one in Img/; there is img_highres, which is read as"):
        in_shop(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("50\n", "51\n", "names 51 images in its first line, but has 50; download it again"),
        ("   query\n", "   val\n", "line 33: 'val'; an image is for train, query or gallery"),
        ("img/MEN/Denim/id_00000001/", "MEN/Denim/", "line 3: 'MEN/Denim/00_1_front.jpg'; a name is img/<gender>/"),
    ],
)
def test_bad_lists(folder: Path, old: str, new: str, message: str) -> None:
    text = (folder / "Eval" / LIST).read_text()
    (folder / "Eval" / LIST).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"list_eval_partition\.txt.*{message}"):
        in_shop(folder)


def test_bad_boxes(folder: Path) -> None:
    path = folder / "Anno" / BOXES
    whole = path.read_text()
    path.write_text(whole.replace(" 003 002 020 016\n", " 003 002 003 016\n", 1))
    with pytest.raises(InputError, match=r"inshop\.txt, line 3: the bounding box from \(3, 2\) to \(3, 16\) is empty"):
        in_shop(folder)
    path.write_text(whole.replace("50\n", "49\n", 1).removesuffix(whole.splitlines(keepends=True)[-1]))
    with pytest.raises(InputError, match=r"no bounding box of 1 images, such as img/MEN/Denim/id_00000001/00_1_front"):
        in_shop(folder)
