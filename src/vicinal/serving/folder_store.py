"""The index of a service in a folder: any number of threads read it, one writes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import Self

from vicinal.data.moved import ADDED, image_file
from vicinal.data.table import Table
from vicinal.retrieval.index.index import Index
from vicinal.retrieval.index.made_with import fingerprint_of
from vicinal.serving.columns import ColumnKinds, facts_of_index
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem, too_busy
from vicinal.serving.store import Store, UpgradedError, remove_unused
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import EngineUnavailableError, InputError, one_line

MAX_GROUP = 256  # requests whose changes are made in one transaction
FOLLOW_SECONDS = 0.2  # between checks for changes of other processes
WAIT_SECONDS = 0.05  # between checks whether a model is loaded
RETRY_SECONDS = 10.0  # after vector files could not be written


@dataclass
class _Request:
    """A change that a client asks for; `answer` gets the ids of the added or deleted items."""

    vectors: Floats | None = None
    row: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    deleted: tuple[int, ...] = ()
    key: str | None = None
    codes: bytes | None = None
    epoch: int | None = None
    answer: Future[list[int]] = field(default_factory=Future)


class FolderStore(Store):
    """The index in a folder, for any number of readers and one writing thread.

    Changes that wait together are made in one transaction, and acknowledged when it is durable. Other processes may
    change the index at the same time; a second thread follows them, and writes new vector files when many vectors are
    only in the database. Searches wait for neither.
    """

    def __init__(
        self, folder: str | Path, limits: Limits | None = None, read_only: bool = False, refiner: Any = None,
        index: Index | None = None,
    ) -> None:  # fmt: skip
        super().__init__(str(folder), Path(folder).resolve().name, limits, read_only, refiner)
        self.folder, self._loaded = Path(folder), index
        self.images = self.folder.resolve() / ADDED
        self._facts: tuple[str, list[dict[str, Any]]] | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        index = self._loaded or Index.load(self.folder)
        if not isinstance(index, Index):
            raise InputError(f"{self.folder} is not a folder")
        index.check_refiner(self.refiner)
        index.state.follows = index.state.folds = index.shows_full_paths = False
        self.index, self._model = index, index.fingerprint()
        self._requests: queue.Queue[_Request] = queue.Queue(self.limits.max_queue)
        if not self.read_only:
            remove_unused(self.folder / ADDED, index.paths().values())
        for work in (self._follow,) if self.read_only else (self._write, self._follow):
            self._threads.append(threading.Thread(target=work, name=work.__name__, daemon=True))
            self._threads[-1].start()
        return self

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    def add(
        self, vectors: Floats, columns: Mapping[str, Any], path: str | None, key: str | None,
        codes: bytes | None = None, epoch: int | None = None,
    ) -> Future[list[int]]:  # fmt: skip
        return self._submit(_Request(vectors, dict(columns), path, key=key, codes=codes, epoch=epoch))

    def delete(self, ids: Sequence[int]) -> Future[list[int]]:
        return self._submit(_Request(deleted=tuple(ids)))

    def added_with(self, key: str) -> list[int] | None:
        return self.index.state.database.ids_of_request(key)

    @property
    def num_unsaved(self) -> int:
        return self.index.state.current().num_pending

    @property
    def is_connected(self) -> bool:
        return bool(self.index.fingerprint() == self._model)

    def check_model(self) -> None:
        if not self.is_connected:
            raise EngineUnavailableError(self.name, "the index was upgraded to another model; restart the service")

    # reading

    def query_vector(self, number: int) -> Floats | None:
        with self.index.reading():
            found = self.index.present([number])
            return self.index.query_vectors(found)[0] if len(found) else None

    def column_facts(self) -> list[dict[str, Any]]:
        revision = self.index.state.revision
        if self._facts is None or self._facts[0] != revision:
            self._facts = revision, facts_of_index(self.index)
        return self._facts[1]

    def image_file(self, path: str) -> Path:
        """The file of an image; one that a client added is in the folder, wherever that was moved."""
        return image_file(path, self.folder)

    def _follow(self) -> None:
        """Follow the changes of other processes, and write vector files when they are due."""
        retry, last_fold = 0.0, time.monotonic()
        while not self._stop.wait(max(FOLLOW_SECONDS, retry)):
            retry = 0.0
            try:
                self._follow_model()
                self.index.state.refresh()
                is_old = self.num_unsaved > 0 and time.monotonic() - last_fold > self.limits.save_seconds
                if not self.read_only and (is_old or self.index.state.is_fold_due(self.limits.save_changes)):
                    self.index.state.fold()
                    last_fold = time.monotonic()
            except Exception as error:  # of many kinds, such as those of a full GPU; the thread must go on
                log(f"{self.folder}: {one_line(error)}")
                retry = RETRY_SECONDS

    def _follow_model(self) -> None:
        """After an upgrade, load the new model, then switch to the new vectors; a request uses both of one epoch."""
        if self.load_model is None:
            return
        settings = self.index.state.database.settings()
        if (fingerprint := fingerprint_of(settings)) == self._model:
            return
        take_into_use = self.load_model(settings)
        self.epoch += 1
        try:
            self.index.state.refresh()
            take_into_use()
            self._model = fingerprint
        finally:
            self.epoch += 1
        log(f"{self.folder}: serving embeddings of {self._model} now")

    # writing

    def _submit(self, request: _Request) -> Future[list[int]]:
        self.check_writable()
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise too_busy("too many changes are waiting to be written") from None
        return request.answer

    def _write(self) -> None:
        """Make the changes that clients ask for; waiting requests share one transaction."""
        while not (self._stop.is_set() and self._requests.empty()):
            try:
                group = [self._requests.get(timeout=0.1)]
            except queue.Empty:
                continue
            with suppress(queue.Empty):
                while len(group) < MAX_GROUP:
                    group.append(self._requests.get_nowait())
            self._write_group([each for each in group if each.answer.set_running_or_notify_cancel()])

    def _write_group(self, group: Sequence[_Request]) -> None:
        try:
            answers, unused = self._committed_in_epoch(group)
        except Exception as error:  # such as a full disk, or a bug
            log(f"{self.folder}: changes cannot be written: {one_line(error)}")
            for request in group:
                request.answer.set_exception(Problem(503, "the change cannot be written now", {"Retry-After": "10"}))
            return
        for request, answer in zip(group, answers, strict=True):
            if isinstance(answer, InputError):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        for file in unused:
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _committed_in_epoch(self, group: Sequence[_Request]) -> tuple[list[list[int] | InputError], list[Path]]:
        """As :meth:`_committed`; waits while the model of an upgraded index is loaded."""
        deadline = time.monotonic() + self.limits.request_seconds
        while True:
            try:
                return self._committed(group)
            except EngineUnavailableError:
                if self.load_model is None or time.monotonic() > deadline or self._stop.wait(WAIT_SECONDS):
                    raise

    def _committed(self, group: Sequence[_Request]) -> tuple[list[list[int] | InputError], list[Path]]:
        """Make the changes of requests in one transaction; their answers, and the files of images that were deleted."""
        with self.index.transaction():
            self.check_model()
            changes = _Changes(self.index, self.limits.max_columns, self.images)
            epoch = self.epoch
            answers = [
                changes.answer(request) if request.epoch in (None, epoch) else UpgradedError("the model has changed")
                for request in group
            ]
            if changes.rows:
                vectors = np.concatenate(changes.vectors)
                table = Table._from_valid(pd.DataFrame(changes.rows, dtype=object))
                ids = self.index.add(vectors, table, self.refiner)
                if self.index.local_settings is not None:
                    known = {row: codes for row, codes in enumerate(changes.codes) if codes is not None}
                    self.index.add_local_codes(ids[list(known)], list(known.values()))
            unused = self._own_images(changes.deleted)
            self.index.delete(changes.deleted)
            if changes.keys:
                self.index.state.database.remember_requests(changes.keys)
        return answers, unused

    def _own_images(self, ids: Sequence[int]) -> list[Path]:
        """The files of images of items that clients had added."""
        found = self.index.lookup(ids)
        paths = found["path"].tolist() if "path" in found else []
        files = [image_file(path, self.folder) for path in paths if isinstance(path, str)]
        return [file for file in files if file.parent in (self.images, self.folder / ADDED)]


class _Changes:
    """The changes of the requests of one transaction."""

    def __init__(self, index: Index, max_columns: int, images: Path | None) -> None:
        self._index, self._next_id, self._images = index, index.state.current().next_id, images
        self._kinds = ColumnKinds(index.column_kinds, max_columns)
        self.vectors: list[Floats] = []
        self.rows: list[dict[str, Any]] = []
        self.codes: list[bytes | None] = []
        self.deleted: list[int] = []  # also items of this transaction
        self.keys: dict[str, list[int]] = {}  # the ids of added items by the keys of their requests

    def answer(self, request: _Request) -> list[int] | InputError:
        """Add the changes of a request; returns the ids of its answer, or its error."""
        if request.vectors is None:
            return self._delete(request.deleted)
        find = self._index.state.database.ids_of_request
        known = None if request.key is None else self.keys.get(request.key) or find(request.key)
        if known is not None:
            return known
        file = None if request.path is None else Path(request.path)
        # another service may have taken it for an unused one, as after a jump of the clock
        if file is not None and file.parent == self._images and not file.exists():
            return InputError("the file of the image was removed; send it again")
        try:
            row = self._kinds.checked(request.row) | ({} if request.path is None else {"path": request.path})
            self._kinds.extend(row)
        except InputError as error:
            return error
        self.vectors.append(np.asarray(request.vectors, np.float32))
        self.rows.append(row)
        self.codes.append(request.codes)
        ids = [self._next_id + len(self.rows) - 1]
        if request.key is not None:
            self.keys[request.key] = ids
        return ids

    def _delete(self, ids: Sequence[int]) -> list[int]:
        new = range(self._next_id, self._next_id + len(self.rows))
        existing = [*self._index.present(ids).tolist(), *sorted({*ids} & {*new})]
        gone = [each for each in existing if each not in self.deleted]
        self.deleted += gone
        return gone
