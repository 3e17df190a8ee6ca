from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.data.benchmarks.cache import check_unchanged, prepare_folder, prepare_table
from vicinal.utils.errors import InputError
from vicinal.utils.files import cache_folder, changed_file


def write(folder: Path) -> pd.DataFrame:
    (folder / "a.png").touch()
    return pd.DataFrame({"path": ["a.png"], "label": [3]})


def test_where_benchmarks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VICINAL_DATA", "/data")
    assert cache_folder("/other") == Path("/other")
    assert cache_folder() == Path("/data")
    monkeypatch.delenv("VICINAL_DATA")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/vicinal")


def test_images_are_written_once(tmp_path: Path) -> None:
    table = prepare_table(tmp_path / "deep" / "set", write)
    assert table.paths == [str(tmp_path / "deep" / "set" / "a.png")]
    again = prepare_table(tmp_path / "deep" / "set", lambda folder: pytest.fail("written again"))
    assert again.frame.equals(table.frame)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "emptied": lambda path: path.write_bytes(b""),
    "replaced": lambda path: path.write_text("path,label\na.png,4\n"),
    "random": lambda path: path.write_bytes(np.random.default_rng(0).bytes(1000)),
    "deleted": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["table.csv", "digests.json"])
def test_a_damaged_table_is_written_again(tmp_path: Path, damage: str, name: str) -> None:
    table = prepare_table(tmp_path / "set", write)
    DAMAGE[damage](tmp_path / "set" / name)
    assert prepare_table(tmp_path / "set", write).frame.equals(table.frame)
    assert sorted(path.name for path in (tmp_path / "set").iterdir())[-1] == "table.csv"


def write_below(folder: Path) -> pd.DataFrame:
    (folder / "owl").mkdir()
    (folder / "owl" / "a.png").write_bytes(b"pixels")
    return pd.DataFrame({"path": ["owl/a.png"], "label": [3]})


@pytest.mark.parametrize("damage", ["truncated", "emptied", "random", "deleted"])
def test_a_damaged_image_is_named_and_written_again(tmp_path: Path, damage: str, capsys) -> None:
    (image,) = prepare_table(tmp_path / "set", write_below).paths
    DAMAGE[damage](Path(image))
    with pytest.raises(InputError, match=r"owl/a.png has changed or is damaged; delete the folder \S+/set, which is"):
        check_unchanged(tmp_path / "set")
    prepare_table(tmp_path / "set", write_below)
    assert Path(image).read_bytes() == b"pixels"
    assert f"{image} has changed or is damaged\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/dev/zero", "../outside", "a/../../outside"])
def test_digests_name_files_of_their_folder_alone(tmp_path: Path, name: str) -> None:
    prepare_table(tmp_path / "set", write)
    (tmp_path / "outside").write_bytes(b"")
    (tmp_path / "set" / "digests.json").write_text(json.dumps({name: hashlib.sha256(b"").hexdigest()}))
    assert changed_file(tmp_path / "set") == tmp_path / "set" / "digests.json"
    assert len(prepare_table(tmp_path / "set", write)) == 1


def test_an_interrupted_preparation_is_not_taken_for_whole(tmp_path: Path) -> None:
    def killed(folder: Path) -> pd.DataFrame:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_table(tmp_path / "set", killed)
    assert not (tmp_path / "set").exists()
    assert len(prepare_table(tmp_path / "set", write)) == 1


def test_many_at_once_prepare_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.05)  # long enough for the others to arrive
        (folder / "mark").touch()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: prepare_folder(tmp_path / "set", "mark", fill), range(8)))
    assert len(calls) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="set: would be filled with a benchmark but is not empty; choose another root"):
        prepare_table(tmp_path / "set", write)
    assert (tmp_path / "set" / "mine.txt").read_text() == "keep"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written \(.*\); choose another root, or another folder by"):
        prepare_table(tmp_path / "file" / "set", write)
