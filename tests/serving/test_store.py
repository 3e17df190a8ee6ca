"""The store: what is acknowledged survives, and any number of processes read and write an index."""

import errno
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_call
from tests.serving.service import random_vectors, save_index, wait_for
from vicinal import Index
from vicinal.data.column_kinds import ColumnKind
from vicinal.retrieval.index.database import Database
from vicinal.serving import store as store_module
from vicinal.serving.columns import ColumnKinds
from vicinal.serving.folder_store import FolderStore
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.utils.errors import InputError


def add(store: FolderStore, seed: int, key: str | None = None, **columns: Any) -> int:
    (number,) = store.add(random_vectors(1, seed), columns, None, key).result(120)
    return number


def test_changes_are_durable_when_they_are_answered_and_keys_are_remembered(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    with FolderStore(folder) as store:
        assert [add(store, seed, price=seed) for seed in (100, 101)] == [30, 31]
        assert sorted(store.delete([3, 30, 99, 3]).result(120)) == [3, 30]
        assert store.delete([3]).result(120) == []
        index = Index.load(folder)  # of another process
        assert index.metadata.ids.tolist() == [0, 1, 2, *range(4, 30), 31]
        assert index.lookup([31])["price"].tolist() == [101]
        vector = random_vectors(1, 101)
        np.testing.assert_allclose(index.vectors()[-1:], vector / np.linalg.norm(vector), atol=1e-6)
        assert [add(store, 1, "a"), add(store, 1, "a"), add(store, 2, "b")] == [32, 32, 33]
    with FolderStore(folder) as again:
        assert (again.added_with("b"), again.added_with("c")) == ([33], None)
        assert [add(again, 9, "b"), add(again, 5)] == [33, 34]


def test_conditions_see_paths_as_they_are_shown(tmp_path: Path) -> None:
    with FolderStore(save_index(tmp_path)) as store:
        (number,) = store.add(random_vectors(1, 1), {}, "/secret/added/x.jpg", None).result(120)
        assert store.index.where("path == '3.png' or path == 'x.jpg'").tolist() == [3, number]
        assert store.index.where("'photos' in path or 'secret' in path").tolist() == []


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_index(tmp_path)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with FolderStore(folder) as store:
        add(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Database, "append_changes", full)
            with pytest.raises(Problem) as problem:
                add(store, 2, size=3)
            assert problem.value.status == 503
        assert len(store) == 31
        assert add(store, 3, size="small") == 31  # what was not written decides no type
    assert Index.load(folder).metadata.ids.tolist() == [*range(32)]


def test_wrong_requests_do_not_harm_those_of_their_transaction(tmp_path: Path) -> None:
    with FolderStore(save_index(tmp_path)) as store:
        with store.index.transaction():  # in which the writer waits
            added = ({"price": 7}, {"price": "x"}, {"price": 8}, {})
            futures = [store.add(random_vectors(1, seed), row, None, None) for seed, row in enumerate(added)]
            futures.append(store.delete([4, 30]))
        refused_call("price", futures.pop(1).result, 120)
        assert [each.result(120) for each in futures] == [[30], [31], [32], [4, 30]]
        assert store.index.lookup([31])["price"].tolist() == [8]
        assert store.index.column_kinds["price"].kind == "integer"  # also beside an item without a price
        assert not len(store.index.present([4, 30]))


def test_images_of_deleted_items_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_index(tmp_path)
    with FolderStore(folder) as store:
        assert store.images is not None
        store.images.mkdir()
        kept, gone, left = (store.images / f"{name}.png" for name in "abc")
        for file in (kept, gone, left):
            file.write_bytes(b"pixels")
        ids = [store.add(random_vectors(1, 1), {}, str(file), None).result(120)[0] for file in (kept, gone)]
        assert store.delete([ids[1], 0]).result(120) == [0, ids[1]]
        wait_for(lambda: not gone.exists())
        assert kept.exists()
    monkeypatch.setattr(store_module, "STALE_SECONDS", -1.0)
    with FolderStore(folder, read_only=True):
        assert left.exists()
    with FolderStore(folder):  # a killed process had not added it
        assert (kept.exists(), left.exists()) == (True, False)


def test_an_image_that_looked_unused_is_not_added_without_its_file(tmp_path: Path) -> None:
    with FolderStore(save_index(tmp_path)) as store:
        file = store.images / "new.png"
        file.parent.mkdir()
        file.touch()
        os.utime(file, 2 * (file.stat().st_mtime - 86_400,))  # the clock has jumped since
        with FolderStore(store.folder) as other:
            assert not file.exists()
        with pytest.raises(InputError, match="the file of the image was removed; send it again"):
            store.add(random_vectors(1, 1), {}, str(file), None).result(120)
        assert len(store) == len(other) == 30


def test_files_that_cannot_be_written_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vicinal.retrieval.index.shared_state.MAX_PENDING_FRACTION", 0)
    monkeypatch.setattr("vicinal.serving.folder_store.RETRY_SECONDS", 0.05)
    folder, failed = save_index(tmp_path), threading.Event()

    def full(*_: object) -> None:
        failed.set()
        raise OSError(errno.ENOSPC, "full")

    with FolderStore(folder, Limits(save_changes=1)) as store:
        with monkeypatch.context() as patch:
            patch.setattr("vicinal.retrieval.index.index_state.write_part", full)
            assert add(store, 1) == 30
            assert failed.wait(60)
            assert add(store, 2) == 31
        wait_for(lambda: store.num_unsaved == 0)
    assert len(Index.load(folder)) == 32


def test_an_index_that_is_built_anew_replaces_all(tmp_path: Path) -> None:
    """Changes of the old index are not made in the new one."""
    folder = save_index(tmp_path)
    with FolderStore(folder) as store:
        add(store, 1)
        store.delete([3, 4]).result(120)
        save_index(tmp_path, count=7)
        wait_for(lambda: len(store) == 7)
        assert add(store, 2) == 7
    assert Index.load(folder).metadata.ids.tolist() == [*range(8)]


def test_too_many_changes_wait(tmp_path: Path) -> None:
    with FolderStore(save_index(tmp_path), Limits(max_queue=2)) as store:
        with store.index.transaction():  # in which the writer waits
            futures = [store.delete([9])]
            wait_for(lambda: store._requests.empty())
            futures += [store.delete([1]), store.delete([2])]
            with pytest.raises(Problem) as problem:
                store.delete([3])
            assert problem.value.status == 429
            assert "Retry-After" in problem.value.headers
            futures[1].cancel()
        assert [each.result(120) for each in futures[::2]] == [[9], [2]]
        assert store.index.present([1]).tolist() == [1]


def test_kinds_of_columns() -> None:
    names = {"id": "integer", "whole": "integer", "number": "floating", "flag": "boolean", "text": "string"}
    known = {name: ColumnKind(kind) for name, kind in {**names, "none": "empty"}.items()}
    kinds = ColumnKinds(known, max_columns=8)
    good = {"whole": 2.0, "number": 3, "flag": False, "text": 7, "none": 1.5}
    assert kinds.checked(good) == {"whole": 2, "number": 3.0, "flag": False, "text": "7", "none": 1.5}
    assert [type(value) for value in kinds.checked(good).values()] == [int, float, bool, str, float]
    for wrong in ({"whole": "a"}, {"whole": True}, {"number": "1"}, {"flag": 1}, {"text": 1.5}, {"text": True},
                  {"number": 2**53 + 1}):  # fmt: skip
        refused_call(next(iter(wrong)), kinds.checked, wrong)
    kinds.extend({"new": 1, "none": 1.5})
    for wrong in ({"new": "a"}, {"none": "a"}):
        refused_call(next(iter(wrong)), kinds.checked, wrong)
    refused_call("may have 8", kinds.extend, {"one": 1, "two": 2})
