from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.benchmarks.published import (
    accept_small,
    write_cars,
    write_cars_class_folders,
    write_cars_devkit,
    write_lines,
)
from vicinal.data import load_table
from vicinal.data.benchmarks import cars
from vicinal.utils.errors import InputError

LAYOUTS = [write_cars, write_cars_devkit, write_cars_class_folders]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small(monkeypatch, "cars")


@pytest.mark.parametrize("write", LAYOUTS)
def test_all_layouts_have_the_same_classes(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    table = load_table("cars", root=tmp_path)
    assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
    assert table.subset("test").classes == [99, 100, 101, 102]
    assert set(table.class_counts) == {5}
    boxes = table.frame[["box_x_1", "box_y_1", "box_x_2", "box_y_2"]]
    assert boxes.drop_duplicates().values.tolist() == [[3, 2, 20, 18]]
    assert len(set(table.paths)) == 50


def test_the_devkit_alone_has_no_classes_of_test_images(tmp_path: Path) -> None:
    write_cars_devkit(tmp_path)
    labels = tmp_path / "cars_test_annos_withlabels.mat"
    labels.rename(tmp_path / "devkit" / labels.name)
    assert len(cars(tmp_path)) == 50
    (tmp_path / "devkit" / labels.name).unlink()
    with pytest.raises(InputError, match=r"no cars_test_annos_withlabels\.mat, nor one in devkit/; "):
        cars(tmp_path)
    (tmp_path / "devkit" / "cars_test_annos.mat").rename(labels)
    with pytest.raises(InputError, match=r"withlabels\.mat: has no class; the fields of its annotations are bbox_x1, "):
        cars(tmp_path)


def test_broken_files(tmp_path: Path) -> None:
    write_cars(tmp_path)
    whole = (tmp_path / "cars_annos.mat").read_bytes()
    for content in (b"", b"MATLAB", whole[: len(whole) // 2], whole[:200] + b"\xff" * 200 + whole[400:]):
        (tmp_path / "cars_annos.mat").write_bytes(content)
        with pytest.raises(InputError, match=r"cars_annos\.mat: (is not a file of MATLAB|has no relative_im_path)"):
            cars(tmp_path)


def test_bad_lists(tmp_path: Path) -> None:
    write_cars_class_folders(tmp_path)
    write_lines(tmp_path / "names.csv", "Model 1", "Model 2")
    with pytest.raises(InputError, match=r"anno_train\.csv: has the class 102, but names\.csv has 2 names"):
        cars(tmp_path)
