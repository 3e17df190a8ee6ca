"""The index of a service in a folder: read without waiting, written by one thread, saved now and then by another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from vicinal.retrieval.index.index import Index
from vicinal.retrieval.index.storage import current_files, write_lock
from vicinal.retrieval.search import plain_records
from vicinal.serving.column_facts import Facts, facts_of, facts_of_snapshot
from vicinal.serving.images.added_images import images_of_deleted
from vicinal.serving.images.paths import ADDED, image_file
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem, too_busy
from vicinal.serving.store.changes import Change, ColumnKinds
from vicinal.serving.store.journal import Journal
from vicinal.serving.store.recovery import unapplied_changes
from vicinal.serving.store.snapshot import Snapshot, apply_changes
from vicinal.serving.store.store import Store
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, one_line

MAX_GROUP = 256  # requests whose changes are written to the disk together
MAX_KEYS = 2_000  # that are remembered
RELOAD_SECONDS = 1.0  # between looks of a reader whether the index has changed
RETRY_SECONDS = 10.0  # after the index could not be saved


class _OwnedIndex(Index):
    """An index in a folder whose lock this process holds for longer than one change."""

    @classmethod
    def load_owned(cls, folder: Path) -> _OwnedIndex:
        index = cls.load(folder)
        index._locked_folder = folder.resolve()
        return index  # type: ignore[return-value]

    @staticmethod
    def files_of(index: Index) -> Mapping[str, str] | None:
        """The names of the files that an index was loaded from, which identify its content."""
        return None if index._saved is None else index._saved[1]


@dataclass
class _Request:
    """What a client asks to change; the ids of what is added, or the number of what is deleted, come in `answer`."""

    vectors: Floats | None = None
    row: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    deleted: tuple[int, ...] = ()
    key: str | None = None
    answer: Future[list[int]] = field(default_factory=Future)


class FolderStore(Store):
    """The index in a folder, for any number of readers and one writer.

    A reader takes :attr:`snapshot`, which never changes. A change is checked, written to the journal and acknowledged;
    the next snapshot has it. The index itself is saved after a number of changes or seconds, and the journal begins
    anew. Processes with `read_only` see what was saved.

    Args:
        folder: of the index.
        limits: of the service.
        read_only: whether to follow the changes of another process instead of making any.
        refiner: the refiner that the index was built with, if any.
        index: the index, if it was loaded from the folder already.

    Raises:
        InputError: there is no index, another process writes it, or the journal does not belong to it.
    """

    def __init__(
        self,
        folder: str | Path,
        limits: Limits | None = None,
        read_only: bool = False,
        refiner: Any = None,
        index: Index | None = None,
    ) -> None:
        super().__init__(str(folder), Path(folder).resolve().name, limits, read_only, refiner)
        self.folder, self._loaded = Path(folder), index
        self.images = self.folder.resolve() / ADDED
        self.snapshot: Snapshot
        self._facts: tuple[Any, Facts] | None = None
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.read_only:
                self._open_to_read()
            else:
                self._open_to_write(stack)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """Finish what was begun, and save the index if it was changed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._stack.close()

    @property
    def index(self) -> Snapshot:
        """The index as it is now."""
        return self.snapshot

    def __len__(self) -> int:
        return len(self.snapshot)

    def add(self, vectors: Floats, columns: Mapping[str, Any], path: str | None, key: str | None) -> Future[list[int]]:
        """Add an item, as :meth:`Store.add`; its id comes when it is in the journal."""
        return self._submit(_Request(vectors, dict(columns), path, key=key))

    def delete(self, ids: Sequence[int]) -> Future[list[int]]:
        """Delete items, as :meth:`Store.delete`; the answer comes when it is in the journal."""
        return self._submit(_Request(deleted=tuple(ids)))

    def added_with(self, key: str) -> list[int] | None:
        """The ids of what was added with a key; None if that is not known."""
        return None if self.read_only else self._keys.get(key)

    @property
    def num_unsaved(self) -> int:
        """The number of added and deleted items that are in the journal only."""
        return 0 if self.read_only else sum(map(len, self._unsaved))

    # reading

    def record(self, number: int) -> dict[str, Any] | None:
        """The columns of an item; None if there is none of this id."""
        snapshot = self.snapshot
        return plain_records(snapshot.metadata.lookup([number]))[0] if snapshot.has(number) else None

    def query_vector(self, number: int) -> Floats | None:
        """The vector of an item as a query, float32 [dim]; None if there is none of this id."""
        snapshot = self.snapshot
        return snapshot.query_vectors([number])[0] if snapshot.has(number) else None

    def column_facts(self) -> list[dict[str, Any]]:
        """The columns, with their distinct values where they are few."""
        snapshot = self.snapshot
        base = snapshot.metadata.base
        if self._facts is None or self._facts[0] is not base:
            self._facts = base, facts_of(base.metadata.frame)
        return facts_of_snapshot(snapshot, self._facts[1])

    def image_file(self, path: str) -> Path:
        """The file of an image; one that a client added is in the folder, wherever that was moved."""
        return image_file(path, self.folder)

    def _open_to_read(self) -> None:
        index = self._load()
        index.check_refiner(self.refiner)
        self._files = _OwnedIndex.files_of(index)
        self.snapshot = Snapshot.of(index)
        self._start(self._follow)

    def _follow(self) -> None:
        """Load the index again whenever another process has saved it."""
        while not self._stop.wait(RELOAD_SECONDS):
            try:
                files = current_files(self.folder)
                if files != self._files:
                    index = Index.load(self.folder)
                    index.check_refiner(self.refiner)
                    self.snapshot, self._files = Snapshot.of(index), _OwnedIndex.files_of(index)
                    log(f"loaded {self.folder} again: {len(self.snapshot):,} items")
            except (InputError, OSError) as error:
                log(f"{self.folder} is not loaded again: {one_line(error)}")

    def _load(self) -> Index:
        """The index in the folder, which may have been loaded already."""
        index, self._loaded = self._loaded, None
        if index is None or _OwnedIndex.files_of(index) != current_files(self.folder):
            index = Index.load(self.folder)
        return index

    # writing

    def _open_to_write(self, stack: ExitStack) -> None:
        if current_files(self.folder) is None:
            Index.load(self.folder)  # says what is wrong, before a lock is made in the folder
        try:
            stack.enter_context(write_lock(self.folder, 0))
        except InputError:
            raise InputError(
                f"{self.folder}: another process writes this index; stop it, or serve it with --read_only"
            ) from None
        index = self._load()
        index.check_refiner(self.refiner)
        self._journal = Journal(self.folder)
        stack.callback(self._journal.close)
        self._keys: dict[str, list[int]] = dict(self._journal.keys)
        self._unsaved = unapplied_changes(Snapshot.of(index), self._journal.changes, self.folder)
        self.snapshot = Snapshot.of(index).after(self._unsaved, self.refiner)
        self._kinds = ColumnKinds.of(index.metadata.frame, self.limits.max_columns)
        for row in (row for change in self._unsaved for row in change.rows):
            self._kinds.extend(row)
        self._last_save = time.monotonic()
        self._has_failed = False
        self._lock = threading.Lock()  # of what the writing and the saving thread change
        self._wake = threading.Event()  # the saving thread
        self._requests: queue.Queue[_Request] = queue.Queue(self.limits.max_queue)
        self._start(self._write)
        self._start(self._save_now_and_then)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _submit(self, request: _Request) -> Future[list[int]]:
        self.check_writable()
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise too_busy("too many changes wait to be written") from None
        return request.answer

    def _write(self) -> None:
        """Make the changes that clients ask for, those that wait together at once."""
        while not (self._stop.is_set() and self._requests.empty()):
            try:
                group = [self._requests.get(timeout=0.1)]
            except queue.Empty:
                continue
            while len(group) < MAX_GROUP:
                try:
                    group.append(self._requests.get_nowait())
                except queue.Empty:
                    break
            with self._lock:
                self._write_group([each for each in group if each.answer.set_running_or_notify_cancel()])
            if self._is_save_due():
                self._wake.set()

    def _write_group(self, group: Sequence[_Request]) -> None:
        changes, answers = self._changes_of(group)
        try:
            self._commit(changes)
        except Exception as error:  # the disk may be full, or a defect
            log(f"{self.folder}: changes cannot be written: {one_line(error)}")
            self._kinds = ColumnKinds.of(self.snapshot.metadata.frame, self.limits.max_columns)
            for request, _ in answers:
                request.answer.set_exception(Problem(503, "the change cannot be written now", {"Retry-After": "10"}))
            return
        self._keys |= {request.key: ids for request, ids in answers if request.key is not None}
        while len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        for request, ids in answers:
            request.answer.set_result(ids)

    def _changes_of(self, group: Sequence[_Request]) -> tuple[list[Change], list[tuple[_Request, list[int]]]]:
        """The changes that requests ask for, and the ids that answer each request; refused ones are answered here."""
        changes: list[Change] = []
        answers: list[tuple[_Request, list[int]]] = []
        next_id, deleted, keys = self.snapshot.next_id, set[int](), dict[str, list[int]]()
        for request in group:
            known = None if request.key is None else keys.get(request.key) or self._keys.get(request.key)
            try:
                change = Change() if known else self._change(request, next_id, deleted)
            except InputError as error:
                request.answer.set_exception(error)
                continue
            if len(change):
                changes.append(change)
                next_id += len(change.rows)
                deleted.update(change.deleted)
            ids = known or change.ids or list(change.deleted)
            keys |= {} if request.key is None else {request.key: ids}
            answers.append((request, ids))
        return changes, answers

    def _commit(self, changes: Sequence[Change]) -> None:
        """Write changes to the journal, and show them to readers."""
        if changes:
            following = self.snapshot.after(changes, self.refiner)
            self._journal.append(changes)
            self.snapshot = following
            self._unsaved += changes

    def _change(self, request: _Request, next_id: int, deleted: set[int]) -> Change:
        """The change that a request asks for, after others of its group.

        Raises:
            InputError: its columns do not agree with those of the index.
        """
        if request.vectors is None:
            new = range(self.snapshot.next_id, next_id)
            there = [*self.snapshot.present(request.deleted), *sorted({*request.deleted} & {*new})]
            return Change(deleted=tuple(each for each in there if each not in deleted))
        row = self._kinds.checked(request.row)
        if request.path is not None:
            row["path"] = request.path
        self._kinds.extend(row)
        return Change(next_id, np.asarray(request.vectors, np.float32), (row,), key=request.key)

    # saving

    def _is_save_due(self) -> bool:
        if not self._unsaved:
            return False
        waited = time.monotonic() - self._last_save
        if self._has_failed:
            return waited >= RETRY_SECONDS
        return self.num_unsaved >= self.limits.save_changes or waited >= self.limits.save_seconds

    def _save_now_and_then(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(timeout=0.25)
            self._wake.clear()
            if self._is_save_due():
                self._try_save()
        self._threads[0].join()  # which makes the last changes
        if self._unsaved:
            self._try_save()

    def _try_save(self) -> None:
        try:
            self._save()
            self._has_failed = False
        except (InputError, OSError, MemoryError) as error:
            log(f"{self.folder} is not saved, and its journal is kept: {one_line(error)}")
            self._has_failed = True
        self._last_save = time.monotonic()

    def _save(self) -> None:
        """Save the index with the changes until now; those that come meanwhile stay in the journal."""
        with self._lock:
            changes = list(self._unsaved)
            old_files = self._journal.rotate(self._keys)
        index = _OwnedIndex.load_owned(self.folder)
        for path in images_of_deleted(index, changes, self.folder):  # before the journal goes, by which they are known
            with suppress(OSError):
                path.unlink()
        apply_changes(index, changes, self.refiner)
        index.save(self.folder)
        snapshot = Snapshot.of(index)
        with self._lock:
            self._unsaved = self._unsaved[len(changes) :]
            self.snapshot = snapshot.after(self._unsaved, self.refiner)
        for path in old_files:
            path.unlink(missing_ok=True)
