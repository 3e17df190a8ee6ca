"""An index that is kept in a folder: a SQLite database beside its vector files."""

from __future__ import annotations

import copy
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.boxes import image_keys
from vicinal.data.column_kinds import Kinds, column_values, converted
from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.conditions import SQLWriter, fulfilling
from vicinal.data.moved import find_old_root, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.database import CHUNK, FILE, PAGE, TIMEOUT, Database
from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.engines.rescoring import RescoringEngine, create_engine
from vicinal.retrieval.index.engines.segmented_engine import SegmentedEngine
from vicinal.retrieval.index.index_state import Columns, IndexState, half_blocks
from vicinal.retrieval.index.interface import ImageIndex, check_one_row_per_id, checked_vectors
from vicinal.retrieval.index.metadata import Metadata, frame_of_table, frame_of_values, parse_index_condition
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.index.remote.engine_url import is_engine_url
from vicinal.retrieval.index.vector_files import (
    ORIGINALS,
    Names,
    check_target,
    delete_unused,
    open_originals,
    write_part,
)
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.refinement import refine
from vicinal.retrieval.scores import BLOCK_ROWS, Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

MIN_PENDING, MAX_PENDING_FRACTION = 1_000, 0.05  # vectors of changes after which new vector files are written
READ_ATTEMPTS, READ_PAUSE = 20, 0.05  # another process may replace files between the reading of their names and theirs
MAX_CONDITIONS = 32  # whose images are remembered


class Index(ImageIndex):
    """Embeddings that are searched by cosine similarity, with the columns of their images.

    The id of an image is the number of images that were added before it, so it is never used again. Deleted vectors
    stay in the search structure, invisible, until the index is built again: removing them would break the graph of
    HNSW.

    An index built with a refiner searches refined embeddings. It also keeps the unrefined embeddings, at 4 bytes per
    dimension and image, because the neighbors of a new image or of a query are found among them; they are real vectors
    even beside codes, which then save little memory. Everything that is added or searched later needs the same
    refiner.

    An index is made by :meth:`build`, :meth:`load` or :meth:`open`. With the URL of a database in place of a folder,
    the last two return a :class:`RemoteIndex <vicinal.retrieval.RemoteIndex>`, which has the same methods.

    An index that was built in memory stays there; :meth:`save` copies it to a folder. One that was loaded from a folder
    changes that folder: each change is durable when its method returns. Any number of threads and processes may search
    and change an index at the same time; each sees the changes of the others when it searches.

    Attributes:
        model_fingerprint: identifies the model that made the vectors; None if it is unknown.
        made_with: the flags of `vicinal index build` that made the vectors, such as `{"model": "run"}`; else empty.
        follows: whether each method sees the changes of other processes; False: after :meth:`refresh` or a change.
        folds: whether vector files are written anew when many vectors are in the database alone; see :meth:`fold`.
        shows_full_paths: whether conditions see paths in full; False: from `root` on, else the name of the file alone.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cow"]}))
        >>> index = Index.build(np.eye(3, dtype=np.float32), table)
        >>> index.delete([0])
        >>> neighbors = index.search(np.array([[0.1, 1.0, 0.2]]), k=2)
        >>> index.lookup(neighbors.ids[0])["label"].tolist()
        ['dog', 'cow']
    """

    def __init__(self, database: Database, state: IndexState) -> None:
        super().__init__()
        self._database, self._committed = database, state
        self._local = threading.local()  # the state within a transaction
        self._write_lock, self._refresh_lock, self._publish_lock = threading.RLock(), threading.Lock(), threading.Lock()
        self._data_version = -1
        self._selected: dict[str, tuple[object, Integers]] = {}
        self.follows = self.folds = self.shows_full_paths = True

    # making and opening

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
        refiner: ContextRefiner | None = None,
        made_with: Mapping[str, str] | None = None,
        rescore: int | None = None,
        overwrite: bool = False,
        timeout: float = TIMEOUT,
        folder: str | Path | None = None,
    ) -> Index:
        """Build an index of all vectors, in memory or in a folder.

        Quantizers of `ivfpq` and `rabitq` learn from 256 random vectors per inverted list, at most 1,048,576 in all
        unless that is less than 39 per list; there are about four times as many lists as the square root of the number
        of vectors.

        Args:
            vectors: float [n, dim].
            table: n rows.
            kind: `exact` compares with every vector; `hnsw` is a graph, faster and nearly exact above 100,000 vectors;
                `auto` is `exact` up to 100,000 vectors, `hnsw` above. The others search by codes:
                `sq8` of one byte per dimension and `binary` of one bit compare with every vector; `ivfpq` of about one
                byte per four dimensions and `rabitq` of one bit and eight bytes search the nearest inverted lists.
            model_fingerprint: identifies the model that made the vectors.
            refiner: refines every vector first, by its nearest among the others, which are found by comparing every
                vector with every other.
            made_with: the flags of the command that made the vectors, which messages about other vectors name.
            rescore: for kinds with codes, how many candidates per neighbor are compared by the vectors themselves,
                which are kept as float16 in a file of the index, not in memory. None: the default of the kind; 0: none,
                the vectors are not kept, and scores are approximate.
            overwrite: with `folder`: whether to replace an index that is there.
            timeout: with `folder`: seconds to wait while another process writes the index.
            folder: of the index. Vectors of a memory map are then never all in memory, for kinds with codes.

        Raises:
            InputError: vectors and table have different lengths, a vector contains NaN or infinity, there are too few
                vectors for `ivfpq`, the kind is unknown, the table has both columns `id` and `id_of_table`, or a column
                with integers of more than 64 bits, the refiner has a different dimension or is for a different model,
                or there is an index in the folder already.
            OSError: a file cannot be written.
        """
        place = None if folder is None else Path(folder)
        if place is not None:
            check_target(place)
            if Database.exists(place) and not overwrite:
                raise InputError(f"{place} is an index already; add to it, or overwrite it")
        unit = searched = checked_vectors(vectors, table)
        if refiner is not None:
            refiner.check_model(model_fingerprint)
            searched = UnitVectors(refine(refiner, vectors), "refined embedding")
        values = _values_of(table)
        engine, names, context = create_engine(kind, searched, rescore), Names(), None
        if place is not None and isinstance(engine, RescoringEngine):
            names[ORIGINALS] = write_part(place, ORIGINALS, half_blocks(searched))
            engine.codes.add(searched)
            engine.store = open_originals(place, names, engine.dim)
        else:
            engine.add(searched)
        if refiner is not None:
            context = RefinerContext.create(engine.kind, unit, refiner)
        settings = {
            "kind": engine.kind, "dim": engine.dim, "files": {}, "revision": secrets.token_hex(8),
            "rescore": engine.rescore if isinstance(engine, RescoringEngine) else None,
            "model_fingerprint": model_fingerprint, "made_with": dict(made_with or {}),
            "refiner_fingerprint": None if context is None else context.refiner_fingerprint,
        }  # fmt: skip
        database, ids = Database(None), np.arange(len(unit), dtype=np.int64)
        with database.transaction():
            database.create()
            database.change_settings(settings)
            database.set_columns(values[0])
            database.insert(ids, values[1])
        index = cls(database, IndexState(settings, database.columns(), SegmentedEngine(engine), ids, context))
        if place is None:
            return index
        index._copy_to(place, timeout, names)
        database = Database(place, timeout)
        return cls(database, _read_state(database))

    @classmethod
    def load(cls, folder: str | Path, timeout: float = TIMEOUT) -> Index | RemoteIndex:
        """Open the index in a folder, or connect to the one at the URL of a database.

        Args:
            folder: the folder of the index, or the URL of a database.
            timeout: seconds to wait while another process writes it, or during which a database is asked again.

        Raises:
            InputError: there is no index, it is of another version, or damaged.
            EngineUnavailableError: the database does not answer.
        """
        if is_engine_url(folder):
            return _remote_index().connect(str(folder), timeout)
        place = Path(folder)
        if not place.is_dir() or not Database.exists(place):
            raise InputError(f"{folder} is not an index: it has no {FILE}; build one with `vicinal index build`")
        database = Database(place, timeout)
        return cls(database, _read_state(database))

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path, timeout: float = TIMEOUT) -> Iterator[Index | RemoteIndex]:
        """Load an index for a block whose changes are made together at its end; no other process writes it meanwhile.

        If the block fails, nothing is changed. Others may read the index throughout; they see it as it was until the
        end. An index in a database is changed at once, by any number of processes.

        Args:
            folder: the folder of the index, or the URL of a database.
            timeout: as for :meth:`load`.

        Raises:
            InputError: there is no index, it is of another version, or damaged, or another process still writes it
                after `timeout` seconds.
            OSError: a file cannot be written; nothing is changed.
            EngineUnavailableError: the database does not answer.

        Example:
            >>> import numpy as np, pandas as pd, tempfile
            >>> from vicinal import Table
            >>> table = Table(pd.DataFrame({"label": ["cat", "dog"]}))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Index.build(np.eye(2), table).save(folder)
            ...     with Index.open(folder) as index:
            ...         index.add(np.eye(2), table)
            ...         index.delete([0])
            ...     Index.load(folder)
            array([2, 3])
            Index(exact, 3 images, 2 dimensions)
        """
        with cls.load(folder, timeout) as index:
            if not isinstance(index, Index):
                yield index
                return
            with index.transaction():
                yield index

    def save(self, folder: str | Path, timeout: float = TIMEOUT) -> None:
        """Copy the index to a folder, in place of another one; this one stays where it is.

        If the process is killed at any moment, the folder holds the old index or this one. An index that was loaded
        from the folder is there already.

        Args:
            folder: the folder of the index; it is made if missing.
            timeout: seconds to wait while another process writes it.

        Raises:
            InputError: the folder holds something else, or another process still writes it after `timeout` seconds.
            OSError: a file cannot be written; the old index stays.
        """
        place = Path(folder)
        if self._database.folder is None or self._database.folder.resolve() != place.resolve():
            self._copy_to(place, timeout, Names())

    def _copy_to(self, folder: Path, timeout: float, names: Names) -> None:
        """Write the files of this index beside those that are written already, and then its rows."""
        check_target(folder)
        folder.mkdir(parents=True, exist_ok=True)
        before = Database(folder).settings()["files"] if Database.exists(folder) else Names()
        names = self._current().write_files(folder, names)
        database = self._database.copied()
        with database.transaction():
            database.change_settings({"files": names, "revision": secrets.token_hex(8)})
            database.forget_changes()
        database.write_to(folder, timeout)
        delete_unused(folder, names, before)

    def close(self) -> None:
        self._database.close()

    # the state

    def _current(self) -> IndexState:
        """The index as it is now: other processes may have changed it."""
        state: IndexState | None = getattr(self._local, "state", None) or getattr(self._local, "pinned", None)
        if state is not None:
            return state
        if self.follows:
            self.refresh()
        return self._committed

    def refresh(self) -> None:
        """Read what other processes have changed.

        Raises:
            InputError: the index is damaged.
            OSError: it cannot be read.
        """
        version = self._database.data_version()
        if version == self._data_version:
            return
        with self._refresh_lock:
            before = self._committed
            if self._database.revision() != str(before.settings["revision"]):
                state = _read_state(self._database, before)
                if not self._publish(state, before):  # a thread of this process has changed it meanwhile
                    return
            self._data_version = version

    def _publish(self, state: IndexState, before: IndexState) -> bool:
        """Show a state to all threads if they still see the one before."""
        with self._publish_lock:
            if self._committed is before:
                self._committed = state
            return self._committed is state

    @property
    def revision(self) -> str:
        """What is another text after every change."""
        return str(self._committed.settings["revision"])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes are made together at its end; if it fails, none of them.

        Raises:
            InputError: another process still writes the index after the timeout.
            OSError: the changes cannot be written.
        """
        if getattr(self._local, "state", None) is not None:
            yield
            return
        with self._write_lock:  # until other threads see what is committed
            with self._database.transaction():
                before = self._committed
                if self._database.revision() != str(before.settings["revision"]):
                    before = IndexState.read(self._database, before)
                self._local.state = before
                try:
                    yield
                    if (state := self._local.state) is not before:
                        revision = secrets.token_hex(8)
                        self._database.change_settings({"revision": revision})
                        state = replace(state, settings={**state.settings, "revision": revision})
                finally:
                    self._local.state = None
            with self._publish_lock:
                self._committed = state
        if self.folds and self.is_fold_due():
            self.fold()

    def _change(self, **changes: Any) -> None:
        """Change the state within a transaction."""
        self._local.state = replace(self._local.state, **changes)

    def _change_settings(self, **settings: Any) -> None:
        with self.transaction():
            self._database.change_settings(settings)
            self._change(settings={**self._current().settings, **settings})

    def is_fold_due(self, min_pending: int | None = None) -> bool:
        """Whether so many vectors are in the database alone that new vector files are worth it."""
        state, least = self._committed, MIN_PENDING if min_pending is None else min_pending
        return state.num_pending >= max(least, MAX_PENDING_FRACTION * len(state.engine.base))

    def fold(self) -> None:
        """Write vector files that hold all vectors, which then leave the database; others may write meanwhile.

        Raises:
            OSError: a file cannot be written; nothing is changed.
        """
        state, folder = self._current(), self._database.folder
        folded = state.folded()
        names = Names() if folder is None else folded.write_files(folder, Names())
        if ORIGINALS in names and folder is not None:
            folded = folded.with_originals(open_originals(folder, names, self.dim))
        with self.transaction():
            now = self._current()
            if now.settings["files"] != state.settings["files"] or now.next_id < state.next_id:
                return  # another process has built or folded it
            vectors, unrefined = now.vectors_from(state.next_id)
            self._database.forget_changes(below=state.next_id)
            self._database.change_settings({"files": names})
            folded = folded.with_vectors(vectors, unrefined)
            settings = {**now.settings, "files": names}
            self._change(settings=settings, engine=folded.engine, context=folded.context)
        if folder is not None:
            delete_unused(folder, names, state.settings["files"])

    # what it is

    @property
    def model_fingerprint(self) -> str | None:
        return self._current().settings.get("model_fingerprint")

    @property
    def made_with(self) -> dict[str, str]:
        return dict(self._current().settings.get("made_with") or {})

    @property
    def refiner_fingerprint(self) -> str | None:
        return self._current().settings.get("refiner_fingerprint")

    @property
    def root(self) -> str | None:
        """The folder of the images, which :meth:`move` changes; None if it is unknown."""
        return self._current().settings.get("root")

    @root.setter
    def root(self, root: str | None) -> None:
        self._change_settings(root=root)

    def _stored_calibration(self) -> Calibration | None:
        stored = self._current().settings.get("calibration")
        return None if stored is None else Calibration.from_dict(stored)

    def _keep_calibration(self, calibration: Calibration | None) -> None:
        self._change_settings(calibration=None if calibration is None else calibration.to_dict())

    @property
    def kind(self) -> Kind:
        return self._current().engine.kind

    @property
    def rescore(self) -> int:
        """Number of candidates per neighbor that are compared exactly; 0 for an index that is not searched by codes."""
        return self._current().settings.get("rescore") or 0

    @property
    def dim(self) -> int:
        return self._current().engine.dim

    @property
    def columns(self) -> list[str]:
        return ["id", *self._current().columns]

    @property
    def column_kinds(self) -> Kinds:
        """The kinds of the columns."""
        return {name: kind for name, (_, kind) in self._current().columns.items()}

    @property
    def next_id(self) -> int:
        """The id of the image that is added next."""
        return self._current().next_id

    @property
    def num_pending(self) -> int:
        """The number of vectors that are in the database alone."""
        return self._current().num_pending

    def __len__(self) -> int:
        return len(self._current().ids)

    def __repr__(self) -> str:
        refined = "" if self.refiner_fingerprint is None else ", refined"
        return f"Index({self.kind}, {len(self)} images, {self.dim} dimensions{refined})"

    def describe(self) -> dict[str, str | float | None]:
        state = self._current()
        rescore = {"rescore": self.rescore} if self.rescore else {}
        return self._with_provenance({
            "kind": self.kind, **rescore, "images": len(state.ids), "dimensions": self.dim,
            "deleted": state.next_id - len(state.ids), "model_fingerprint": self.model_fingerprint,
            "refiner_fingerprint": self.refiner_fingerprint,
        })  # fmt: skip

    # changes

    def add(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        with self.transaction():
            return self._add(unit, table, refiner)

    def _add(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        state = self._current()
        ids = np.arange(state.next_id, state.next_id + len(unit), dtype=np.int64)
        self._insert(ids, table)
        all_ids, rows, unrefined = np.concatenate([state.ids, ids]), unit.block(0, len(unit)).cpu().numpy(), None
        if state.context is not None and refiner is not None:
            unrefined = rows
            context = RefinerContext(state.context.engine.with_added(rows), state.context.refiner_fingerprint)
            refined = context.refine(unit, refiner, all_ids, query_ids=ids)
            rows = refined.block(0, len(refined)).cpu().numpy()
        if self._database.folder is not None:
            self._database.append_changes(ids, rows, unrefined)
        later = self._current().with_vectors(rows, unrefined)
        self._change(engine=later.engine, context=later.context, ids=all_ids)
        return ids

    def _insert(self, ids: Integers, table: Table) -> None:
        """Write the columns of images in place of theirs."""
        kinds, values = _values_of(table)
        kinds = self._database.set_columns(kinds)
        values = {name: [converted(value, kinds[name]) for value in column] for name, column in values.items()}
        self._database.insert(ids, values)
        self._change(columns=self._database.columns())

    def upsert(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        if not table.has("path"):
            return self.add(vectors, table, refiner)
        last = dict(zip(table.image_keys, range(len(table)), strict=True))
        rows = np.array(sorted(last.values()), dtype=np.int64)
        chosen = table.take(rows)
        with self.transaction():
            ids = self.ids_by_key(chosen.image_keys)
            is_same = self._have_vectors(ids, unit.subset(rows))
            self.delete(ids[(ids >= 0) & ~is_same])
            if is_same.any():
                self._insert(ids[is_same], chosen.take(np.flatnonzero(is_same)))
            if not is_same.all():
                new = np.flatnonzero(~is_same)
                ids[new] = self._add(unit.subset(rows[new]), chosen.take(new), refiner)
        id_of_key = dict(zip(chosen.image_keys, ids.tolist(), strict=True))
        return np.array([id_of_key[key] for key in table.image_keys], dtype=np.int64)

    def _have_vectors(self, ids: Integers, vectors: UnitVectors) -> npt.NDArray[np.bool_]:
        """Whether the images of some ids, -1 for none, have these vectors; False for those of a refined index."""
        is_same, state = np.zeros(len(ids), dtype=bool), self._current()
        known = np.flatnonzero(ids >= 0)
        if state.context is None and len(known):
            is_same[known] = (state.engine.take(ids[known]) == vectors.take(known).cpu().numpy()).all(axis=1)
        return is_same

    def delete(self, ids: npt.ArrayLike) -> None:
        with self.transaction():
            state = self._current()
            gone = state.checked(ids)
            if len(gone):
                self._database.delete(gone)
                mask = state.is_present.copy()
                mask[gone] = False
                self._change(ids=state.ids[mask[state.ids]])

    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        given = np.asarray(ids, dtype=np.int64)
        check_one_row_per_id(given, table)
        with self.transaction():
            self._insert(self._current().checked(given), table)

    def move(self, root: str | Path) -> None:
        new = os.path.abspath(root)
        with self.transaction():
            paths = self.paths()
            if not paths:
                raise InputError("the images of the index have no paths, so there is nothing to move")
            old = find_old_root(list(paths.values()), new, self.root)
            moved = {number: moved_path(path, old, new) for number, path in paths.items()}
            self._database.change_column("path", moved)
            self.root = new if self.root is None else moved_path(self.root, old, new)

    def paths(self) -> dict[int, str]:
        """The paths of the images that have one, by their ids."""
        columns = {name: each for name, each in self._current().columns.items() if name == "path"}
        return dict(self._database.rows(columns, f"{columns['path'][0]} IS NOT NULL")) if columns else {}

    # search

    def search(
        self,
        vectors: Array,
        k: int,
        refiner: ContextRefiner | None = None,
        query_ids: npt.ArrayLike | None = None,
        among: npt.ArrayLike | None = None,
    ) -> Neighbors:
        self.check_refiner(refiner)
        queries, state = UnitVectors(vectors, "query"), self._current()
        self._check_dim(queries)
        if not len(state.ids):
            raise InputError("the index is empty; add images before searching")
        allowed = state.ids if among is None else _ascending(state.checked(among))
        if not (is_integer(k) and 1 <= k <= len(allowed)):
            images = f"{len(allowed)} images to search among"
            place = images if among is not None else f"an index of {len(allowed)} images"
            raise InputError(f"k = {k} is impossible in {place}; use 1 to {len(allowed)}")
        own_ids = _checked_query_ids(state, query_ids, len(queries))
        if state.context is not None and refiner is not None:
            queries = state.context.refine(queries, refiner, state.ids, own_ids)
        return state.engine.search(queries, k, allowed)

    def where(self, condition: str) -> Integers:
        state, is_committed = self._current(), getattr(self._local, "state", None) is None
        known = self._selected.get(condition)
        if known is not None and known[0] == state.settings["revision"] and is_committed:
            return known[1]
        tree = parse_index_condition(condition, state.columns, self.column_aliases)
        written = SQLWriter(self.column_kinds, condition, self._expression_of).write(tree)
        with self._database.reading() as connection:
            found = fulfilling(connection, "SELECT id FROM items WHERE {} ORDER BY id", written, condition)
            ids = np.fromiter((number for (number,) in found), np.int64)
        ids = ids[ids < state.next_id]
        ids = ids[state.is_present[ids]]
        if is_committed:
            while len(self._selected) >= MAX_CONDITIONS:
                self._selected.pop(next(iter(self._selected)), None)
            self._selected[condition] = state.settings["revision"], ids
        return ids

    def _expression_of(self, column: str) -> str:
        """The name of a column in the database, or what stands for it in a condition."""
        if column == "id":
            return "id"
        key = self._current().columns[column][0]
        if column != "path" or self.shows_full_paths:
            return key
        root = "NULL" if self.root is None else "'" + self.root.replace("'", "''") + "'"
        return f"shown_path({key}, {root})"

    def select(self, condition: str | None) -> Integers | None:
        return None if condition is None else self.where(condition)

    def count(self, among: npt.ArrayLike | None = None, at_most: int | None = None) -> int:
        number = len(self) if among is None else len(np.asarray(among))
        return number if at_most is None else min(number, at_most)

    @contextmanager
    def reading(self) -> Iterator[None]:
        before = getattr(self._local, "pinned", None)
        self._local.pinned = before or self._current()
        try:
            yield
        finally:
            self._local.pinned = before

    def distinct_values(self, column: str, at_most: int) -> list[Any]:
        """The values of a column, without duplicates; some of them if there are more than `at_most`."""
        key, kind = self._current().columns[column]
        values = self._database.distinct(key, at_most)
        return list(map(bool, values)) if kind.kind == "boolean" else values

    def ids_of_request(self, key: str) -> list[int] | None:
        """The ids of what was added with a key of a request; None if that is not known."""
        return self._database.ids_of_request(key)

    def remember_requests(self, answers: Mapping[str, Sequence[int]]) -> None:
        """Keep the ids of what was added with keys, within :meth:`transaction`."""
        self._database.remember_requests(answers)

    def without(self, number: int) -> Self:
        """Return the index without an image, which stays where it is."""
        other, state = copy.copy(self), self._current()
        other._committed = replace(state, ids=state.ids[state.ids != number])
        other._local, other._selected, other.follows = threading.local(), {}, False
        return other

    # rows

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        state = self._current()
        given = np.asarray(ids, None if hasattr(ids, "dtype") else object).ravel()
        wanted = given.astype(np.int64) if skip_unknown else state.checked(ids)
        rows: dict[int, tuple[Any, ...]] = {}
        distinct = np.unique(wanted).tolist()
        for start in range(0, len(distinct), CHUNK):
            listed = ", ".join(map(str, distinct[start : start + CHUNK]))
            rows |= {row[0]: row for row in self._database.rows(state.columns, f"id IN ({listed})")}
        if not skip_unknown and len(rows) < len(distinct):  # another process has just deleted one
            state.unknown(next(number for number in distinct if number not in rows))
        return _frame([rows[number] for number in wanted.tolist() if number in rows], state.columns)

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        columns = {name: each for name, each in self._current().columns.items() if name in ("path", *BOX_COLUMNS)}
        found: dict[str, int] = {}
        if "path" in columns:
            paths = list(dict.fromkeys(path for key in keys for path in (key, key.rpartition(" [")[0]) if path))
            for start in range(0, len(paths), CHUNK):
                some = paths[start : start + CHUNK]
                where = f"{columns['path'][0]} IN ({', '.join('?' * len(some))})"
                frame = _frame(self._database.rows(columns, where, some), columns)
                for key, number in zip(image_keys(frame), frame["id"].tolist(), strict=True):
                    found.setdefault(key, number)
        return np.array([found.get(key, -1) for key in keys], dtype=np.int64)

    def ids_at(self, path: str) -> Integers:
        if "path" not in self._current().columns:
            return np.empty(0, np.int64)
        key, folder = self._current().columns["path"][0], path.rstrip("/")
        where = f"{key} = :path OR ({key} >= :below AND {key} < :after)"
        return self._database.ids(where, {"path": path, "below": f"{folder}/", "after": f"{folder}0"})

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        if condition is not None:
            ids = self.where(condition)
            for start in range(0, max(len(ids), 1), PAGE):
                yield self.lookup(ids[start : start + PAGE], skip_unknown=True)
            return
        columns = self._current().columns
        for page in self._database.pages(columns):
            yield _frame(page, columns)

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        state = self._current()
        for start in range(0, len(state.ids), BLOCK_ROWS):
            ids = state.ids[start : start + BLOCK_ROWS]
            yield ids, state.engine.take(ids)

    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        return generator.choice(self._current().ids, number, replace=False)

    def vectors_of(self, ids: Integers) -> Floats:
        return self._current().engine.take(ids)

    def query_vectors(self, ids: npt.ArrayLike) -> Floats:
        """The vectors of images as queries, float32 [n, dim]: the unrefined ones of an index that refines queries."""
        state = self._current()
        given = state.checked(ids)
        return (state.engine if state.context is None else state.context.engine).take(given)

    def present(self, ids: npt.ArrayLike) -> Integers:
        """Return those of some ids that exist, without duplicates, ascending."""
        return self._current().present(ids)

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        with self.reading():
            frame, state = self.metadata.frame, self._current()
            frame = frame[np.isin(frame["id"], state.ids)].reset_index(drop=True)
            return state.engine.take(frame["id"].to_numpy()), frame

    def vectors(self) -> Floats:
        """Return the vectors that are searched, in ascending order of ids.

        They are unit vectors, refined if the index is. Where it is searched by codes, they are those that it rescores
        with, float16; without, approximations from the codes.

        Returns:
            float32 [images, dim].

        Example:
            >>> import pandas as pd
            >>> from vicinal import Index, Table
            >>> index = Index.build(2 * np.eye(3, dtype=np.float32), Table(pd.DataFrame(index=range(3))))
            >>> index.delete([0])
            >>> index.vectors()
            array([[0., 1., 0.],
                   [0., 0., 1.]], dtype=float32)
        """
        state = self._current()
        return state.engine.take(state.ids)

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        return self.metadata


def _read_state(database: Database, before: IndexState | None = None) -> IndexState:
    """The state of a database, whose files another process may replace while they are opened."""
    for attempt in range(READ_ATTEMPTS):
        try:
            return IndexState.read(database, before)
        except FileNotFoundError as error:
            missing = error.filename
            time.sleep(READ_PAUSE * (attempt > 0))
    raise InputError(f"{database.folder}: the index is damaged, {missing} is missing; build it again")


def _frame(rows: Sequence[tuple[Any, ...]], columns: Columns) -> pd.DataFrame:
    """The frame of rows of the database."""
    ids, *values = zip(*rows, strict=True) if rows else ((), *(() for _ in columns))
    kinds = {name: kind for name, (_, kind) in columns.items()}
    return frame_of_values(ids, dict(zip(columns, values, strict=True)), kinds)


def _values_of(table: Table) -> tuple[Kinds, dict[str, list[Any]]]:
    """The kinds and the values of the columns of a table."""
    frame = frame_of_table(table)
    columns = {str(name): column_values(frame[name]) for name in frame}
    return {name: kind for name, (kind, _) in columns.items()}, {name: each for name, (_, each) in columns.items()}


def _ascending(ids: Integers) -> Integers:
    return ids if (np.diff(ids) > 0).all() else np.unique(ids)


def _checked_query_ids(state: IndexState, query_ids: npt.ArrayLike | None, num_queries: int) -> Integers:
    """The ids that the queries have in the index, -1 where they have none."""
    if query_ids is None:
        return np.full(num_queries, -1)
    ids = np.asarray(query_ids)
    if state.context is None:
        raise InputError("query_ids are for the refinement of queries; this index is not refined")
    if ids.shape != (num_queries,) or ids.dtype.kind not in "iu" or ids.min(initial=0) < -1:
        raise InputError(
            f"query_ids are {ids.dtype} {list(ids.shape)}; "
            f"give an integer id for each of the {num_queries} queries, -1 for none"
        )
    state.checked(ids[ids >= 0])
    return ids.astype(np.int64)


def _remote_index() -> type[RemoteIndex]:
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

    return RemoteIndex
