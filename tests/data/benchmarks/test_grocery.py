from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.data.benchmarks.published_more import accept_small_more, write_grocery
from vicinal.data import load_table
from vicinal.data.benchmarks import grocery
from vicinal.utils.errors import InputError

ARCHIVE = Path(__file__).parents[4] / "shared" / "data" / "grocery" / "grocery.zip"
ARCHIVE = Path(os.environ.get("VICINAL_GROCERY") or ARCHIVE)


def test_the_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)
    write_grocery(tmp_path)
    table = load_table("grocery", root=tmp_path)
    assert {split: len(table.subset(split).classes) for split in table.splits} == {"train": 6, "val": 2, "test": 4}
    assert set(table.subset("train").frame["coarse"]) == {"Train-0", "Train-1"}
    assert sorted(set(table.frame["group"])) == ["test", "train"]
    assert table.paths[0] == str(tmp_path / "grocery/images/Train-0/Product-0/train_000.jpg")
    (tmp_path / "grocery.zip").unlink()
    assert grocery(tmp_path).paths == table.paths
    assert grocery(tmp_path / "grocery/images").paths == table.paths
    written = tmp_path / "grocery" / "images" / "table.csv"
    written.write_text("".join(written.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=r"table.csv has changed or is damaged; delete the folder .*/images, which"):
        grocery(tmp_path)


@pytest.mark.parametrize("name", ["../evil.jpg", "a/../../evil/c.jpg", "/etc/a/evil.jpg", "a/b/c/d.jpg", "other.csv"])
def test_archives_of_other_layouts_are_refused(tmp_path: Path, name: str) -> None:
    write_grocery(tmp_path)
    with zipfile.ZipFile(tmp_path / "grocery.zip", "a") as archive:
        archive.writestr(name, "")
    with pytest.raises(InputError, match=r"grocery\.zip: holds '.*'; its images must be <coarse>/<product>/"):
        grocery(tmp_path)
    assert not (tmp_path / "grocery/images").exists()
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"no {ARCHIVE}; set VICINAL_GROCERY to its place")
def test_the_published_archive(tmp_path: Path) -> None:
    (tmp_path / "grocery.zip").symlink_to(ARCHIVE)
    table = grocery(tmp_path)
    assert len(set(table.frame["coarse"])) == 33
    assert not set(table.subset("train").frame["coarse"]) & set(table.subset("test").frame["coarse"])
