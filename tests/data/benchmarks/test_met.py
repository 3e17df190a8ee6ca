from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.benchmarks.published_more import accept_small_more, replace_text, write_met
from vicinal.data import load_table
from vicinal.data.benchmarks import met, met_mini
from vicinal.utils.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:class '10' is in the splits train and test")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_small_more(monkeypatch)
    write_met(tmp_path)
    return tmp_path / "met"


def test_the_catalog_is_for_training_and_the_gallery(folder: Path) -> None:
    table = load_table("met", root=folder.parent)
    train, test = table.subset("train"), table.subset("test").frame
    assert train.classes == [10, 11, 12, 13, 14, 15]
    assert not (train.frame["is_query"] | train.frame["is_gallery"]).any()
    assert test["path"][test["is_gallery"]].tolist() == train.paths
    for part in ("val", "test"):
        queries = test[test["query_set"] == part]
        assert queries["is_query"].all()
        assert queries["label"].tolist() == [10, 11, 12, 13, -1, -1]
    assert all(Path(path).is_file() for path in table.paths)
    assert met(folder).paths == table.paths
    with pytest.warns(UserWarning, match="class '10' is in the splits train and test"):
        assert len(met_mini(folder).subset("train")) == 15


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("testset", 'MET_id": 10', 'MET_id": "ten"', r"testset\.json, entry 0: MET_id is 'ten'; it must be the num"),
        ("testset", '"path"', '"file"', r"testset\.json, entry 0: has no path; an entry is like"),
        ("MET_database", '"id": 10', '"ID": 10', r"MET_database\.json, entry 0: id is None; it must be the number"),
        ("MET_database", "MET/10/0", "MET/10/9", r"met: 2 of 72 images that its lists name are absent:"),
    ],
)
def test_bad_files(folder: Path, file: str, old: str, new: str, message: str) -> None:
    replace_text(folder / "ground_truth" / f"{file}.json", old, new)
    with pytest.raises(InputError, match=message):
        met(folder)


def test_partial_copies(folder: Path) -> None:
    path = folder / "ground_truth/MET_database.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:-1]))
    with pytest.raises(InputError, match=r"train of met has 29 images of 6 classes, but 30 of 6 are published"):
        met(folder)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"MET_database\.json: is not a list of images"):
        met(folder)
    with pytest.raises(InputError, match=r"no ground_truth/MET_database\.json or MET_database\.json in met/, MET/ or"):
        met(folder / "images")
