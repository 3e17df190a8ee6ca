import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.data.benchmarks.cache import COUNTS, check_complete, check_unchanged, prepare_folder, prepare_table
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


def test_a_damaged_table_is_written_again(tmp_path: Path) -> None:
    for name in ("table.csv", "digests.json"):
        for damage, apply in DAMAGE.items():
            folder = tmp_path / f"{name}, {damage}"
            table = prepare_table(folder, write)
            apply(folder / name)
            assert prepare_table(folder, write).frame.equals(table.frame), folder
            assert sorted(path.name for path in folder.iterdir())[-1] == "table.csv"


def write_below(folder: Path) -> pd.DataFrame:
    (folder / "owl").mkdir()
    (folder / "owl" / "a.png").write_bytes(b"pixels")
    return pd.DataFrame({"path": ["owl/a.png"], "label": [3]})


def test_a_damaged_image_is_named_and_written_again(tmp_path: Path, capsys) -> None:
    (image,) = prepare_table(tmp_path / "set", write_below).paths
    message = r"owl/a.png has changed or is damaged; delete the folder \S+/set to rebuild"
    for damage in ("truncated", "emptied", "random", "deleted"):
        DAMAGE[damage](Path(image))
        refused_call(message, check_unchanged, tmp_path / "set")
        prepare_table(tmp_path / "set", write_below)
        assert Path(image).read_bytes() == b"pixels"
        assert f"{image} has changed or is damaged\n" in capsys.readouterr().err


def test_digests_name_files_of_their_folder_alone(tmp_path: Path) -> None:
    for name in ("/dev/zero", "../outside", "a/../../outside"):
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
    with pytest.raises(
        InputError, match="set: a benchmark needs an empty folder, and this is not; choose another root"
    ):
        prepare_table(tmp_path / "set", write)
    assert (tmp_path / "set" / "mine.txt").read_text() == "keep"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written \(.*\); choose another root, or another folder by"):
        prepare_table(tmp_path / "file" / "set", write)


def test_a_partial_copy_is_refused_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "birds", {"train": (3, 2), "test": (1, 1)})
    frame = pd.DataFrame({"path": ["a", "a", "a"], "label": [1, 1, 2], "split": "train"})
    whole, part = Table(frame, tmp_path), Table(frame[:2], tmp_path)
    message = "the split test of birds has 0 images of 0 classes, but 1 of 1 are"
    refused_call(message, check_complete, "birds", whole, tmp_path)
    message = "the split train of birds has 2 images of 1 classes, but 3 of 2 are pub"
    refused_call(message, check_complete, "birds", part, tmp_path)
    (tmp_path / "a").touch()
    for counts in ([(9, 9), (3, 2)], (None, 2)):  # versions, and numbers that are not published
        monkeypatch.setitem(COUNTS, "birds", {"train": counts})
        assert check_complete("birds", whole, tmp_path) is whole
    monkeypatch.setitem(COUNTS, "birds", {"train": [(9_000, 2), (None, 1_003)]})
    message = "3 images of 2 classes, but 9,000 of 2 or 1,003 classes are published"
    refused_call(message, check_complete, "birds", whole, tmp_path)
