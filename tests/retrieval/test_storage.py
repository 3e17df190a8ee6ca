from __future__ import annotations

import errno
import io
import itertools
import json
import os
import threading
from pathlib import Path

import pandas as pd
import pytest

from vicinal.errors import InputError
from vicinal.retrieval.storage import load_files, save_files

OLD, NEW = pd.DataFrame({"id": [0], "name": ["old"]}), pd.DataFrame({"id": [0, 1], "name": ["new", "new"]})


class Killed(BaseException):
    """Stands for kill -9: nothing that runs after it can change the disk."""


def save_old(folder: Path) -> None:
    save_files(folder, {"who": "old"}, b"old vectors", OLD)


def save_new(folder: Path) -> None:
    save_files(folder, {"who": "new"}, b"new vectors", NEW)


def save_old_refined(folder: Path) -> None:
    save_files(folder, {"who": "old"}, b"old vectors", OLD, b"old context")


def save_new_refined(folder: Path) -> None:
    save_files(folder, {"who": "new"}, b"new vectors", NEW, b"new context")


PLAIN, REFINED = ["config.json", "items", "vectors"], ["config.json", "context", "items", "vectors"]
# what is replaced by what, and which files that leaves
REPLACEMENTS = {
    "plain": (save_old, save_new, PLAIN),
    "refined": (save_old_refined, save_new_refined, REFINED),
    "plain to refined": (save_old, save_new_refined, REFINED),
    "refined to plain": (save_old_refined, save_new, PLAIN),
}


def who(folder: Path) -> str:
    """Load, insisting that all parts are of one and the same index."""
    config, vectors, items, context = load_files(folder)
    assert vectors == f"{config['who']} vectors".encode()
    assert context == (f"{config['who']} context".encode() if config["version"] == 2 else None)
    assert set(items["name"]) == {config["who"]}
    return config["who"]


def data_files(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_replaced_whole_and_swept(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    save_old(tmp_path)
    save_new(tmp_path)
    assert who(tmp_path) == "new"
    assert data_files(tmp_path) == ["config.json", "items", "notes.txt", "vectors"]


class MortalDisk:
    """Lets so many changes of the disk happen, only half of the next if it is a write, and none after it."""

    def __init__(self, patch: pytest.MonkeyPatch, changes: int) -> None:
        self._left = changes
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Path, "mkdir")):
            patch.setattr(owner, name, self._mortal(getattr(owner, name)))
        opening, mortal_opening = Path.open, self._mortal(lambda path: self._file(path))
        patch.setattr(
            Path, "open", lambda path, mode="r", *a, **k: (mortal_opening if "x" in mode else opening)(path, *a, **k)
        )

    def _change(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def _mortal(self, function):
        def replacement(*args, **kwargs):
            self._change()
            return function(*args, **kwargs)

        return replacement

    def _file(disk, path: Path) -> io.FileIO:  # noqa: N805
        class MortalFile(io.FileIO):
            def write(self, data: bytes) -> int:
                try:
                    disk._change()
                except Killed:
                    super().write(data[: len(data) // 2])
                    raise
                return super().write(data)

        return MortalFile(path, "x")


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_killed_at_any_moment(tmp_path, name: str) -> None:
    (save_former, save_later, files), outcomes = REPLACEMENTS[name], []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        save_former(folder)
        try:
            with pytest.MonkeyPatch.context() as patch:
                MortalDisk(patch, moment)
                save_later(folder)
        except Killed:
            outcomes.append(who(folder))
        else:
            break
        save_later(folder)
        assert who(folder) == "new"
        assert data_files(folder) == files
    assert outcomes == sorted(outcomes, reverse=True)  # the former index until the one moment, the new one from then on
    assert outcomes.count("old") >= 10
    assert outcomes.count("new") >= 2


@pytest.mark.parametrize("moment", range(3))
def test_disk_full_keeps_the_former_index_and_leaves_nothing(tmp_path, monkeypatch, moment: int) -> None:
    save_old(tmp_path)
    before = sorted(tmp_path.iterdir())
    left, replace = [moment], os.replace

    def full(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_new(tmp_path)
    assert who(tmp_path) == "old"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_readers_see_one_index_or_the_other(tmp_path, name: str) -> None:
    save_former, save_later, _ = REPLACEMENTS[name]
    save_former(tmp_path)
    stop, seen, failures = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(who(tmp_path))
            except BaseException as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for round_number in range(40):
        (save_later if round_number % 2 else save_former)(tmp_path)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert seen <= {"old", "new"}


def test_foreign_folders_are_refused_and_kept(tmp_path) -> None:
    with pytest.raises(InputError, match=r"no config\.json; build one with `vicinal index`"):
        load_files(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        save_old(tmp_path / "file")
    for content in ('{"format": "model"}', "[]", "{", "\udcff"):
        (tmp_path / "config.json").write_text(content, errors="surrogateescape")
        with pytest.raises(InputError, match="is not the config of an index"):
            load_files(tmp_path)
        with pytest.raises(InputError, match="is not the config of an index"):
            save_old(tmp_path)


def test_damage_is_told(tmp_path) -> None:
    save_old(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["version"], set(config["files"])) == (1, {"vectors", "items"})  # as before there were refined ones
    for part in ("vectors", "items"):
        path = tmp_path / config["files"][part]
        content = path.read_bytes()
        for damaged in (content[:-1], content[:3] + bytes([content[3] ^ 1]) + content[4:], b""):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=f"{path.name} is damaged"):
                load_files(tmp_path)
        path.unlink()
        with pytest.raises(InputError, match=f"{path.name} is missing"):
            load_files(tmp_path)
        path.write_bytes(content)
    for change in ({"version": 99}, {"files": None}, {"files": {"vectors": "../x", "items": "y"}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match=r"version 99|does not name"):
            load_files(tmp_path)


def test_damage_to_a_context_is_told(tmp_path) -> None:
    save_old_refined(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / config["files"]["context"]
    path.write_bytes(b"old contexT")
    with pytest.raises(InputError, match=f"{path.name} is damaged"):
        load_files(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name} is missing"):
        load_files(tmp_path)
    plain = {part: name for part, name in config["files"].items() if part != "context"}
    for change in ({"files": plain}, {"version": 1}, {"files": {**plain, "context": "../x"}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match="does not name"):
            load_files(tmp_path)
