"""The state of an index in a folder at one moment: its vectors, their files, and the ids of its images."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.database import FILE, Columns, Database
from vicinal.retrieval.index.engines import (
    HalfStore,
    RescoringEngine,
    SegmentedEngine,
    create_codes,
    read_codes,
)
from vicinal.retrieval.index.interface import checked_ids, unknown_id_error
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError
from vicinal.utils.files import file_digest, folder_time, write_blocks
from vicinal.utils.memory import check_memory

if TYPE_CHECKING:
    from vicinal.retrieval.index.engines import Engine

VECTORS, CONTEXT, ORIGINALS = "vectors", "context", "originals"
SUFFIXES = {VECTORS: ".faiss", CONTEXT: ".faiss", ORIGINALS: ".f16"}
STALE_SECONDS = 3600.0  # a file that no database names for so long was written by a process that was killed
MAX_GATHERED = 8192  # neighbor vectors in memory at a time
Names = dict[str, list[str]]
"""The name and the SHA-256 of the file of each part."""


def write_part(folder: Path, part: str, blocks: Iterable[bytes | memoryview]) -> list[str]:
    """Write a file of a new name; its name and digest are returned."""
    digest, name = hashlib.sha256(), f"{part}-{secrets.token_hex(8)}{SUFFIXES[part]}"

    def digested() -> Iterator[bytes | memoryview]:
        for block in blocks:
            digest.update(block)
            yield block

    write_blocks(folder / name, digested())
    return [name, digest.hexdigest()]


def read_part(folder: Path, names: Names, part: str) -> memoryview:
    """The content of a file, mapped into memory: pages of it take no memory of the process."""
    path = folder / names[part][0]
    check_memory(path.stat().st_size, str(path))
    _check(path, names[part][1])
    with path.open("rb") as file:
        return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))


def open_originals(folder: Path, names: Names, dim: int) -> HalfStore:
    """The vectors beside codes, which stay in their file; raises as :func:`read_part`."""
    path = folder / names[ORIGINALS][0]
    _check(path, names[ORIGINALS][1])
    with path.open("rb") as file:
        return HalfStore.from_file(file, dim)


def _check(path: Path, expected: str) -> None:
    if file_digest(path) != expected:
        raise InputError(f"{path} is damaged: its content differs from its digest; build the index again")


def files_exist(folder: Path, names: Names) -> bool:
    return all((folder / name).is_file() for name, _ in names.values())


def delete_unused(database: Database, folder: Path, *unused: Names) -> None:
    """Delete files that the database does not name: those in `unused`, and those of processes that were killed.

    A file may look old though a process is about to name it, as after a clock jump. Files are deleted while nobody
    commits, and each commit checks that its files exist (:func:`files_exist`).
    """
    with database.transaction():
        settings = database.settings()
        generations = (settings, settings.get("previous") or {"files": {}})
        referenced = {name for each in generations for name, _ in each["files"].values()}
        candidates, now = {name for names in unused for name, _ in names.values()}, folder_time(folder)
        for path in _data_files(folder):
            with suppress(OSError):  # such as where a reader has it open on Windows
                is_stale = abs(now - path.stat().st_mtime) > STALE_SECONDS
                if path.name not in referenced and (path.name in candidates or is_stale):
                    path.unlink()


def check_target(folder: Path) -> None:
    """Raise InputError if an index cannot be in `folder`: it is a file, holds something else, or is in an index."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; an index is kept in a folder")
    for outer in folder.absolute().parents:
        if (outer / FILE).exists():
            raise InputError(f"{folder} is inside the index {outer}; give an index a folder of its own")
    if folder.is_dir() and not (folder / FILE).exists():
        known = {*_data_files(folder)}
        others = sorted(path.name for path in folder.iterdir() if path not in known and path.name[0] != ".")
        if others:
            raise InputError(f"{folder} is not an index and holds {others[0]}; give an index a folder of its own")


def _data_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for part, suffix in SUFFIXES.items():
        files += [*folder.glob(f"{part}-*{suffix}"), *folder.glob(f".{part}-*{suffix}.*.tmp")]
    return files


def encoder_key(settings: Mapping[str, Any]) -> str:
    """The name under which codes of local features that are computed with these settings are stored."""
    return str(settings.get("encoder", ""))


@dataclass(frozen=True)
class RefinerContext:
    """Refines embeddings one by one, each by its nearest among the unrefined embeddings of an index."""

    engine: SegmentedEngine  # holds the unrefined embeddings; exact or hnsw, as neighbors must be real vectors
    refiner_fingerprint: str

    @classmethod
    def create(cls, kind: Kind, vectors: UnitVectors, refiner: ContextRefiner) -> RefinerContext:
        """Return a context of all embeddings: of the kind of the index, or of `auto` beside codes."""
        engine = create_codes(kind if kind in ("exact", "hnsw") else "auto", vectors)
        engine.add(vectors)
        return cls(SegmentedEngine(engine), refiner.fingerprint())

    def refine(
        self, vectors: UnitVectors, refiner: ContextRefiner, active_ids: Integers, query_ids: Integers
    ) -> UnitVectors:
        """Refine vectors by their nearest of `active_ids`; `query_ids` are their own ids among these, -1 for none."""
        method = Refinement(refiner, "gallery")
        refined = np.empty((len(vectors), vectors.dim), np.float32)
        for is_indexed in (True, False):  # separately, as a vector that is in the index has one neighbor less
            rows = np.flatnonzero((query_ids >= 0) == is_indexed)
            k = min(method.num_neighbors, len(active_ids) - is_indexed)
            chunk_size = max(1, MAX_GATHERED // max(k, 1))
            for chunk in (rows[start : start + chunk_size] for start in range(0, len(rows), chunk_size)):
                queries = vectors.subset(chunk)
                neighbors = self._nearest(queries, k, active_ids, query_ids[chunk])
                present, positions = np.unique(neighbors, return_inverse=True)
                gallery = UnitVectors(self.engine.take(present), "embedding")
                refined[chunk] = method.refine_vectors(queries, gallery, positions.reshape(neighbors.shape))
        return UnitVectors(refined, "refined embedding")

    def _nearest(self, queries: UnitVectors, k: int, active_ids: Integers, query_ids: Integers) -> Integers:
        """Return the ids of the nearest embeddings, int64 [queries, k]; all queries are in the index, or none is."""
        if not k:
            return np.empty((len(queries), 0), np.int64)
        if (query_ids < 0).all():
            return self.engine.search(queries, k, active_ids).ids
        ids = self.engine.search(queries, k + 1, active_ids).ids
        # Among many duplicates, the search may not have found the query itself.
        others_first = np.argsort(ids == query_ids[:, None], axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, others_first, axis=1)


@dataclass(frozen=True)
class IndexState:
    """The vectors and the ids of an index; the rows are in its database."""

    settings: Mapping[str, Any]
    columns: Columns
    engine: SegmentedEngine  # all vectors, of deleted images too; an id is the number of vectors before it
    ids: Integers  # of the images that can be found, ascending
    context: RefinerContext | None = None  # the unrefined vectors, of an index of refined ones
    selected: dict[str, Integers] = field(default_factory=dict, init=False)  # ids by conditions, as far as remembered

    @classmethod
    def read(cls, database: Database, before: IndexState | None = None) -> IndexState:
        """Read the state of a database; vectors of the state `before` are not read again."""
        with database.reading() as connection:
            is_within = connection.in_transaction
            if not is_within:
                connection.execute("BEGIN")  # a consistent snapshot
            try:
                settings = database.settings()
                if before is None or before.settings["files"] != settings["files"]:
                    before = read_files(database.folder, settings)
                engine, context = before.engine, before.context
                state = cls(settings, database.columns(), engine, database.ids(), context)
                return state.with_vectors(*database.changes(len(engine), engine.dim))
            finally:
                if not is_within:
                    connection.execute("COMMIT")

    @property
    def next_id(self) -> int:
        return len(self.engine)

    @property
    def num_pending(self) -> int:
        return len(self.engine.added)

    @cached_property
    def is_present(self) -> Booleans:
        """Whether each id that was given is one of an image that can be found."""
        mask = np.zeros(self.next_id, dtype=bool)
        mask[self.ids] = True
        return mask

    def with_vectors(self, vectors: Floats, unrefined: Floats | None) -> IndexState:
        """The state with further vectors, whose images cannot be found yet."""
        if not len(vectors):
            return self
        context = self.context
        if context is not None and unrefined is not None:
            context = replace(context, engine=context.engine.with_added(unrefined))
        return replace(self, engine=self.engine.with_added(vectors), context=context)

    def present(self, ids: npt.ArrayLike) -> Integers:
        """The given ids that exist, without duplicates, ascending."""
        wanted = np.unique(np.array([each for each in np.asarray(ids).tolist() if 0 <= each < self.next_id], np.int64))
        return wanted[self.is_present[wanted]]

    def checked(self, ids: npt.ArrayLike) -> Integers:
        """Ids as int64 [n]; raises InputError if one is not that of an image that can be found."""
        wanted = checked_ids(ids)
        is_known = wanted < self.next_id
        is_known[is_known] = self.is_present[wanted[is_known]]
        if not is_known.all():
            raise unknown_id_error(wanted[~is_known][0])
        return wanted

    def ascending(self, ids: npt.ArrayLike) -> Integers:
        """The ids without duplicates, ascending; raises as :meth:`checked`."""
        given = self.checked(ids)
        return given if (np.diff(given) > 0).all() else np.unique(given)

    def checked_query_ids(self, query_ids: npt.ArrayLike | None, num_queries: int) -> Integers:
        """The ids that the queries have in the index, -1 where they have none."""
        if query_ids is None:
            return np.full(num_queries, -1)
        ids = np.asarray(query_ids)
        if self.context is None:
            raise InputError("query_ids are for the refinement of queries; this index is not refined")
        if ids.shape != (num_queries,) or ids.dtype.kind not in "iu" or ids.min(initial=0) < -1:
            raise InputError(
                f"query_ids are {ids.dtype} {list(ids.shape)}; "
                f"give an integer id for each of the {num_queries} queries, -1 for none"
            )
        self.checked(ids[ids >= 0])
        return ids.astype(np.int64)

    def have_vectors(self, ids: Integers, vectors: UnitVectors) -> Booleans:
        """Whether the images of some ids, -1 for none, have these vectors; False in a refined index."""
        is_same, rows = np.zeros(len(ids), dtype=bool), np.flatnonzero(ids >= 0)
        if self.context is None and len(rows):
            is_same[rows] = (self.engine.take(ids[rows]) == vectors.take(rows).cpu().numpy()).all(axis=1)
        return is_same

    def folded(self) -> IndexState:
        """The state with all vectors in engines without segments."""
        context = self.context and replace(self.context, engine=_folded(self.context.engine))
        return replace(self, engine=_folded(self.engine), context=context)

    def write_files(self, folder: Path, names: Names) -> Names:
        """Write files that hold all vectors, also those of changes; parts with names are written already."""
        state = self.folded()
        engine, context = state.engine.base, state.context
        written = {VECTORS: write_part(folder, VECTORS, [engine.to_bytes()]), **names}
        if isinstance(engine, RescoringEngine) and ORIGINALS not in names:
            written[ORIGINALS] = write_part(folder, ORIGINALS, engine.store.blocks())
        if context is not None:
            written[CONTEXT] = write_part(folder, CONTEXT, [context.engine.base.to_bytes()])
        return written


def _folded(segments: SegmentedEngine) -> SegmentedEngine:
    base, added = segments.base, segments.added
    if not len(added):
        return segments
    copied: Engine
    if isinstance(base, RescoringEngine):
        codes = read_codes(base.kind, base.codes.to_bytes())
        copied = RescoringEngine(codes, base.store.copied(), base.rescore)
    else:
        copied = read_codes(base.kind, base.to_bytes())
    copied.add(UnitVectors.of_units(added, "vector"))
    return SegmentedEngine(copied)


def read_files(folder: Path | None, settings: Mapping[str, Any]) -> IndexState:
    """The vectors in the files that the settings name, without images."""
    assert folder is not None
    names, dim = settings["files"], settings["dim"]
    codes = read_codes(settings["kind"], read_part(folder, names, VECTORS))
    engine: Engine = codes
    if ORIGINALS in names:
        engine = RescoringEngine(codes, open_originals(folder, names, dim), settings["rescore"])
    context = None
    if CONTEXT in names:
        unrefined = SegmentedEngine(read_codes("exact", read_part(folder, names, CONTEXT)))
        context = RefinerContext(unrefined, settings["refiner_fingerprint"])
    return IndexState(settings, {}, SegmentedEngine(engine), np.empty(0, np.int64), context)


def half_blocks(vectors: UnitVectors) -> Any:
    """Yield the bytes of vectors as float16, for a file."""
    for start in range(0, len(vectors), BLOCK_ROWS):
        halves = vectors.block(start, min(start + BLOCK_ROWS, len(vectors))).half().cpu().numpy()
        yield halves.astype("<f2", copy=False).tobytes()
