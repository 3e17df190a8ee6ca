"""Several processes and threads that write one index, or read it meanwhile: nothing is lost, nothing is torn."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
import pytest
import torch

from vicinal.cli.main import main
from vicinal.data import Table
from vicinal.retrieval import Index, search_images
from vicinal.retrieval.index import database
from vicinal.retrieval.index.database import Database
from vicinal.retrieval.index.index_state import IndexState, delete_unused
from vicinal.utils.errors import InputError

FORK = multiprocessing.get_context("fork")
DIM, SIZE = 8, 40


def vectors(seed: int, rows: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)


def table(name: str, rows: int = SIZE) -> Table:
    return Table(pd.DataFrame({"path": [f"/{name}/{number}.png" for number in range(rows)]}))


def start(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    def run() -> None:
        faiss.omp_set_num_threads(1)  # the threads of the parent are not in a forked process
        torch.set_num_threads(1)
        target(*arguments)

    process = FORK.Process(target=run)
    process.start()
    return process


def finish(*processes: multiprocessing.process.BaseProcess) -> None:
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * len(codes)


def add_by_python(folder: Path, number: int, timeout: float = 100.0) -> None:
    with Index.open(folder, timeout) as index:
        index.add(vectors(number), table(str(number)))


def check_all_there(folder: Path, numbers: range) -> None:
    index = Index.load(folder)
    assert index.metadata.ids.tolist() == list(range(SIZE * (len(numbers) + 1)))
    for number in numbers:  # each image under the path that it was added with
        ids = index.search(vectors(number), 1).ids.ravel()
        assert index.lookup(ids)["path"].tolist() == table(str(number)).paths
    assert len(list(folder.glob("vectors-*"))) == 1


def test_readers_beside_writers(tmp_path) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path / "index")
    ready = FORK.Event()

    def write() -> None:
        for number in range(10):
            add_by_python(tmp_path / "index", number)
        ready.set()

    def read() -> None:
        sizes = [len(Index.load(tmp_path / "index"))]
        while not ready.is_set():
            sizes.append(len(Index.load(tmp_path / "index")))
        assert sizes == sorted(sizes)
        assert set(sizes) <= set(range(SIZE, 12 * SIZE, SIZE))

    finish(start(write), start(read), start(read))
    check_all_there(tmp_path / "index", range(10))


def jump(folder: Path, days: int) -> None:
    """Let all vector files look as if the clock had jumped since they were written."""
    for path in [*folder.glob("vectors-*"), *folder.glob("originals-*")]:
        with suppress(FileNotFoundError):  # another process has just deleted it
            then = path.stat().st_mtime - days * 86_400
            os.utime(path, (then, then))


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("kind", ["exact", "sq8"])
def test_an_index_is_saved_while_the_clock_jumps(tmp_path, monkeypatch, kind: str, days: int) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    other, write, written = Index.load(tmp_path), Database.write_to, []

    def write_late(*arguments):
        if not written:
            jump(tmp_path, days)
            delete_unused(other.state.database, tmp_path)
        written.append(write(*arguments))
        return written[-1]

    monkeypatch.setattr(Database, "write_to", write_late)
    Index.build(vectors(5), table("new"), kind, folder=tmp_path, overwrite=True)
    assert written == [False, True]
    index = Index.load(tmp_path)
    assert index.lookup(index.search(vectors(5), 1).ids.ravel())["path"].tolist() == table("new").paths
    assert len(other) == SIZE  # it sees the new one
    assert len(list(tmp_path.glob("vectors-*"))) == 1


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_costs_no_file_of_another_process(tmp_path, monkeypatch, days: int) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    add_by_python(tmp_path, 0)
    one, other, write = Index.load(tmp_path), Index.load(tmp_path), IndexState.write_files

    def write_slowly(state, *arguments):
        names = write(state, *arguments)
        jump(tmp_path, days)
        delete_unused(other.state.database, tmp_path)  # as after another fold; it takes them for a killed one's
        return names

    monkeypatch.setattr(IndexState, "write_files", write_slowly)
    one.state.fold()
    monkeypatch.undo()
    assert len(Index.load(tmp_path)) == 2 * SIZE
    add_by_python(tmp_path, 1)
    check_all_there(tmp_path, range(2))


def test_a_fold_that_comes_too_late_leaves_no_file(tmp_path, monkeypatch) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    add_by_python(tmp_path, 0)
    one, other, write = Index.load(tmp_path), Index.load(tmp_path), IndexState.write_files

    def write_slowly(state, *arguments):
        monkeypatch.setattr(IndexState, "write_files", write)
        names = write(state, *arguments)
        other.state.fold()
        return names

    monkeypatch.setattr(IndexState, "write_files", write_slowly)
    one.state.fold()
    check_all_there(tmp_path, range(1))


def test_files_of_a_killed_process_are_deleted_though_they_are_of_the_future(tmp_path) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    left = tmp_path / f"vectors-{'0' * 16}.faiss"
    left.touch()
    os.utime(left, 2 * (time.time() + 10 * 86_400,))  # the clock has been set back since
    add_by_python(tmp_path, 0)
    Index.load(tmp_path).state.fold()
    assert not left.exists()
    check_all_there(tmp_path, range(1))


def test_waiting_is_said_once(tmp_path, capsys, monkeypatch) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    with monkeypatch.context() as patch, Index.open(tmp_path):
        patch.setattr(database, "FIRST_WAIT", 0.1)
        assert main(["index", "delete", str(tmp_path), "0", "--timeout", "1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert f"waiting up to 1 s to write the index {tmp_path}: another process is doing so" in lines[0]
    assert "try again later, or wait longer with a larger timeout" in lines[1]
    assert len(Index.load(tmp_path)) == SIZE
    assert main(["index", "delete", str(tmp_path), "0"]) == 0
    assert "waiting" not in capsys.readouterr().err


def test_a_failing_block_saves_nothing(tmp_path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="is not an index"), Index.open(folder):
            pass
    assert not list(tmp_path.iterdir())
    Index.build(vectors(99), table("first")).save(tmp_path)
    with pytest.raises(InputError, match="no id 4711"), Index.open(tmp_path) as index:
        index.delete([0]), index.delete([4711])
    check_all_there(tmp_path, range(0))
    add_by_python(tmp_path, 0, timeout=0)  # the lock is free again


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_threads_search_while_one_changes(kind: str) -> None:
    """In a process of its own, since it was a segmentation fault."""

    def run() -> None:
        index = Index.build(vectors(99, 500), table("first", 500), kind)
        done, failures = threading.Event(), []

        def search() -> None:
            while not done.is_set():
                try:
                    found = search_images(index, vectors(5), table("query"), k=10)
                    assert all(len(each.matches) == 10 for each in found)
                    assert len(index.vectors()) >= 500
                except BaseException as error:
                    failures.append(error)

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(20):
            ids = index.add(vectors(number), table(str(number)))
            index.delete(ids[::2])
        done.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(index) == 500 + 20 * SIZE // 2

    finish(start(run))


def test_each_sees_the_changes_of_the_others(tmp_path) -> None:
    Index.build(vectors(99), table("first")).save(tmp_path)
    first, second = Index.load(tmp_path), Index.load(tmp_path)
    first.add(vectors(0), table("0"))
    second.delete([3])
    assert second.add(vectors(1), table("1"))[0] == 2 * SIZE
    for each in (first, second):
        assert each.metadata.ids.tolist() == [*range(3), *range(4, 3 * SIZE)]
        assert each.lookup(each.search(vectors(1), 1).ids.ravel())["path"].tolist() == table("1").paths
    Index.build(vectors(99), table("first")).save(tmp_path)  # a new index replaces any other
    assert (len(first), len(second)) == (SIZE, SIZE)
