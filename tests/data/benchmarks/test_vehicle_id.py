from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.benchmarks.published import IMAGES, accept_small, write_vehicle_id
from vicinal.data import load_table
from vicinal.data.benchmarks import vehicle_id
from vicinal.utils.errors import InputError


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_small(monkeypatch, "vehicle_id", "vehicle_id_medium", "vehicle_id_small")
    write_vehicle_id(tmp_path)
    return tmp_path / "VehicleID_V1.0" / "train_test_split"


@pytest.mark.parametrize(
    ("size", "vehicles"), [("small", [100, 101]), ("medium", [100, 101, 102]), ("large", [100, 101, 102, 103])]
)
def test_the_published_lists(lists: Path, size: str, vehicles: list[int]) -> None:
    root = lists.parent.parent
    table = vehicle_id(root, size)
    assert table.subset("test").classes == vehicles
    assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
    assert table.paths[1] == str(lists.parent / "image" / "0000011.jpg")
    assert table.subset("test").paths[IMAGES] == str(lists.parent / "image" / "0001010.jpg")
    name = "vehicle_id" if size == "large" else f"vehicle_id_{size}"
    assert load_table(name, root=root).paths == table.paths


def test_attributes_are_columns_if_they_are_there(lists: Path, tmp_path: Path) -> None:
    table = vehicle_id(lists.parent)
    models = table.frame.groupby("label")["model"].first()
    assert models[[2, 100]].tolist() == [2, 100 % 7]
    assert models[[1, 101]].isna().all()
    assert table.frame["color"].dropna().unique().tolist() == [2, 1, 0]
    table.save(tmp_path / "table.parquet")
    (lists.parent / "attribute" / "color_attr.txt").write_text("2 red\n")
    with pytest.raises(InputError, match=r"color_attr\.txt, line 1: 'red' is not an integer"):
        vehicle_id(lists.parent)
    (lists.parent / "attribute").rename(lists.parent / "attributes")
    assert not vehicle_id(lists.parent).has("model")


def test_bad_input(lists: Path, tmp_path: Path) -> None:
    root = lists.parent.parent
    with pytest.raises(InputError, match="size is 'huge'; it can be small, medium, large"):
        vehicle_id(root, "huge")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no train_test_split in vehicle_id/, .*; ask for VehicleID at https://"):
        vehicle_id(tmp_path / "nothing")
    whole = (lists / "test_list_800.txt").read_text()
    for text, message in {
        "0000001 1\n0000002 one\n": "test_list_800.txt, line 2: 'one' is not an integer of up to 18 digits",
        f"0000001 {'9' * 5000}\n": "line 1: '9{40}' is not an integer",
        "\n0000001\n": "test_list_800.txt, line 2: 1 fields where there must be 2",
        whole + whole: "line 11: 0001000 is there twice, first in line 1",
        whole.replace("0001000", "0009999"): "1 of 40 images that its lists name are absent: image/0009999.jpg",
        whole.replace(
            " 100\n", " 101\n"
        ): "test of vehicle_id_small has 10 images of 1 classes, but 10 of 2 are published",
    }.items():
        (lists / "test_list_800.txt").write_text(text)
        with pytest.raises(InputError, match=message):
            vehicle_id(root, "small")
    (lists / "test_list_800.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"test_list_800\.txt: not UTF-8 text"):
        vehicle_id(root, "small")
    (lists / "test_list_800.txt").unlink()
    with pytest.raises(InputError, match=r"test_list_800\.txt: no such file"):
        vehicle_id(root, "small")
