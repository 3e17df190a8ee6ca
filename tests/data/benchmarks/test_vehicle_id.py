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
