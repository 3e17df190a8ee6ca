"""A new model for an old index: its images are embedded again while it is searched, then the vectors are swapped."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from vicinal.data.columns import COLUMN_FLAGS
from vicinal.data.embedding_shards import EmbeddingShards
from vicinal.data.shard_manifest import read_manifests
from vicinal.data.table_files import write_table
from vicinal.retrieval.index.database import TIMEOUT
from vicinal.retrieval.index.engines import SegmentedEngine
from vicinal.retrieval.index.generations import Generation
from vicinal.retrieval.index.index import Index
from vicinal.retrieval.index.index_state import delete_unused
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.remote.engine_url import is_engine_url
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.files import hold_lock, write_bytes
from vicinal.workflows.calibration_places import stored_calibration
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.shards import PART_SIZE, embed_shard
from vicinal.workflows.upgrade_comparison import GenerationComparison, compare_generations
from vicinal.workflows.upgrade_images import MAX_LAST, UpgradedImages, check_reader_before

if TYPE_CHECKING:
    from vicinal.models.refiner import ContextRefiner
    from vicinal.workflows.embedded_table import EmbeddedTable

FOLDER = ".upgrade"  # within the index: the embeddings so far


def upgrade_index(
    folder: str | Path,
    reader: EmbeddingReader,
    made_with: Mapping[str, str] | None = None,
    refiner: ContextRefiner | None = None,
    embeddings: EmbeddedTable | None = None,
    *,
    report: Callable[[GenerationComparison], object] = lambda comparison: None,
    timeout: float = TIMEOUT,
    part_size: int = PART_SIZE,
) -> None:
    """Give an index vectors of another model; ids and columns stay.

    Images are embedded into a folder of the index, part by part: an interrupted call goes on where it was. Meanwhile
    others search and change the index. The vectors are swapped in one transaction, which also embeds the last images
    that were added meanwhile. The old vectors are kept for :func:`roll_back`, in place of those before them. An index
    that stores local features gets those of the new model, computed in the same way.

    In a database the vectors are written beside the old ones, and the change of the facts of the index is the
    transaction.

    Args:
        folder: of the index, or its URL in a database.
        reader: how images become embeddings; with `on_error="skip"`, images that cannot be embedded leave the index.
        made_with: the equivalent flags of the command, which the index keeps.
        refiner: refines the embeddings; an index of refined embeddings needs one that was trained for the new model.
        embeddings: of the images by the new model, such as those of `vicinal embed --shard`; the reader embeds those
            that are not among them, and needs no model if there are none.
        report: is called with the comparison of both models before the vectors are swapped.
        timeout: seconds to wait while another process writes the index.
        part_size: number of images of a part.

    Raises:
        InputError: the index has these vectors already, the refiner is missing or for another model, images cannot be
            read, or another process upgrades the index; the index is unchanged then.
        OSError: a file cannot be written.
    """
    index = Index.load(folder, timeout)
    fingerprint = _fingerprint(reader, embeddings)
    _check_new(index, folder, fingerprint, refiner)
    images = UpgradedImages(index, str(folder), reader, embeddings)
    own = {
        "model_fingerprint": fingerprint,
        "made_with": {
            **{name: value for name, value in index.made_with.items() if name in COLUMN_FLAGS},
            **(made_with or {}),
        },
        "calibration": _calibration(made_with or {}, fingerprint, refiner),
    }
    if not isinstance(index, Index):
        from vicinal.workflows.upgrade_remote import upgrade_remote

        with index:
            return upgrade_remote(index, images, own, report)
    with _work(images, part_size) as work:
        work.catch_up()
        missing = work.missing()
        num_vectors = int(missing.min(initial=index.state.current().next_id))
        ids = index.state.current().ids
        ids = np.setdiff1d(ids[ids < num_vectors], work.images.left_out)
        if not len(ids):
            raise InputError(f"{folder} has no image that can be embedded; it is unchanged")
        settings = {**index.state.current().settings, **own, "local_features": work.learn_local_features()}
        images.fill_local_features(settings["local_features"])
        generation = Generation.build(Path(folder), settings, work.vectors(num_vectors), ids, refiner)
        old, new = (partial(_search, engine, ids) for engine in (index.state.current().engine, generation.engine))
        report(compare_generations(index, ids, old, new))
        _switch(index, generation, work, refiner)


def roll_back(
    folder: str | Path,
    reader_for: Callable[[Mapping[str, str]], EmbeddingReader | None] = lambda made_with: None,
    refiner_for: Callable[[Mapping[str, str]], ContextRefiner | None] = lambda made_with: None,
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Return to the vectors that an index had before it was upgraded; calling it again returns to the newer ones.

    Images that were deleted since stay deleted, and changed columns stay changed. Images that were added since are
    embedded by the model of the restored vectors.

    Args:
        folder: of the index, or its URL in a database.
        reader_for: returns the reader of the restored vectors, given their flags; it is called if images were added
            since. None: it is not known.
        refiner_for: returns the refiner of the restored vectors in the same way, if they were refined.
        timeout: as for :func:`upgrade_index`.

    Raises:
        InputError: the index was never upgraded, or images were added since that cannot be embedded by the previous
            model; the index is unchanged then.
        OSError: a file cannot be written.
    """
    index = Index.load(folder, timeout)
    if not isinstance(index, Index):
        from vicinal.workflows.upgrade_remote import roll_back_remote

        with index:
            return roll_back_remote(index, reader_for)
    generation = Generation.before(index.state.database)
    added = index.state.current().ids
    added = added[added >= len(generation.engine)]
    reader, refiner = check_reader_before(index, folder, added, generation.settings, reader_for), None
    if generation.context is not None and len(added):
        refiner, refined_by = refiner_for(generation.settings["made_with"]), generation.context.refiner_fingerprint
        if refiner is None or refiner.fingerprint() != refined_by:
            raise InputError(f"{folder}: the previous generation is refined by {refined_by}; give it with --refiner")
    images = UpgradedImages(index, str(folder), reader or EmbeddingReader())
    with _work(images, PART_SIZE, covered=len(generation.engine)) as work:
        work.catch_up()
        if reader is not None:
            images.fill_local_features(generation.settings.get("local_features"))
        _switch(index, generation, work, refiner)


def _fingerprint(reader: EmbeddingReader, embeddings: EmbeddedTable | None) -> str | None:
    """Identifies the new model; raises InputError if the given embeddings are of an unknown or another model."""
    if embeddings is None:
        return reader.fingerprint
    found = embeddings.fingerprint
    if found is None or not embeddings.table.has("path"):
        what = "model made them" if found is None else "images they are of"
        raise InputError(f"the embeddings do not say which {what}; make them with `vicinal embed`")
    if reader.model is not None and reader.fingerprint != found:
        raise InputError(f"the embeddings are of the model {found}, not of {reader.fingerprint}")
    return found


def _check_new(index: ImageIndex, folder: str | Path, fingerprint: str | None, refiner: ContextRefiner | None) -> None:
    """Raise InputError if an index cannot have embeddings of a model and a refiner, or has them already."""
    if refiner is None and index.refiner_fingerprint is not None:
        raise InputError(
            f"{folder} holds refined embeddings, and its refiner is for its model; give one for the new model with "
            "--refiner (`vicinal refine` trains it), or build the index again"
        )
    if refiner is not None:
        if is_engine_url(folder):
            raise InputError(
                f"an index of refined embeddings is kept in a folder, not at {folder}; leave out --refiner"
            )
        if index.local_settings is not None:
            raise InputError("an index of refined embeddings is not re-ranked by local features; leave out --refiner")
        refiner.check_model(fingerprint)
    refined_by = None if refiner is None else refiner.fingerprint()
    if (fingerprint, refined_by) == (index.model_fingerprint, index.refiner_fingerprint):
        raise InputError(f"{folder} already holds embeddings of the model {fingerprint}; give another")


def _calibration(made_with: Mapping[str, str], model: str | None, refiner: ContextRefiner | None) -> object:
    """The calibration that is kept with the new model, as values of JSON."""
    fingerprint = model if refiner is None else f"{model}+{refiner.fingerprint()}"
    found = stored_calibration(made_with["model"], fingerprint) if "model" in made_with else None
    return None if found is None else found.to_dict()


def _search(engine: SegmentedEngine, among: Integers, queries: Integers, k: int) -> Integers:
    """The ids of the neighbors of images by their vectors, int64 [n, k]."""
    return engine.search(UnitVectors(engine.take(queries), "vector"), k, among).ids


def _switch(index: Index, generation: Generation, work: _Work, refiner: ContextRefiner | None) -> None:
    """Replace the current generation, adding the images that came meanwhile, in one transaction."""
    state, before = index.state, index.state.database.settings().get("previous")
    with index.transaction():
        work.embed_here(work.missing())
        gone = np.intersect1d(work.images.left_out, state.current().ids)
        all_ids, next_id = np.setdiff1d(state.current().ids, gone), state.current().next_id
        ids = all_ids[all_ids >= len(generation.engine)]
        vectors = work.vectors(next_id, len(generation.engine))[ids - len(generation.engine)]
        extended = generation.extended(next_id, ids, vectors, all_ids, refiner)
        state.switch(generation.settings, extended.engine, extended.context)
        index.delete(gone)
    if len(gone):
        log(f"{len(gone):,} images that cannot be embedded were removed; a rollback does not restore them")
    if before is not None:
        delete_unused(state.database, work.folder.parent, before["files"])
    log(f"{work.folder.parent} holds embeddings of {generation.settings['model_fingerprint']} now")
    if work.images.reader.model is not None:
        work.images.fill_local_features(generation.settings.get("local_features"))  # of the last images


@contextmanager
def _work(images: UpgradedImages, part_size: int, covered: int = 0) -> Iterator[_Work]:
    """The embeddings so far for another generation; they are deleted when the block has succeeded."""
    place = Path(images.place)
    folder = place / FOLDER
    folder.mkdir(exist_ok=True)
    with hold_lock(folder / ".lock", 0, f"upgrade the index {place}"):
        work = _Work(images, folder, part_size, covered)
        yield work
        shutil.rmtree(work._round(0).parent, ignore_errors=True)


@dataclass
class _Work:
    """The images of an index that are embedded again, in rounds: each embeds the images that were missing before it."""

    images: UpgradedImages
    folder: Path  # for the rounds of all models
    part_size: int
    covered: int  # images of ids below it need not be embedded
    _rounds: list[EmbeddingShards] = field(default_factory=list)
    _last: list[tuple[Integers, Floats]] = field(default_factory=list)  # embedded within the transaction
    _stored: tuple[Integers, Integers] = field(default_factory=lambda: (np.empty(0, np.int64), np.empty(0, np.int64)))
    _done: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def index(self) -> Index:
        return cast("Index", self.images.index)

    def catch_up(self) -> None:
        """Embed the images of the index, except a few that are added meanwhile; those of an interrupted call first."""
        stop, ids = self.index.state.current().next_id, self.missing()
        rows = self.images.stored_rows(ids)
        self._stored = ids[rows >= 0], rows[rows >= 0]
        self._done = self._stored[0]
        while len(missing := self.missing()) > MAX_LAST or missing.min(initial=stop) < stop:
            table = self._round(len(self._rounds)) / "images.parquet"
            if not table.exists():
                frame = self.images.frame(missing)
                if not len(frame):
                    continue
                table.parent.mkdir(parents=True, exist_ok=True)
                write_table(table, frame)
            self._embed(table)

    def missing(self) -> Integers:
        """The ids of images that are not embedded yet, ascending."""
        ids = self.index.state.current().ids
        return np.setdiff1d(ids[ids >= self.covered], np.concatenate([self._done, self.images.left_out]))

    def vectors(self, stop: int, start: int = 0) -> Floats:
        """The vectors of the ids from `start` to `stop` in a temporary file, zero for ids without one."""
        dim = next((each.dim for each in self._rounds if each.num_embeddings), 0)
        dim = dim or next((vectors.shape[1] for _, vectors in self._last), 1)
        dim = dim if self.images.stored is None else self.images.stored.vectors.shape[1]
        file = self._round(0).parent / f"vectors-{start}.npy"
        file.parent.mkdir(exist_ok=True)
        found = np.lib.format.open_memmap(file, "w+", np.float32, (max(stop - start, 1), dim))
        for ids, vectors in [*self._parts(), *self._last]:
            is_wanted = (ids >= start) & (ids < stop)
            found[ids[is_wanted] - start] = vectors[is_wanted]
        return found[: stop - start]

    def embed_here(self, ids: Integers) -> None:
        found, vectors = self.images.embed(ids)
        if len(found):
            self._last.append((found, vectors))
            self._done = np.union1d(self._done, found)

    def learn_local_features(self) -> dict[str, Any] | None:
        """As :meth:`UpgradedImages.learn_local_features`, once: an interrupted call did it already."""
        file = self._round(0).parent / "local_features.json"
        if self.index.local_settings is not None and not file.exists():
            write_bytes(file, json.dumps(self.images.learn_local_features(secrets.token_hex(8))).encode())
        settings: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        return settings

    def _parts(self) -> Iterator[tuple[Integers, Floats]]:
        ids, rows = self._stored
        for start in range(0, len(ids), self.part_size):
            assert self.images.stored is not None
            block = slice(start, start + self.part_size)
            yield ids[block], self.images.stored.vectors[rows[block]]
        for each in self._rounds:
            for vectors, frame in each.parts():
                yield frame["id"].to_numpy(np.int64), vectors

    def _round(self, number: int) -> Path:
        build = self.index.state.current().settings.get("build")
        text = f"{_fingerprint(self.images.reader, self.images.stored)} {self.images.reader.used_precision} {build}"
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:16] / str(number)

    def _embed(self, table: Path) -> None:
        """Embed a round, or the rest of it after an interrupted call."""
        shards, reader = table.parent / "shards", replace(self.images.reader, on_error="skip")  # refused below
        is_complete = any(each.is_complete for each in read_manifests(shards))
        manifest = embed_shard(reader, str(table), shards, 1, 1, part_size=self.part_size)
        ids = pd.read_parquet(table, columns=["id"])["id"].to_numpy(np.int64)
        unreadable = ids[sorted(manifest.unreadable)]
        self._rounds.append(EmbeddingShards(shards, (manifest,)))
        self._done = np.union1d(self._done, np.setdiff1d(ids, unreadable))
        if not is_complete:  # else they were refused before, and are tried once more
            self.images.refuse(np.intersect1d(unreadable, self.index.state.current().ids), "cannot be read")
