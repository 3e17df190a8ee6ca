import errno
import os
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.data.images.decoding import read_image
from vicinal.utils.errors import InputError


def fill(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def names(table: Table, folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder)) for path in table.paths]


def test_class_folders_in_sorted_order(tmp_path: Path) -> None:
    fill(
        tmp_path, "dog/2.png", "dog/10.JPG", "cat/1.jpeg", "cat/.hidden.png", "cat/notes.txt", ".git/x.png", "readme.md"
    )
    table = Table.from_folder(tmp_path)
    assert names(table, tmp_path) == ["cat/1.jpeg", "dog/10.JPG", "dog/2.png"]
    assert table.frame["label"].tolist() == ["cat", "dog", "dog"]
    assert list(table.frame.columns) == ["path", "label"]


def test_deeper_folders_give_coarse_labels_outward(tmp_path: Path) -> None:
    fill(tmp_path, "b/x/1/p.png", "a/x/1/p.png", "a/y/1/p.png")
    frame = Table.from_folder(tmp_path).frame
    assert frame["label"].tolist() == ["a/x/1", "a/y/1", "b/x/1"]
    assert frame["coarse"].tolist() == ["a/x", "a/y", "b/x"]
    assert frame["coarse_2"].tolist() == ["a", "a", "b"]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    table = Table.from_folder(fill(tmp_path, "b.png", "a.webp"))
    assert names(table, tmp_path) == ["a.webp", "b.png"]
    assert list(table.frame.columns) == ["path"]


def test_split_folders_give_the_split(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.png", "test/owl/1.png", "val/big/1.png", "notes/readme.txt")
    table = Table.from_folder(tmp_path)
    assert table.frame["split"].tolist() == ["test", "train", "val"]
    assert table.frame["label"].tolist() == ["owl", "cat", "big"]


def test_split_folders_by_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for known in ("Train/Test", "TRAINING/valid", "train/Validation/testing", "train/val/valid"):
        folder = tmp_path / known.replace("/", "-")
        parts = known.split("/")
        table = Table.from_folder(fill(folder, *(f"{part}/kiwi/{part}.png" for part in parts)))
        assert table.classes == ["kiwi"]
        splits = {Path(path).stem: split for path, split in zip(table.paths, table.frame["split"], strict=True)}
        expected = {part: {"t": "train", "v": "val"}[part[0].lower()] for part in parts}
        assert splits == expected | {part: "test" for part in parts if part.lower().startswith("test")}
    assert f"{folder}: read the folders of splits valid as val" in capsys.readouterr().err.splitlines()


def test_top_folders_with_the_same_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.from_folder(fill(tmp_path, *(f"{top}/{name}/1.png" for top in "ab" for name in ("kiwi", "owl"))))
    assert table.classes == ["a/kiwi", "a/owl", "b/kiwi", "b/owl"]
    line = capsys.readouterr().err
    assert line.startswith(f"warning: {tmp_path}: a, b hold the same folders, so a/owl and b/owl are two classes; if")
    for files in (["a/kiwi/1.png", "b/kiwi/1.png"], ["a/1.png", "b/1.png"], ["1.png", "2.png"]):
        Table.from_folder(fill(tmp_path / "-".join(files).replace("/", "_"), *files))
        assert capsys.readouterr().err == ""


def test_a_link_to_itself_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.png")
    for name in ("cat/loop.png", "cat/loop", "self"):
        (tmp_path / name).symlink_to(tmp_path / name)
    assert names(Table.from_folder(tmp_path), tmp_path) == ["cat/1.png", "cat/loop.png"]


def test_files_of_other_image_formats_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, "cat/1.png", "cat/2.HEIC", "cat/3.heic", "cat/4.mov", "cat/notes.txt")
    assert len(Table.from_folder(tmp_path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"{tmp_path}: left out files of unsupported formats: 2 .heic, 1 .mov; HEIC needs the package "
        "pillow-heif: pip install 'vicinal[heif]', or convert to JPEG"
    )


@pytest.mark.parametrize(
    ("empty", "named"),
    [
        (["dog"], "dog"),
        (["dog/old/older", "cat/blurred", ".hidden"], "cat/blurred, dog"),
        (["b/x", "d", "a", "c"], "4 folders, such as a"),
        ([], None),
    ],
)
def test_folders_without_images_are_named(tmp_path: Path, empty: list[str], named: str | None, capsys) -> None:
    fill(tmp_path, "cat/1.png", "owl/2.png")
    for folder in empty:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "cat" / "loop").symlink_to(tmp_path)
    assert len(Table.from_folder(tmp_path)) == 2
    assert capsys.readouterr().err == (f"{tmp_path}: no image in {named}\n" if named else "")


def test_linked_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    fill(tmp_path, "store/1.png")
    fill(tmp_path, "data/cat/2.png")
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "cat" / "loop").symlink_to(tmp_path / "data")
    assert Table.from_folder(tmp_path / "data").frame["label"].tolist() == ["cat", "dog"]


def test_folders_that_make_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: holds images beside the split folders test, train"):
        Table.from_folder(fill(tmp_path, "train/a/1.png", "test/a/1.png", "1.png"))


def test_images_at_different_depths_have_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.from_folder(fill(tmp_path, "2.png", "a/1.png", "a/b/c/3.png"))
    assert names(table, tmp_path) == ["2.png", "a/1.png", "a/b/c/3.png"]
    assert list(table.frame.columns) == ["path"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}: 2.png and a/1.png lie at different depths, so the images have no labels; for")
    table = Table.from_folder(fill(tmp_path / "split", "train/1.png", "train/a/1.png", "test/2.png"))
    assert list(table.frame.columns) == ["path", "split"]


def test_no_such_folder(tmp_path: Path) -> None:
    refused_call("lost: no such folder", Table.from_folder, tmp_path / "lost")
    refused_call(r"a\.png: is a file, not a folder", Table.from_folder, fill(tmp_path, "a.png") / "a.png")


@pytest.mark.parametrize("name", [b"cat/b\xff.png", b"caf\xe9/b.png"])
def test_file_names_that_are_no_text_are_left_out_and_named(tmp_path: Path, name: bytes, capsys) -> None:
    file = tmp_path / os.fsdecode(name)
    try:
        fill(tmp_path, str(file))
    except OSError:
        pytest.skip("this file system knows no such names")
    reason = r"the file name '.*\\udc(ff|e9).*' is not UTF-8; rename the file"
    refused_call(reason, Table.from_folder, tmp_path)
    capsys.readouterr()
    assert names(Table.from_folder(fill(tmp_path, "owl/1.png", "cat/2.png")), tmp_path) == ["cat/2.png", "owl/1.png"]
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"left out 1 image by the name: {tmp_path}: {reason}", line)


def test_what_the_system_refuses_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "cat/1.png")

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Image, "open", refuse)
    refused_call(r"cat/1\.png: permission denied$", read_image, tmp_path / "cat" / "1.png")
    monkeypatch.setattr(os, "scandir", refuse)
    refused_call(rf"^{tmp_path}: permission denied$", Table.from_folder, tmp_path)
