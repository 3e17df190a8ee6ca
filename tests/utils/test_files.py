import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vicinal.utils import files
from vicinal.utils.files import replace_folder, temporary_files, write_bytes


@pytest.fixture(params=["one step", "two steps"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to swap folders: that of Linux and that of all other systems."""
    if request.param == "two steps":
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def model(folder: Path, content: str = "old") -> Path:
    folder.mkdir()
    (folder / "weights").write_text(content)
    return folder


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    contents = [bytes([number]) * 300_000 for number in range(16)]
    start = threading.Barrier(16)

    def write(content: bytes) -> None:
        start.wait()
        for _ in range(5):
            write_bytes(tmp_path / "a.bin", content)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, contents))
    assert (tmp_path / "a.bin").read_bytes() in contents
    assert names(tmp_path) == ["a.bin"]


def test_a_failed_write_leaves_the_former_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(tmp_path / "a", b"old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'a'}'"):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_leftovers_are_swept_only_if_ours_and_stale(tmp_path: Path) -> None:
    stale = [".[a].bin.0123abcd.tmp", ".[a].bin.ffffffff.tmp"]
    others = [".[a].bin.tmp", ".[a].bin.0123abcd", ".a.bin.0123abcd.tmp", ".[a].bin.x.0123abcd.tmp", ".[a].bin.xyz.tmp"]
    for name in [*stale, *others, ".[a].bin.01234567.tmp"]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 90,) * 2)
    os.utime(tmp_path / ".[a].bin.01234567.tmp")
    assert {path.name for path in temporary_files(tmp_path / "[a].bin")} == {*stale, ".[a].bin.01234567.tmp"}
    write_bytes(tmp_path / "[a].bin", b"")
    assert set(names(tmp_path)) == {*others, ".[a].bin.01234567.tmp", "[a].bin"}


def test_a_killed_writer_leaves_what_leftovers_names(tmp_path: Path) -> None:
    code = "import os, sys; from vicinal.utils.files import write_bytes\nos.fsync = lambda _: os.kill(os.getpid(), 9)\n"
    killed = subprocess.run([sys.executable, "-c", f"{code}write_bytes({str(tmp_path / 'a')!r}, b'x')"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path) == [path.name for path in temporary_files(tmp_path / "a")]
    assert len(names(tmp_path)) == 1


@pytest.mark.usefixtures("swap")
@pytest.mark.parametrize("content", [None, "old"])
def test_a_folder_is_replaced_as_a_whole(tmp_path: Path, content: str | None) -> None:
    if content:
        model(tmp_path / "m", content)
    with replace_folder(tmp_path / "m") as new:
        (new / "other").touch()
        assert (tmp_path / "m").exists() is (content is not None)
    assert names(tmp_path / "m") == ["other"]
    assert names(tmp_path) == ["m"]


@pytest.mark.usefixtures("swap")
def test_a_block_that_fails_leaves_the_former_folder(tmp_path: Path) -> None:
    model(tmp_path / "m")

    def stop(new: Path) -> None:
        (new / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replace_folder(tmp_path / "m") as new:
        stop(new)
    assert names(tmp_path / "m") == ["weights"]
    assert names(tmp_path) == ["m"]


@pytest.mark.parametrize("failing", [1, 2])
def test_the_former_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch, failing: int) -> None:
    model(tmp_path / "m")
    rename, calls = os.rename, []

    def fails_once(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(PermissionError), replace_folder(tmp_path / "m") as new:
        (new / "other").touch()
    assert (tmp_path / "m" / "weights").read_text() == "old"
    assert names(tmp_path) == ["m"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux swaps in one step")
def test_linux_swaps_in_one_step(tmp_path: Path) -> None:
    assert files._exchange(model(tmp_path / "a", "A"), model(tmp_path / "b", "B"))
    assert [(tmp_path / name / "weights").read_text() for name in "ab"] == ["B", "A"]
    assert not files._exchange(tmp_path / "a", tmp_path / "lost")


@pytest.mark.usefixtures("swap")
def test_of_a_link_its_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    model(tmp_path / "disk" / "m")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "m")
    with replace_folder(tmp_path / "link") as new:
        (new / "other").touch()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "disk" / "m") == ["other"]
    assert (names(tmp_path), names(tmp_path / "disk")) == (["disk", "link"], ["m"])


@pytest.mark.usefixtures("swap")
def test_the_current_folder_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model(tmp_path / "m"))
    with replace_folder(".") as new:
        (new / "other").touch()
    assert (names(tmp_path / "m"), names(tmp_path)) == (["other"], ["m"])
    assert Path.cwd() == tmp_path / "m"


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("mine")
    with pytest.raises(NotADirectoryError), replace_folder(tmp_path / "m"):
        raise AssertionError("unreachable")
    assert (tmp_path / "m").read_text() == "mine"
    assert names(tmp_path) == ["m"]
