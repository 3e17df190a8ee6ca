"""Keeping an index equal to a folder."""

import errno
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.data.batches.image_dataset import NoReadableImageError
from vicinal.retrieval import ImageIndex, Index
from vicinal.workflows import sync as module
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.sync import Changes, compare_files, sync_index


class Embedding:
    """Embeds files by their content, and notes which; those that begin with "broken" cannot be read."""

    def __init__(self) -> None:
        self.embedded: list[str] = []
        self.limit = 99

    def __call__(self, table: Table) -> EmbeddedTable:
        if len(self.embedded) >= self.limit:
            raise KeyboardInterrupt
        contents = [Path(path).read_text() for path in table.paths]
        table = table.take([row for row, text in enumerate(contents) if not text.startswith("broken")])
        if not len(table):
            raise NoReadableImageError("none can be read")
        self.embedded += [Path(path).name for path in table.paths]
        angles = np.array([float(Path(path).read_text()) for path in table.paths])
        return EmbeddedTable(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), table, "")


def files(folder: Path, **contents: str) -> Table:
    """A table of files with these contents; the stem of each is its key."""
    for name, content in contents.items():
        Path(folder, f"{name}.png").write_text(content)
    return folder_table(folder)


def folder_table(folder: Path) -> Table:
    return Table(pd.DataFrame({"path": sorted(str(file) for file in folder.glob("*.png"))}))


def sync(index: Path, table: Table, embed: Embedding, **options: object) -> Changes:
    return sync_index(
        index,
        table,
        embed,
        lambda embedded: Index.build(embedded.vectors, embedded.table),
        lambda index, embedded: index.upsert(embedded.vectors, embedded.table),
        **options,
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    return folder


def held(index: Path) -> list[str]:
    return [Path(path).stem for path in Index.load(index).metadata.frame["path"]]


def test_new_changed_and_vanished_files(photos: Path, tmp_path: Path) -> None:
    index, embed = tmp_path / "index", Embedding()
    sync(index, files(photos, a="0.1", b="0.2", c="0.3"), embed)
    assert held(index) == ["a", "b", "c"]
    embed.embedded.clear()
    (photos / "a.png").unlink()
    changes = sync(index, files(photos, b="0.25", d="0.4"), embed)
    assert sorted(embed.embedded) == ["b.png", "d.png"]
    assert str(changes) == "1 new, 1 changed, 1 vanished, 1 as before"
    assert held(index) == ["c", "d", "b"]
    found = Index.load(index).search(np.array([[np.cos(0.25), np.sin(0.25)]]), 1)
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-6)
    assert found.ids[0, 0] == 4  # an id is never used again


def test_images_of_a_folder_that_cannot_be_listed_are_kept(photos: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    index, embed = tmp_path / "index", Embedding()
    for name in ("kiwi", "owl"):
        (photos / name).mkdir()
        files(photos / name, **{f"{name}1": "0.1", f"{name}2": "0.2"})
    sync(index, Table.from_folder(photos), embed)
    (photos / "kiwi" / "kiwi1.png").unlink()
    scan = os.scandir

    def fail(folder: str) -> object:
        if os.path.basename(folder) == "owl":
            raise OSError(error, os.strerror(error), folder)
        return scan(folder)

    for error in (errno.EACCES, errno.EIO):
        monkeypatch.setattr(os, "scandir", fail)
        table = Table.from_folder(photos)
        line = f"{photos}/owl: {os.strerror(error).lower()}; the images in this folder are left out"
        assert line in capsys.readouterr().err.splitlines()
        monkeypatch.undo()
        sync(index, table, embed, below=photos)
        assert held(index) == ["kiwi2", "owl1", "owl2"]


def test_images_behind_a_link_to_a_folder_that_is_away_are_kept(photos: Path, tmp_path: Path, capsys) -> None:
    index, embed, disk = tmp_path / "index", Embedding(), tmp_path / "disk"
    disk.mkdir()
    (photos / "owl").symlink_to(disk)
    files(disk, owl1="0.1", owl2="0.2")
    (photos / "kiwi").mkdir()
    files(photos / "kiwi", kiwi1="0.1")
    sync(index, Table.from_folder(photos), embed)
    disk.rename(tmp_path / "unmounted")
    sync(index, Table.from_folder(photos), embed, below=photos)
    assert f"{photos}/owl: a broken link; the images in this folder are left out" in capsys.readouterr().err
    assert held(index) == ["kiwi1", "owl1", "owl2"]


def test_two_calls_that_build_one_index_lose_no_image(photos: Path, tmp_path: Path) -> None:
    table, index, embed = files(photos, a="0.1", b="0.2", c="0.3"), tmp_path / "index", Embedding()

    def embed_while_another_builds(rows: Table) -> EmbeddedTable:
        sync(index, table.take([0, 1]), embed, drop=False)
        return embed(rows)

    sync(index, table.take([1, 2]), embed_while_another_builds, drop=False)
    assert sorted(held(index)) == ["a", "b", "c"]


def test_an_index_that_another_process_builds_at_the_same_moment_is_added_to(photos: Path, tmp_path: Path) -> None:
    table, index, embed = files(photos, a="0.1", b="0.2", c="0.3"), tmp_path / "index", Embedding()

    def build_while_another_does(embedded: EmbeddedTable) -> Index:
        built = Index.build(embedded.vectors, embedded.table)
        sync(index, table.take([0, 1]), embed, drop=False)
        return built

    def upsert(opened: ImageIndex, embedded: EmbeddedTable) -> None:
        opened.upsert(embedded.vectors, embedded.table)

    sync_index(index, table.take([1, 2]), embed, build_while_another_does, upsert, drop=False)
    assert sorted(held(index)) == ["a", "b", "c"]
    named = {name for name, _ in Index.load(index).state.current().settings["files"].values()}
    assert {path.name for path in index.iterdir()} - named <= {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"}


def test_nothing_is_embedded_or_written_without_a_change(photos: Path, tmp_path: Path, monkeypatch) -> None:
    index, embed = tmp_path / "index", Embedding()
    table = files(photos, a="0.1", b="0.2")
    sync(index, table, embed)
    written = sorted(path.name for path in index.iterdir())
    os.utime(photos / "a.png", ns=(1, 1))  # another time, but the same content
    sync(index, table, embed)
    assert embed.embedded == ["a.png", "b.png"]
    assert sorted(path.name for path in index.iterdir()) == written
    times = os.stat(photos / "b.png")
    (photos / "b.png").write_text("0.9")  # the same size, so that only time and content tell
    os.utime(photos / "b.png", ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
    assert len(sync(index, table, embed).changed) == 1
    with monkeypatch.context() as patch:
        patch.setattr(module, "file_digest", lambda path: pytest.fail("a file is read without need"))
        assert len(compare_files(Index.load(index).metadata, table.take([1])).same) == 1
        times = os.stat(photos / "b.png")
        (photos / "b.png").write_text("0.123")
        os.utime(photos / "b.png", ns=(times.st_atime_ns, times.st_mtime_ns))
        assert len(compare_files(Index.load(index).metadata, table.take([1])).changed) == 1


def test_an_interrupted_call_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    index, embed = tmp_path / "index", Embedding()
    table = files(photos, **{name: f"0.{number}" for number, name in enumerate("abcdefg")})
    embed.limit = 4
    with pytest.raises(KeyboardInterrupt):
        sync(index, table, embed, block_size=2)
    assert len(held(index)) == 4
    embed.limit = 99
    sync(index, table, embed, block_size=2)
    assert sorted(embed.embedded) == [f"{name}.png" for name in "abcdefg"]
    assert sorted(held(index)) == list("abcdefg")


def test_images_elsewhere_stay_and_nothing_is_dropped_by_adding(photos: Path, tmp_path: Path) -> None:
    index, embed, other = tmp_path / "index", Embedding(), tmp_path / "photos2"
    other.mkdir()
    sync(index, files(photos, a="0.1", b="0.2"), embed)
    sync(index, files(other, x="0.5"), embed, drop=False)
    (photos / "b.png").unlink()
    sync(index, folder_table(photos), embed, below=photos)
    assert held(index) == ["a", "x"]
    sync(index, folder_table(photos), embed)
    assert held(index) == ["a"]


def test_columns_change_without_an_embedding(photos: Path, tmp_path: Path) -> None:
    index, embed = tmp_path / "index", Embedding()
    frame = files(photos, a="0.1", b="0.2").frame
    sync(index, Table(frame.assign(price=[5, 6])), embed)
    sync(index, Table(frame.assign(price=[5, 7])), embed)
    assert len(embed.embedded) == 2
    loaded = Index.load(index).metadata
    assert loaded.frame["price"].tolist() == [5, 7]
    assert not compare_files(loaded, Table(frame)).changed.size


def test_files_that_cannot_be_read_are_left_out(photos: Path, tmp_path: Path) -> None:
    index, embed = tmp_path / "index", Embedding()
    first = sync(index, files(photos, a="0.1", b="broken"), embed)
    assert str(first) == "2 new, 0 changed, 0 vanished, 0 as before, 1 of them unreadable"
    second = sync(index, files(photos, c="broken too"), embed)
    assert str(second) == "2 new, 0 changed, 0 vanished, 1 as before, 2 of them unreadable"
    assert held(index) == ["a"]


def test_objects_of_one_picture(photos: Path, tmp_path: Path) -> None:
    index, embed = tmp_path / "index", Embedding()
    path = files(photos, a="0.1").paths[0]
    boxes = pd.DataFrame({"path": [path] * 2, "x_1": [0, 4], "y_1": [0, 0], "x_2": [4, 8], "y_2": [3, 3]})
    sync(index, Table(boxes), embed)
    assert len(Index.load(index)) == 2
    sync(index, Table(boxes.assign(x_2=[4, 9])), embed)
    assert Index.load(index).metadata.frame["x_2"].tolist() == [4, 9]
    assert len(embed.embedded) == 3
    Path(path).rename(photos / "b.png")
    moved = boxes.assign(path=str(photos / "b.png"), x_1=[4, 0], x_2=[10, 4])
    assert str(sync(index, Table(moved), embed)) == "1 new, 0 changed, 1 vanished, 0 as before, 1 moved"
    assert Index.load(index).metadata.frame[["id", "x_2"]].to_numpy().tolist() == [[0, 4], [3, 10]]


def test_moved_and_renamed_files_are_not_embedded_again(photos: Path, tmp_path: Path) -> None:
    index, embed, other = tmp_path / "index", Embedding(), tmp_path / "other"
    sync(index, Table(files(photos, a="0.1", b="0.2", c="0.3").frame.assign(price=[1, 2, 3])), embed)
    (photos / "a.png").rename(photos / "renamed.png")
    (photos / "b.png").rename(photos / "x.png")
    (photos / "c2.png").write_text("0.3")  # a copy: the file that it equals is still there
    (photos / "b2.png").write_text("0.2")  # of two that equal a file that is gone, one has been moved
    changes = sync(index, Table(folder_table(photos).frame.assign(price=range(5))), embed, below=photos)
    assert str(changes) == "2 new, 0 changed, 0 vanished, 1 as before, 2 moved"
    assert held(index) == ["renamed", "b2", "c", "c2", "x"]
    assert embed.embedded[3:] == ["c2.png", "x.png"]
    assert Index.load(index).metadata.frame["price"].tolist() == [3, 0, 1, 2, 4]
    photos.rename(other)
    embed.embedded.clear()
    sync(index, Table(folder_table(other).frame.assign(price=range(5))), embed, below=other)
    assert not embed.embedded
    assert {Path(path).parent for path in Index.load(index).metadata.frame["path"]} == {other}


def test_a_call_that_is_killed_at_any_moment_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(40)]
    table, index = files(photos, **{name: f"0.{number:02d}" for number, name in enumerate(names)}), tmp_path / "index"
    sync(index, table.take([0]), Embedding())
    for milliseconds in (1, 5, 10, 20, 40):
        process = multiprocessing.get_context("fork").Process(target=sync, args=(index, table, Embedding()),
                                                               kwargs={"block_size": 2})  # fmt: skip
        process.start()
        time.sleep(milliseconds / 1000)
        process.kill()
        process.join()
        assert len(set(held(index))) == len(held(index)) >= 1
    sync(index, table, Embedding(), block_size=2)
    assert sorted(held(index)) == sorted(names)
    angles = np.array([float(Path(path).read_text()) for path in Index.load(index).metadata.frame["path"]])
    np.testing.assert_allclose(Index.load(index).vectors()[:, 0], np.cos(angles), atol=1e-6)
