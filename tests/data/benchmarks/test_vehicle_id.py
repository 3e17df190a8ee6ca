from __future__ import annotations

from pathlib import Path

import pytest

from vicinal.data import load_table
from vicinal.data.benchmarks import vehicle_id
from vicinal.utils.errors import InputError


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "vehicle_id" / "train_test_split"
    folder.mkdir(parents=True)
    (folder / "train_list.txt").write_text("0000007 3\n0000008 3\n")
    for vehicles, names in ((800, [1]), (1600, [1, 2]), (2400, [1, 2, 4])):
        lines = [f"00000{name}{image} {name + 100}" for name in names for image in (0, 1)]
        (folder / f"test_list_{vehicles}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(("size", "vehicles"), [("small", [101]), ("medium", [101, 102]), ("large", [101, 102, 104])])
def test_the_published_lists(lists: Path, size: str, vehicles: list[int]) -> None:
    root = lists.parent.parent
    table = vehicle_id(root, size)
    assert table.subset("test").classes == vehicles
    assert table.subset("train").classes == [3]
    assert table.paths[0] == str(lists.parent / "image" / "0000007.jpg")
    assert table.subset("test").paths[1] == str(lists.parent / "image" / "0000011.jpg")
    name = "vehicle_id" if size == "large" else f"vehicle_id_{size}"
    assert load_table(name, root=root).paths == table.paths


def test_bad_input(lists: Path, tmp_path: Path) -> None:
    root = lists.parent.parent
    with pytest.raises(InputError, match="size is 'huge'; it can be small, medium, large"):
        vehicle_id(root, "huge")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"vehicle_id: no folder train_test_split; ask for VehicleID at https://"):
        vehicle_id(tmp_path / "nothing")
    (lists / "test_list_800.txt").write_text("0000001 1\n0000002 one\n")
    with pytest.raises(InputError, match=r"test_list_800\.txt, line 2: 'one'; a line is the image's name and"):
        vehicle_id(root, "small")
    (lists / "test_list_800.txt").write_text(f"0000001 {'9' * 5000}\n")
    with pytest.raises(InputError, match=r"line 1: '9{40}'; .* the vehicle's number, of up to 18 digits"):
        vehicle_id(root, "small")
    (lists / "test_list_800.txt").write_text("\n0000001\n")
    with pytest.raises(InputError, match=r"test_list_800\.txt, line 2: 1 fields where there must be 2"):
        vehicle_id(root, "small")
    (lists / "test_list_800.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"test_list_800\.txt: not UTF-8 text"):
        vehicle_id(root, "small")
    (lists / "test_list_800.txt").unlink()
    with pytest.raises(InputError, match=r"test_list_800\.txt: no such file"):
        vehicle_id(root, "small")
