from __future__ import annotations

import errno
import io
import itertools
import json
import os
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.retrieval.index.engines.half_store import HalfStore
from vicinal.retrieval.index.storage import IndexFiles
from vicinal.utils.errors import InputError

OLD, NEW = pd.DataFrame({"id": [0], "name": ["old"]}), pd.DataFrame({"id": [0, 1], "name": ["new", "new"]})


class Killed(BaseException):
    """Simulates kill -9: nothing that runs after it changes the disk."""


OLD_PLAIN = IndexFiles({"who": "old"}, b"old vectors", OLD)
NEW_PLAIN = IndexFiles({"who": "new"}, b"new vectors", NEW)
OLD_REFINED = IndexFiles({"who": "old"}, b"old vectors", OLD, b"old context")
NEW_REFINED = IndexFiles({"who": "new"}, b"new vectors", NEW, b"new context")
OLD_CODES, NEW_CODES = (
    IndexFiles(
        {"who": who, "dimensions": 2, "images": rows, "deleted": 0},
        f"{who} vectors".encode(),
        frame,
        originals=HalfStore(2, np.full((rows, 2), rows, np.float16)),
    )
    for who, frame, rows in (("old", OLD, 1), ("new", NEW, 2))
)
CODES = ["config.json", "metadata", "originals", "vectors"]
PLAIN, REFINED = ["config.json", "metadata", "vectors"], ["config.json", "context", "metadata", "vectors"]
# the index before and after, and the files that are left
REPLACEMENTS = {
    "plain": (OLD_PLAIN, NEW_PLAIN, PLAIN),
    "refined": (OLD_REFINED, NEW_REFINED, REFINED),
    "plain to refined": (OLD_PLAIN, NEW_REFINED, REFINED),
    "refined to plain": (OLD_REFINED, NEW_PLAIN, PLAIN),
    "codes": (OLD_CODES, NEW_CODES, CODES),
    "codes to plain": (OLD_CODES, NEW_PLAIN, PLAIN),
}


def who(folder: Path) -> str:
    """Load an index, check that all parts belong together, and return which it is."""
    files = IndexFiles.load(folder)
    name, version = files.config["who"], files.config["version"]
    assert files.vectors == f"{name} vectors".encode()
    assert files.context == (f"{name} context".encode() if version == 2 else None)
    if version == 3:
        assert files.originals is not None
        rows = len(files.metadata)
        assert b"".join(files.originals.blocks()) == np.full((rows, 2), rows, "<f2").tobytes()
    assert set(files.metadata["name"]) == {name}
    return name


def data_files(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_replacing_deletes_unused_files(tmp_path) -> None:
    OLD_PLAIN.save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    NEW_PLAIN.save(tmp_path)
    assert who(tmp_path) == "new"
    assert data_files(tmp_path) == ["config.json", "metadata", "notes.txt", "vectors"]


class MortalDisk:
    """Allows a number of changes of the disk; the next one, if it is a write, is done by half, and later ones fail."""

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
    (before, after, files), outcomes = REPLACEMENTS[name], []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        before.save(folder)
        try:
            with pytest.MonkeyPatch.context() as patch:
                MortalDisk(patch, moment)
                after.save(folder)
        except Killed:
            outcomes.append(who(folder))
        else:
            break
        after.save(folder)
        assert who(folder) == "new"
        assert data_files(folder) == files
    assert outcomes == sorted(outcomes, reverse=True)  # the former index until the one moment, the new one from then on
    assert outcomes.count("old") >= 10
    assert outcomes.count("new") >= 2


@pytest.mark.parametrize("moment", range(3))
def test_full_disk_keeps_the_old_index_and_leaves_no_files(tmp_path, monkeypatch, moment: int) -> None:
    OLD_PLAIN.save(tmp_path)
    before = sorted(tmp_path.iterdir())
    left, replace = [moment], os.replace

    def full(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        NEW_PLAIN.save(tmp_path)
    assert who(tmp_path) == "old"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_readers_see_one_index_or_the_other(tmp_path, name: str) -> None:
    before, after, _ = REPLACEMENTS[name]
    before.save(tmp_path)
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
        (after if round_number % 2 else before).save(tmp_path)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert seen <= {"old", "new"}


def test_foreign_folders_are_refused_and_kept(tmp_path) -> None:
    with pytest.raises(InputError, match=r"no config\.json; build one with `vicinal index`"):
        IndexFiles.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        OLD_PLAIN.save(tmp_path / "file")
    with pytest.raises(InputError, match=r"is not an index and holds file; give an index a folder of its own"):
        OLD_PLAIN.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for content in ('{"format": "model"}', "[]", "{", "\udcff"):
        (tmp_path / "config.json").write_text(content, errors="surrogateescape")
        with pytest.raises(InputError, match="is not the config of an index"):
            IndexFiles.load(tmp_path)
        with pytest.raises(InputError, match="is not the config of an index"):
            OLD_PLAIN.save(tmp_path)


def test_damage_is_reported(tmp_path) -> None:
    OLD_PLAIN.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["version"], set(config["files"])) == (1, {"vectors", "metadata"})
    for part in ("vectors", "metadata"):
        path = tmp_path / config["files"][part]
        content = path.read_bytes()
        for damaged in (content[:-1], content[:3] + bytes([content[3] ^ 1]) + content[4:], b""):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=f"{path.name} is damaged"):
                IndexFiles.load(tmp_path)
        path.unlink()
        with pytest.raises(InputError, match=f"{path.name} is missing"):
            IndexFiles.load(tmp_path)
        path.write_bytes(content)
    for change in ({"version": 99}, {"files": None}, {"files": {"vectors": "../x", "metadata": "y"}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match=r"version 99|does not name"):
            IndexFiles.load(tmp_path)


def test_damage_to_a_context_is_reported(tmp_path) -> None:
    OLD_REFINED.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / config["files"]["context"]
    path.write_bytes(b"old contexT")
    with pytest.raises(InputError, match=f"{path.name} is damaged"):
        IndexFiles.load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name} is missing"):
        IndexFiles.load(tmp_path)
    plain = {part: name for part, name in config["files"].items() if part != "context"}
    for change in ({"files": plain}, {"version": 1}, {"files": {**plain, "context": "../x"}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match="does not name"):
            IndexFiles.load(tmp_path)
