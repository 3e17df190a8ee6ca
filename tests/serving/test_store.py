"""The store: what is acknowledged survives, one writes, others follow, and the journal belongs to its index."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.service import random_vectors, save_index
from vicinal import Index, Table
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.serving.store.changes import Change, frame_of
from vicinal.serving.store.folder_store import FolderStore
from vicinal.serving.store.journal import Journal, journal_files
from vicinal.utils.errors import InputError

NEVER = {"save_changes": 10**6, "save_seconds": 1e6}


def wait_for(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def add(store: FolderStore, seed: int, key: str | None = None, **columns: Any) -> int:
    (number,) = store.add(random_vectors(1, seed), columns, None, key).result(120)
    return number


def crash(store: FolderStore) -> None:
    """Leave the folder as a process that was killed does."""
    store._stop.set()
    store._unsaved = []
    for thread in store._threads:
        thread.join()
    store._stack.close()


def test_changes_are_there_at_once_and_after_a_crash(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    store = FolderStore(folder, Limits(**NEVER)).__enter__()
    assert [add(store, seed, price=seed) for seed in (100, 101)] == [30, 31]
    assert sorted(store.delete([3, 30, 99, 3]).result(120)) == [3, 30]
    assert store.delete([3]).result(120) == []
    before = store.snapshot
    crash(store)
    assert len(Index.load(folder)) == 30
    with FolderStore(folder, Limits(**NEVER)) as again:
        np.testing.assert_array_equal(again.snapshot.metadata.ids, before.metadata.ids)
        np.testing.assert_array_equal(again.snapshot.vectors(), before.vectors())
        assert again.snapshot.metadata.lookup([31])["price"].tolist() == [101]
        assert add(again, 5) == 32
    index = Index.load(folder)  # saved in the end
    assert index.metadata.ids.tolist() == [0, 1, 2, *range(4, 30), 31, 32]
    expected = np.concatenate([before.vectors()[-1:], _unit(random_vectors(1, 5))])
    np.testing.assert_allclose(index.vectors()[-2:], expected, atol=1e-6)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_journal_ends_anywhere(tmp_path: Path) -> None:
    """Cut off at any byte, it holds the changes before, and goes on from there."""
    journal = Journal(tmp_path)
    sizes = []
    for number in range(3):
        journal.append([Change(number, random_vectors(1, number), ({"price": number},), key=f"k{number}")])
        sizes.append(journal_files(tmp_path)[0].stat().st_size)
    journal.close()
    (path,) = journal_files(tmp_path)
    data = path.read_bytes()
    for length in range(0, len(data), 3):
        path.write_bytes(data[:length])
        complete = sum(size <= length for size in sizes)
        again = Journal(tmp_path)
        assert [change.first_id for change in again.changes] == list(range(complete)), length
        assert again.keys == {f"k{number}": [number] for number in range(complete)}
    path.write_bytes(data[: sizes[1]] + bytes([data[sizes[1]] ^ 1]) + data[sizes[1] + 1 :])
    again = Journal(tmp_path)
    again.append([Change(deleted=(7,))])
    again.close()
    assert [change.deleted for change in Journal(tmp_path).changes] == [(), (), (7,)]
    path.write_bytes(data[:-5])  # not the last file any more
    with pytest.raises(InputError, match="damaged at byte"):
        Journal(tmp_path)
    path.write_bytes(b"")
    Journal(tmp_path)


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_index(tmp_path)
    with FolderStore(folder, Limits(**NEVER)) as store:
        add(store, 1)
        real = os.fsync
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(Problem) as problem:
                add(store, 2)
            assert problem.value.status == 503
            assert store.snapshot.next_id == 31
        assert os.fsync is real
        assert add(store, 3) == 31
        crash(store)
    assert [change.first_id for change in Journal(folder).changes] == [30, 31]


def test_changes_that_were_not_written_do_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.append([Change(deleted=(0,))])
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            journal.append([Change(deleted=(1,)), Change(deleted=(2,))])
    journal.append([Change(deleted=(3,))])  # as long as the first of them
    journal.close()
    assert [change.deleted for change in Journal(tmp_path).changes] == [(0,), (3,)]


def test_a_change_that_was_not_written_decides_no_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FolderStore(save_index(tmp_path), Limits(**NEVER)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store._journal, "append", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(Problem):
                add(store, 1, size=3)
        assert add(store, 2, size="small") == 30


def test_images_of_deleted_items_go_whenever_the_process_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_index(tmp_path)
    image = folder.resolve() / "added" / "a.png"
    image.parent.mkdir()
    image.write_bytes(b"image")
    with FolderStore(folder, Limits(**NEVER)) as store:
        (number,) = store.add(random_vectors(1), {}, str(image), None).result(120)
    store = FolderStore(folder, Limits(**NEVER)).__enter__()
    store.delete([number]).result(120)
    monkeypatch.setattr(Index, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store._save()
    monkeypatch.undo()
    crash(store)
    with FolderStore(folder) as store:
        assert not store.snapshot.has(number)
    assert not image.exists()


def test_saving_goes_on_beside_changes(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    with FolderStore(folder, Limits(save_changes=5, save_seconds=1e6)) as store, ThreadPoolExecutor(4) as pool:
        base = store.snapshot
        ids = list(pool.map(lambda seed: add(store, seed, price=seed), range(60)))
        assert sorted(ids) == list(range(30, 90))
        wait_for(lambda: store.num_unsaved < 5)
        assert store.snapshot.next_id == 90
        assert base.next_id == 30
        for seed, number in enumerate(ids):
            assert store.snapshot.metadata.lookup([number])["price"].tolist() == [seed]
            np.testing.assert_allclose(
                store.snapshot.query_vectors([number]), _unit(random_vectors(1, seed)), atol=1e-6
            )
        assert len(journal_files(folder)) <= 2
    assert len(Index.load(folder)) == 90
    assert len(journal_files(folder)) == 1  # which holds the keys


def test_a_failed_save_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_index(tmp_path)
    monkeypatch.setattr("vicinal.serving.store.folder_store.RETRY_SECONDS", 0.05)
    with FolderStore(folder, Limits(save_changes=1)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Index, "save", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            assert add(store, 1) == 30
            wait_for(lambda: store._has_failed)
            assert add(store, 2) == 31
        wait_for(lambda: store.num_unsaved == 0)
    assert len(Index.load(folder)) == 32


def test_keys_are_remembered_across_saves_and_crashes(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    store = FolderStore(folder, Limits(save_changes=1)).__enter__()
    assert [add(store, 1, "a"), add(store, 1, "a"), add(store, 2, "b")] == [30, 30, 31]
    wait_for(lambda: store.num_unsaved == 0)
    assert add(store, 3, "a") == 30
    crash(store)
    with FolderStore(folder) as again:
        assert (again.added_with("b"), again.added_with("c")) == ([31], None)
        assert add(again, 9, "b") == 31
        assert len(again.snapshot) == 32


def test_one_process_writes(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    with FolderStore(folder) as store:
        with pytest.raises(InputError, match=r"another process writes this index.*--read_only"), FolderStore(folder):
            pass
        with pytest.raises(InputError, match="another process"):
            Index.load(folder).save(folder, timeout=0)
        assert add(store, 1) == 30
    with FolderStore(folder) as store:
        assert len(store.snapshot) == 31


def test_readers_follow_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vicinal.serving.store.folder_store.RELOAD_SECONDS", 0.02)
    folder = save_index(tmp_path)
    with FolderStore(folder, Limits(save_changes=2)) as writer, FolderStore(folder, read_only=True) as reader:
        with pytest.raises(Problem) as problem:
            reader.add(random_vectors(1), {}, None, None)
        assert problem.value.status == 405
        old = reader.snapshot
        add(writer, 1)
        add(writer, 2)
        wait_for(lambda: len(reader.snapshot) == 32)
        assert len(old) == 30
        writer.delete([0, 1]).result(120)
        wait_for(lambda: not reader.snapshot.has(0))


def test_a_journal_of_another_index_is_not_applied(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    store = FolderStore(folder, Limits(**NEVER)).__enter__()
    add(store, 1)
    add(store, 2)
    crash(store)
    for count in (1, 2, 3):
        with Index.open(folder) as index:  # another program
            index.add(random_vectors(count, 50), Table(frame_of([{"label": "x"}] * count)))
        with pytest.raises(InputError, match="another program has changed the index"), FolderStore(folder):
            pass
        with Index.open(folder) as index:
            index.delete(index.metadata.ids[-count:])
    save_index(tmp_path / "smaller", count=5).rename(tmp_path / "moved")
    for path in journal_files(folder):
        path.rename(tmp_path / "moved" / path.name)
    with pytest.raises(InputError, match="move the journal away"), FolderStore(tmp_path / "moved"):
        pass


def test_a_crash_between_saving_and_the_end_of_the_journal(tmp_path: Path) -> None:
    """The index has the changes already, and the journal has them too."""
    folder = save_index(tmp_path)
    store = FolderStore(folder, Limits(**NEVER)).__enter__()
    add(store, 1)
    store.delete([4, 30]).result(120)
    add(store, 2)
    crash(store)
    kept = {path.name: path.read_bytes() for path in journal_files(folder)}
    with FolderStore(folder):
        pass
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    with FolderStore(folder, Limits(**NEVER)) as again:
        assert again.num_unsaved == 0
        assert again.snapshot.metadata.ids.tolist() == [*range(4), *range(5, 30), 31]
        assert add(again, 3) == 32


def test_too_many_changes_wait(tmp_path: Path) -> None:
    with FolderStore(save_index(tmp_path), Limits(max_queue=2)) as store:
        with store._lock:  # the writer is busy
            futures = [store.delete([9])]
            wait_for(lambda: store._requests.empty())
            futures += [store.delete([1]), store.delete([2])]
            with pytest.raises(Problem) as problem:
                store.delete([3])
            assert problem.value.status == 429
            assert "Retry-After" in problem.value.headers
            futures[1].cancel()
        assert [each.result(120) for each in futures[::2]] == [[9], [2]]
        assert store.snapshot.has(1)
