"""An index that is kept in a folder: a SQLite database beside its vector files."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds
from vicinal.data.moved import moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.database import FILE, PAGE, TIMEOUT, Database
from vicinal.retrieval.index.index_state import Names, encoder_key
from vicinal.retrieval.index.interface import ImageIndex, invalid_k_error, unknown_id_error
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.metadata import ItemRows, frame_of_rows, kinds_of
from vicinal.retrieval.index.shared_state import SharedState, build_state
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import BLOCK_ROWS, Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

MAX_CONDITIONS = 32  # whose images are remembered


class Index(ImageIndex):
    """Embeddings that are searched by cosine similarity, with the columns of their images, in memory or in a folder.

    The id of an image is the number of images that were added before it, so it is never used again. Deleted vectors
    stay in the search structure, invisible, until the index is built again: removing them would break the graph of
    HNSW.

    An index built with a refiner searches refined embeddings. It also keeps the unrefined embeddings, at 4 bytes per
    dimension and image, because the neighbors of a new image or of a query are found among them; they are real vectors
    even beside codes, which then save little memory. Everything that is added or searched later needs the same
    refiner.

    An index is made by :meth:`build`, :meth:`load` or :meth:`open`. With the URL of a database in place of a folder,
    the last two return a :class:`RemoteIndex <vicinal.retrieval.RemoteIndex>`.

    An index that was built in memory stays there; :meth:`save` copies it to a folder. One that was loaded from a folder
    changes that folder: each change is durable when its method returns. Any number of threads and processes may search
    and change an index at the same time; each sees the changes of the others when it searches.

    Attributes:
        state: shared by threads and processes.
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

    def __init__(self, state: SharedState) -> None:
        super().__init__()
        self.state, self._database = state, state.database
        self._rows = ItemRows(state.database)
        self.shows_full_paths = True  # to conditions; False: from `root` on, else the name of the file alone

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
        unless that is less than 39 per list; there are about 4 √n lists for n vectors.

        Args:
            vectors: float [n, dim].
            table: n rows.
            kind: `exact` compares with every vector; `hnsw` is a graph, faster and nearly exact above 100,000 vectors;
                `auto` is `exact` up to 100,000 vectors, `hnsw` above. A warning is logged if a graph finds less than
                99 % of the 10 nearest for a sample of queries, as with near duplicates. The others search by codes:
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
        settings = {"model_fingerprint": model_fingerprint, "made_with": dict(made_with or {})}
        place = None if folder is None else Path(folder)
        index = cls(build_state(vectors, table, kind, refiner, rescore, settings, place, overwrite, timeout))
        if index.kind == "hnsw" and refiner is None:
            from vicinal.retrieval.index.verification import warn_of_low_recall

            warn_of_low_recall(index)
        return index

    @classmethod
    def load(cls, folder: str | Path, timeout: float = TIMEOUT) -> Index | RemoteIndex:
        """Open the index in a folder, or connect to the one at the URL of a database.

        Args:
            folder: the folder, or the URL.
            timeout: seconds to wait while another process writes it, or during which a database is asked again.

        Raises:
            InputError: the index does not exist, is of another version, or is damaged.
            EngineUnavailableError: the database does not answer.
        """
        if "://" in str(folder):
            from vicinal.retrieval.index.remote.engine_url import is_engine_url

            if is_engine_url(folder):
                from vicinal.retrieval.index.remote.remote_index import RemoteIndex

                return RemoteIndex.connect(str(folder), timeout)
        place = Path(folder)
        if not place.is_dir() or not Database.exists(place):
            raise InputError(f"{folder} is not an index: it has no {FILE}; build one with `vicinal index build`")
        return cls(SharedState(Database(place, timeout)))

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
            InputError: as for :meth:`load`, or another process still writes it after `timeout` seconds.
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

    def save(self, folder: str | Path, timeout: float = TIMEOUT, overwrite: bool = True) -> None:
        """Copy the index to a folder, in place of another one; this one stays where it is.

        If the process is killed at any moment, the folder holds the old index or this one. An index that was loaded
        from the folder is there already.

        Args:
            folder: the folder of the index; it is made if missing.
            timeout: seconds to wait while another process writes it.
            overwrite: whether to replace an index that is there.

        Raises:
            InputError: the folder holds something else, or an index that is not to be replaced; or another process
                still writes it after `timeout` seconds.
            OSError: a file cannot be written; the old index stays.
        """
        place = Path(folder)
        own = self.state.database.folder
        if own is None or own.resolve() != place.resolve():
            self.state.copy_to(place, timeout, Names(), overwrite)

    def close(self) -> None:
        """Close files and connections; a later call opens them again."""
        self._database.close()

    # its settings

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.state.current().settings

    def _change_settings(self, **settings: Any) -> None:
        self.state.change_settings(settings)

    @property
    def column_kinds(self) -> Kinds:
        return kinds_of(self.state.current().columns)

    def __len__(self) -> int:
        return len(self.state.current().ids)

    def __repr__(self) -> str:
        refined = "" if self.refiner_fingerprint is None else ", refined"
        return f"Index({self.kind}, {len(self)} images, {self.dim} dimensions{refined})"

    def _further_facts(self) -> dict[str, Any]:
        state = self.state.current()
        return {"deleted": state.next_id - len(state.ids), "refiner_fingerprint": self.refiner_fingerprint}

    def transaction(self) -> AbstractContextManager[None]:
        return self.state.transaction()

    def reading(self) -> AbstractContextManager[None]:
        return self.state.reading()

    def without_changes(self) -> AbstractContextManager[Any]:
        return self._database.lock

    # changes

    def _add(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        with self.transaction():
            state = self.state.current()
            ids = np.arange(state.next_id, state.next_id + len(unit), dtype=np.int64)
            self.state.change(columns=self._rows.insert(ids, table))
            all_ids, rows, unrefined = np.concatenate([state.ids, ids]), unit.block(0, len(unit)).cpu().numpy(), None
            if state.context is not None and refiner is not None:
                unrefined = rows
                context = replace(state.context, engine=state.context.engine.with_added(rows))
                refined = context.refine(unit, refiner, all_ids, query_ids=ids)
                rows = refined.block(0, len(refined)).cpu().numpy()
            if self._database.folder is not None:
                self._database.append_changes(ids, rows, unrefined)
            later = self.state.current().with_vectors(rows, unrefined)
            self.state.change(engine=later.engine, context=later.context, ids=all_ids)
            return ids

    def _upsert(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        if not table.has("path"):
            return self._add(unit, table, refiner)
        last = dict(zip(table.image_keys, range(len(table)), strict=True))
        rows = np.array(sorted(last.values()), dtype=np.int64)
        chosen = table.take(rows)
        with self.transaction():
            ids = self.ids_by_key(chosen.image_keys)
            is_same = self.state.current().have_vectors(ids, unit.subset(rows))
            self.delete(ids[(ids >= 0) & ~is_same])
            if is_same.any():
                self._update(ids[is_same], chosen.take(np.flatnonzero(is_same)))
            if not is_same.all():
                new = np.flatnonzero(~is_same)
                ids[new] = self._add(unit.subset(rows[new]), chosen.take(new), refiner)
        id_of_key = dict(zip(chosen.image_keys, ids.tolist(), strict=True))
        return np.array([id_of_key[key] for key in table.image_keys], dtype=np.int64)

    def delete(self, ids: npt.ArrayLike) -> None:
        with self.transaction():
            state = self.state.current()
            gone = state.checked(ids)
            if len(gone):
                self._database.delete(gone)
                mask = state.is_present.copy()
                mask[gone] = False
                self.state.change(ids=state.ids[mask[state.ids]])

    def _update(self, ids: Integers, table: Table) -> None:
        with self.transaction():
            self.state.change(columns=self._rows.insert(self.state.current().checked(ids), table))

    def _some_paths(self) -> list[str]:
        return list(self.paths().values())

    def _move(self, old: str, new: str) -> None:
        moved = {number: moved_path(path, old, new) for number, path in self.paths().items()}
        self._database.change_column("path", moved)

    def paths(self) -> dict[int, str]:
        """The paths of the images that have one, by their ids."""
        path = {name: each for name, each in self.state.current().columns.items() if name == "path"}
        return dict(self._database.rows(path, f"{path['path'][0]} IS NOT NULL")) if path else {}

    # search

    def _search(
        self, queries: UnitVectors, k: int, refiner: ContextRefiner | None, query_ids: npt.ArrayLike | None, among: Any
    ) -> Neighbors:
        state = self.state.current()
        allowed = state.ids if among is None else state.ascending(among)
        if not (is_integer(k) and 1 <= k <= len(allowed)):
            raise invalid_k_error(k, len(allowed), among is not None and bool(len(state.ids)))
        own_ids = state.checked_query_ids(query_ids, len(queries))
        if state.context is not None and refiner is not None:
            queries = state.context.refine(queries, refiner, state.ids, own_ids)
        return state.engine.search(queries, int(k), allowed)  # faiss takes no integers of numpy

    def where(self, condition: str) -> Integers:
        state = self.state.current()
        ids = state.selected.get(condition)
        if ids is None:
            shown_from = None if self.shows_full_paths else self.root or ""
            ids = self._rows.ids_where(condition, state.columns, self.column_aliases, shown_from)
            ids = ids[ids < state.next_id]
            ids = ids[state.is_present[ids]]
            while len(state.selected) >= MAX_CONDITIONS:
                state.selected.pop(next(iter(state.selected)), None)
            state.selected[condition] = ids
        return ids

    def count(self, among: npt.ArrayLike | None = None, at_most: int | None = None) -> int:
        number = len(self) if among is None else len(np.asarray(among))
        return number if at_most is None else min(number, at_most)

    def without(self, number: int) -> Self:
        """Return the index without an image, which stays where it is."""
        other, state = copy.copy(self), self.state.current()
        other.state = SharedState(self._database, replace(state, ids=state.ids[state.ids != number]))
        other.state.follows = False
        return other

    # rows

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        state = self.state.current()
        wanted = np.asarray(ids).astype(np.int64).ravel() if skip_unknown else state.checked(ids)
        distinct = np.unique(wanted).tolist()
        rows = self._rows.lookup(distinct, state.columns)
        if not skip_unknown and len(rows) < len(distinct):  # another process has just deleted one
            raise unknown_id_error(next(number for number in distinct if number not in rows))
        return frame_of_rows([rows[number] for number in wanted.tolist() if number in rows], state.columns)

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        return self._rows.ids_by_key(keys, self.state.current().columns)

    def ids_at(self, path: str) -> Integers:
        return self._rows.ids_at(path, self.state.current().columns)

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        if condition is None:
            yield from self._rows.frames(self.state.current().columns)
            return
        ids = self.where(condition)
        for start in range(0, max(len(ids), 1), PAGE):
            yield self.lookup(ids[start : start + PAGE], skip_unknown=True)

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        state = self.state.current()
        for start in range(0, len(state.ids), BLOCK_ROWS):
            ids = state.ids[start : start + BLOCK_ROWS]
            yield ids, state.engine.take(ids)

    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        return generator.choice(self.state.current().ids, number, replace=False)

    def vectors_of(self, ids: Integers) -> Floats:
        return self.state.current().engine.take(ids)

    def query_vectors(self, ids: npt.ArrayLike) -> Floats:
        """The vectors of images as queries, float32 [n, dim]: the unrefined ones of an index that refines queries."""
        state = self.state.current()
        return (state.engine if state.context is None else state.context.engine).take(state.checked(ids))

    def local_codes(self, ids: Integers) -> dict[int, bytes]:
        settings = self.local_settings
        return {} if settings is None else self._database.codes(ids, encoder_key(settings))

    def store_local_codes(self, settings: Mapping[str, Any]) -> None:
        with self.transaction():
            self._database.create_codes()
            self._database.delete_codes()
            self._change_settings(local_features=dict(settings))

    def add_local_codes(self, ids: Integers, codes: Sequence[bytes], settings: Mapping[str, Any] | None = None) -> None:
        with self.transaction():
            self._database.write_codes(ids, codes, encoder_key(settings or self.local_settings or {}))

    def ids_without_local_codes(self, settings: Mapping[str, Any] | None = None) -> Integers:
        settings = settings or self.local_settings
        return self.state.current().ids if settings is None else self._database.ids_without_codes(encoder_key(settings))

    def present(self, ids: npt.ArrayLike) -> Integers:
        return self.state.current().present(ids)

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        with self.reading():
            frame = self.searched_rows()
            return self.state.current().engine.take(frame["id"].to_numpy()), frame

    def searched_rows(self) -> pd.DataFrame:
        """Return the rows of the images that are searched; within :meth:`reading`, those of its beginning."""
        frame = self.metadata.frame
        return frame[np.isin(frame["id"], self.state.current().ids)].reset_index(drop=True)

    def vectors(self) -> Floats:
        state = self.state.current()
        return state.engine.take(state.ids)

    def distinct_values(self, column: str, at_most: int) -> list[Any]:
        """The values of a column, without duplicates; some of them if there are more than `at_most`."""
        key, kind = self.state.current().columns[column]
        values = self._database.distinct(key, at_most)
        return list(map(bool, values)) if kind.kind == "boolean" else values
