from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.benchmarks.published import accept_small, write_inaturalist_2018, write_mini_inaturalist_2021
from vicinal.data import load_table
from vicinal.data.benchmarks import inaturalist_2018, mini_inaturalist_2021
from vicinal.utils.errors import InputError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small(monkeypatch, "inaturalist_2018", "mini_inaturalist_2021")


def test_the_lists_of_2018(tmp_path: Path) -> None:
    write_inaturalist_2018(tmp_path)
    table = load_table("inaturalist_2018", root=tmp_path)
    assert table.subset("train").classes == [20, 21, 22, 23, 24, 25]
    assert table.subset("test").classes == [90, 91, 92, 93]
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["Aves"], ["Plantae"]] * 5
    assert table.paths[5].startswith(str(tmp_path / "train_val2018" / "Plantae" / "21"))
    for path in (tmp_path / "Inat_dataset_splits").iterdir():
        path.rename(tmp_path / path.name)
    assert inaturalist_2018(tmp_path).paths == table.paths


def test_the_lists_of_2021(tmp_path: Path) -> None:
    write_mini_inaturalist_2021(tmp_path)
    table = load_table("mini_inaturalist_2021", root=tmp_path)
    assert table.subset("train").classes == [20, 21, 22, 23, 24, 25]
    assert table.subset("test").classes == [90, 91, 92, 93]
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["Birds"], ["Plants"]] * 5
    assert table.paths[0].startswith(str(tmp_path / "train_mini" / "00020_Animalia_Chordata_Aves"))


def test_resized_images_come_first_and_lists_may_be_in_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mini_inaturalist_2021"
    write_mini_inaturalist_2021(folder)
    (folder / "data").mkdir()
    for path in folder.glob("*.txt"):
        path.rename(folder / "data" / path.name)
    (folder / "train_mini").rename(folder / "train_mini_resized")
    (folder / "train_mini").mkdir()
    assert mini_inaturalist_2021(tmp_path).paths[0].startswith(str(folder / "train_mini_resized"))


def test_bad_lists_of_2018(tmp_path: Path) -> None:
    write_inaturalist_2018(tmp_path)
    (tmp_path / "Inat_dataset_splits" / "Inaturalist_train_set1.txt").write_text("Aves/a.jpg")
    with pytest.raises(InputError, match=r"line 1: 'Aves/a\.jpg'; a path ends in <supercategory>/<species>/<image>"):
        inaturalist_2018(tmp_path)


def test_bad_lists_of_2021(tmp_path: Path) -> None:
    write_mini_inaturalist_2021(tmp_path)
    (tmp_path / "iNaturalist_test.txt").write_text("a/a.jpg,11,20")
    with pytest.raises(InputError, match=r"_test\.txt, line 1: has the supercategory 11; there are 0 to 10"):
        mini_inaturalist_2021(tmp_path)
