"""The first day with one's own photos and tables: what `vicinal data` says to every mistake, and what it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vicinal.cli.main import main

Make = Callable[[Path], object]


def files(*names: str) -> Make:
    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()

    return make


def text(name: str, content: str) -> Make:
    return lambda folder: (folder / name).write_text(content)


def nothing(folder: Path) -> None:
    """Only the photos are there."""


CASES: list[tuple[str, str, Make, list[str], str]] = [
    ("source", "misspelled folder", nothing, ["photo"], "photo: no such folder, file or benchmark; the benchmarks are"),
    ("source", "misspelled table", nothing, ["photos.cvs"], "photos.cvs: no such file"),
    ("source", "empty", nothing, [""], "the source is empty; give a folder of images, a .csv or .parquet table, or a"),
    ("source", "one image", nothing, ["photos/class0/0.png"], "0.png: neither a folder nor a .csv or .parquet table"),
    ("source", "text file", text("list.txt", "a.png cat"), ["list.txt"], "neither a folder nor a .csv or .parquet"),
    ("source", "folder named as table", files("t.csv/notes.txt"), ["t.csv"], "t.csv: no image in this folder or below"),
    ("folder", "no image", files("docs/a.txt"), ["docs"], "docs: no image in this folder or below (known are .avif,"),
    ("folder", "HEIC only", files("x/cat/1.HEIC"), ["x"], "there are 1 .heic; HEIC needs the package pillow-heif"),
    ("folder", "extra split", files("x/train/a/1.png", "x/test/a/1.png", "x/b/1.png"), ["x"], "x: holds b beside the"),
    (
        "table",
        "semicolons",
        text("t.csv", "path;label\na.png;cat\n"),
        ["t.csv"],
        "t.csv: the columns are separated by semicolons; separate them by commas",
    ),
    ("table", "no header", text("t.csv", "a.png,cat\nb.png,dog\n"), ["t.csv"], "t.csv: no column 'path'; the columns"),
    ("table", "empty", text("t.csv", ""), ["t.csv"], "t.csv: empty file; the first line names the columns, such as"),
    (
        "table",
        "missing label",
        text("t.csv", "path,label\na.png,\n"),
        ["t.csv"],
        "t.csv: line 2 has no label; every ro",
    ),
    (
        "table",
        "too few fields",
        text("t.csv", "path,label\na.png\n"),
        ["t.csv"],
        "t.csv, line 2: 1 fields where the he",
    ),
    (
        "table",
        "unknown split",
        text("t.csv", "path,label,split\na,b,dev\n"),
        ["t.csv"],
        "line 2: split is 'dev'; it can",
    ),
    (
        "table",
        "other column",
        text("t.csv", "file,label\na,b\n"),
        ["t.csv", "--path_column", "f"],
        "no column 'f'; the co",
    ),
    (
        "flags",
        "folder with a root",
        nothing,
        ["photos", "--root", "photos"],
        "photos: a folder of images takes no root",
    ),
    ("flags", "missing root", nothing, ["digits", "--root", "nowhere"], "nowhere: no such file or folder"),
    ("flags", "empty root", nothing, ["digits", "--root", ""], "a path is empty; name a file or folder"),
    (
        "flags",
        "out of no known kind",
        nothing,
        ["photos", "--out", "t.xlsx"],
        "t.xlsx: a table is written to a file en",
    ),
    (
        "flags",
        "unknown class",
        nothing,
        ["photos", "--classes", "{train: [cat]}"],
        "train: no class 'cat'; there are cl",
    ),
    ("flags", "fractions above 1", nothing, ["photos", "--fractions", "{train: 1, test: 1}"], "their sum at most 1"),
]


@pytest.fixture
def work(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "case", "make", "words", "expected"), CASES, ids=[f"{each[0]}: {each[1]}" for each in CASES]
)
def test_first_mistakes_have_one_line_that_answers(
    kind: str, case: str, make: Make, words: list[str], expected: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(work)
    assert main(["data", *words]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1, captured.err
    assert captured.err.startswith("vicinal data: error: ")
    assert expected in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("source", [".", "photos/.."])
def test_the_working_folder_can_be_the_source(source: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        (work / "photos" / f"link{number}").symlink_to(work)
    assert main(["data", source]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[:3] == ["all", "48", "8"]  # the last line is the fingerprint
    assert captured.err == ""


def test_nothing_is_said_twice(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(work / "photos", work / "split" / "train")
    shutil.copytree(work / "photos", work / "split" / "test")
    (work / "split" / "test" / "class0" / "a.heic").touch()
    assert main(["data", "split", "--out", "t.csv"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) == 3
    assert [line[:50] for line in lines] == [
        "split: left out files of formats that are not read",
        "vicinal data: warning: class 'class0' is in the sp",
        "wrote t.csv",
    ]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no such permissions")
def test_controlling_characters_in_names_do_not_reach_the_terminal(work: Path, capsys) -> None:
    (work / "photos" / "class0" / "0.png").rename(work / "photos" / "class0" / "\x1b[2J\u202e.png")
    (work / "photos" / "class0" / "\x1b[2J\u202e.png").write_bytes(b"no image")
    assert main(["embed", "photos", "--model", "none/\x1b[2J", "--out", "v.npy"]) == 2
    assert main(["data", "\x1b[2J\u202e"]) == 2
    message = capsys.readouterr().err
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "\\x1b[2J\\u202e: no such" in message
