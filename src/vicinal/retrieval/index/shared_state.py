"""The state of an index in a folder: built, shared by threads and processes, and changed in transactions."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.database import Database
from vicinal.retrieval.index.engines import RescoringEngine, SegmentedEngine, create_engine
from vicinal.retrieval.index.index_state import (
    ORIGINALS,
    IndexState,
    Names,
    RefinerContext,
    check_target,
    delete_unused,
    encoder_key,
    files_exist,
    half_blocks,
    open_originals,
    write_part,
)
from vicinal.retrieval.index.interface import checked_vectors
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.metadata import ItemRows
from vicinal.retrieval.refinement import refine
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.errors import IndexExistsError, InputError

if TYPE_CHECKING:
    from vicinal.retrieval.index.engines import Engine

MIN_PENDING, MAX_PENDING_FRACTION = 1_000, 0.05  # vectors of changes after which new vector files are written
READ_ATTEMPTS, READ_PAUSE = 20, 0.05  # another process may replace files after their names were read


def build_state(
    vectors: Array,
    table: Table,
    kind: Literal["auto"] | Kind,
    refiner: ContextRefiner | None,
    rescore: int | None,
    settings: Mapping[str, Any],
    folder: Path | None,
    overwrite: bool,
    timeout: float,
) -> SharedState:
    """The state of a new index, in memory or in a folder; arguments as of :meth:`Index.build <vicinal.Index.build>`."""
    if folder is not None:
        check_target(folder)
        if Database.exists(folder) and not overwrite:
            raise IndexExistsError(folder)
    unit = searched = checked_vectors(vectors, table)
    if refiner is not None:
        refiner.check_model(settings["model_fingerprint"])
        searched = UnitVectors(refine(refiner, vectors), "refined embedding")
    database, ids, context = Database(None), np.arange(len(unit), dtype=np.int64), None
    with database.transaction():
        database.create()
        columns = ItemRows(database).insert(ids, table)
        engine = create_engine(kind, searched, rescore)
        names = fill_engine(engine, searched, folder)
        if refiner is not None:
            context = RefinerContext.create(engine.kind, unit, refiner)
        settings = {
            "kind": engine.kind, "dim": engine.dim, "files": {}, "revision": secrets.token_hex(8),
            "build": secrets.token_hex(8),  # tells its ids from those of an index that was in the folder before
            "rescore": engine.rescore if isinstance(engine, RescoringEngine) else None, **settings,
            "refiner_fingerprint": None if context is None else context.refiner_fingerprint,
        }  # fmt: skip
        database.change_settings(settings)
    state = SharedState(database, IndexState(settings, columns, SegmentedEngine(engine), ids, context))
    if folder is None:
        return state
    state.copy_to(folder, timeout, names, overwrite)
    return SharedState(Database(folder, timeout))


def fill_engine(engine: Engine, vectors: UnitVectors, folder: Path | None) -> Names:
    """Add vectors to an empty engine; those that it keeps beside codes are written to a file of the folder, if any."""
    names = Names()
    if folder is not None and isinstance(engine, RescoringEngine):
        names[ORIGINALS] = write_part(folder, ORIGINALS, half_blocks(vectors))
        engine.codes.add(vectors)
        engine.store = open_originals(folder, names, engine.dim)
    else:
        engine.add(vectors)
    return names


class SharedState:
    """The state of an index, which transactions of any thread or process change.

    Without `follows`, the changes of other processes are seen after :meth:`refresh` or a change only; without `folds`,
    new vector files are written by :meth:`fold` only.
    """

    def __init__(self, database: Database, state: IndexState | None = None) -> None:
        self.database, self.committed = database, state or _read_state(database)
        self._local = threading.local()  # the state within a transaction, and that of a block that only reads
        self._refresh_lock, self._publish_lock = threading.Lock(), threading.Lock()
        self._data_version: tuple[int, int] | None = None
        self.follows = self.folds = True

    def current(self) -> IndexState:
        """The index as it is now: other processes may have changed it."""
        state: IndexState | None = getattr(self._local, "state", None) or getattr(self._local, "pinned", None)
        if state is not None:
            return state
        if self.follows:
            self.refresh()
        return self.committed

    def refresh(self) -> None:
        """Read the changes of other processes."""
        version = self.database.data_version()
        if version == self._data_version:
            return
        with self._refresh_lock:
            before = self.committed
            if self.database.revision() != str(before.settings["revision"]):
                state = _read_state(self.database, before)
                if not self._publish(state, before):  # a thread of this process has changed it meanwhile
                    return
            self._data_version = version

    def _publish(self, state: IndexState, before: IndexState) -> bool:
        """Show a state to all threads if they still see the one before."""
        with self._publish_lock:
            if self.committed is before:
                self.committed = state
            return self.committed is state

    @property
    def revision(self) -> str:
        """A text that differs after every change."""
        return str(self.committed.settings["revision"])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which this thread sees the index as it is at its beginning."""
        before = getattr(self._local, "pinned", None)
        self._local.pinned = before or self.current()
        try:
            yield
        finally:
            self._local.pinned = before

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes are made together at its end, or not at all if it fails."""
        if getattr(self._local, "state", None) is not None:  # within another one
            yield
            return
        with self.database.lock:  # until other threads see the committed state
            with self.database.transaction():
                before = self.committed
                if self.database.revision() != str(before.settings["revision"]):
                    before = IndexState.read(self.database, before)
                self._local.state = before
                try:
                    yield
                    if (state := self._local.state) is not before:
                        revision = secrets.token_hex(8)
                        self.database.change_settings({"revision": revision})
                        state = replace(state, settings={**state.settings, "revision": revision})
                finally:
                    self._local.state = None
            with self._publish_lock:
                self.committed = state
        if self.folds and self.is_fold_due():
            self.fold()

    def change(self, **changes: Any) -> None:
        self._local.state = replace(self._local.state, **changes)

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change settings; None removes one."""
        with self.transaction():
            self.database.change_settings(settings)
            self.change(settings={**self.current().settings, **settings})

    def switch(
        self, settings: Mapping[str, Any], engine: SegmentedEngine, context: RefinerContext | None = None
    ) -> None:
        """Replace the present vectors by those of another generation, within a transaction.

        The present generation is kept as the previous one: its settings name its files and its encoder of local
        features, and its changes are set aside. Vectors that the files of the new one do not hold become changes.
        """
        now, folder = self.current(), self.database.folder
        if folder is None or not files_exist(folder, settings["files"]):
            raise InputError(f"{folder}: a vector file of the other generation is missing; upgrade the index again")
        changed = {**settings, "previous": {name: now.settings.get(name) for name in settings}}
        self.database.set_changes_aside()
        ids, unrefined = np.arange(len(engine.base), len(engine), dtype=np.int64), context and context.engine.added
        self.database.append_changes(ids, engine.added, unrefined)
        self.database.change_settings(changed)
        encoders = [each["local_features"] for each in (changed, changed["previous"]) if each.get("local_features")]
        if encoders:
            self.database.delete_codes([encoder_key(each) for each in encoders])
        self.change(settings={**now.settings, **changed}, engine=engine, context=context)

    def is_fold_due(self, min_pending: int | None = None) -> bool:
        """Whether enough vectors are only in the database to make new vector files worthwhile."""
        state, min_vectors = self.committed, MIN_PENDING if min_pending is None else min_pending
        return state.num_pending >= max(min_vectors, MAX_PENDING_FRACTION * len(state.engine.base))

    def fold(self) -> None:
        """Write vector files that hold all vectors, which then leave the database; others may write meanwhile."""
        state, folder = self.current(), self.database.folder
        folded = state.folded()
        names = Names() if folder is None else folded.write_files(folder, Names())
        if folder is not None and isinstance(base := folded.engine.base, RescoringEngine):
            engine = RescoringEngine(base.codes, open_originals(folder, names, base.dim), base.rescore)
            folded = replace(folded, engine=SegmentedEngine(engine))
        with self.transaction():
            now = self.current()
            is_same = now.settings["files"] == state.settings["files"] and now.next_id >= state.next_id
            is_same = is_same and len(now.engine.base) == len(state.engine.base)  # in memory there are no files
            if is_same and (folder is None or files_exist(folder, names)):
                later = slice(state.next_id - len(now.engine.base), None)  # of the vectors that were added meanwhile
                unrefined = None if now.context is None else now.context.engine.added[later]
                self.database.forget_changes(below=state.next_id)
                self.database.change_settings({"files": names})
                folded = folded.with_vectors(now.engine.added[later], unrefined)
                settings = {**now.settings, "files": names}
                self.change(settings=settings, engine=folded.engine, context=folded.context)
        if folder is not None:  # if another process has built or folded it, the new files are the unused ones
            delete_unused(self.database, folder, names, state.settings["files"])

    def copy_to(self, folder: Path, timeout: float, names: Names, overwrite: bool = True) -> None:
        """Write the missing files of this index, and then its rows."""
        check_target(folder)
        folder.mkdir(parents=True, exist_ok=True)
        before = Database(folder).settings()["files"] if Database.exists(folder) else Names()
        is_written = False

        def may_replace() -> bool:
            return files_exist(folder, names) and (overwrite or not Database.is_made(folder))

        while not is_written:  # after a clock jump, another process may take a file for that of a killed one
            names = self.current().write_files(folder, names if files_exist(folder, names) else Names())
            database = self.database.copied()
            with database.transaction():
                tokens = {name: secrets.token_hex(8) for name in ("revision", "build")}
                database.change_settings({"files": names, "previous": None, **tokens})
                database.forget_changes()
                if (local := database.settings().get("local_features")) is not None:
                    database.delete_codes([encoder_key(local)])
            is_written = database.write_to(folder, timeout, may_replace)
            if not is_written and not overwrite and Database.exists(folder):
                break
        with closing(Database(folder, timeout)) as target:
            delete_unused(target, folder, names, before)
        if not is_written:
            raise IndexExistsError(folder)


def _read_state(database: Database, before: IndexState | None = None) -> IndexState:
    """The state of a database, whose files another process may replace while they are opened."""
    for attempt in range(READ_ATTEMPTS):
        try:
            return IndexState.read(database, before)
        except FileNotFoundError as error:
            missing = error.filename
            time.sleep(READ_PAUSE * (attempt > 0))
    raise InputError(f"{database.folder}: the index is damaged, {missing} is missing; build it again")
