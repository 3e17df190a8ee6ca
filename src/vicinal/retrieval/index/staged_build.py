"""Building an index of codes in batches that are saved, so that an interrupted build goes on where it was.

Until the index is complete, a folder `.building` within its folder holds the trained quantizers, the codes and the
float16 vectors of the batches that are done, and a JSON file that says how many these are. It is replaced after each
batch, when the batch is on the disk; what a killed process wrote after that is written again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import faiss
import numpy as np
from typing_extensions import Self

from vicinal.retrieval.index.build_progress import LOCK, STAGE, BuildProgress, delete_stale_stage
from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.engines.half_store import HalfStore
from vicinal.retrieval.index.engines.rescoring import (
    DEFAULT_RESCORE,
    CodesEngine,
    Engine,
    RescoringEngine,
    checked_rescore,
    create_codes,
    read_codes,
)
from vicinal.retrieval.index.storage import adopt_originals
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.locks import hold_lock

BATCH_ROWS = 16 * BLOCK_ROWS  # vectors between two saves
VERSION = 1  # of what is in the folder
TRAINED, CODES, ORIGINALS = "trained", "codes", "originals"


class StagedBuild:
    """The build of an index of codes, which keeps its progress in the folder of the index.

    One batch of vectors is in memory at a time, and at the end all codes. The result is, bit for bit, that of an
    engine to which all vectors are added at once.

    Args:
        folder: of the index.
        vectors: [n, dim], such as those of a mapped file.
        kind: of the codes.
        rescore: as for :func:`create_engine`.

    Raises:
        InputError: the kind has no codes, or `rescore` is impossible.

    Example:
        >>> import tempfile
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> with tempfile.TemporaryDirectory() as folder, StagedBuild.open(folder, vectors, "binary", None) as build:
        ...     build.encode()
        ...     engine = build.engine()
        >>> engine.search(vectors.subset(np.array([1])), 1, active_ids=np.arange(3)).ids
        array([[1]])
    """

    def __init__(self, folder: str | Path, vectors: UnitVectors, kind: str, rescore: int | None) -> None:
        if kind not in DEFAULT_RESCORE:
            raise InputError(f"an index that is built in batches is {', '.join(DEFAULT_RESCORE)}, not {kind}")
        self.rescore = checked_rescore(kind, rescore)
        self._folder, self._stage = Path(folder), Path(folder, STAGE)
        self._vectors, self._kind = vectors, cast(Kind, kind)

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path, vectors: UnitVectors, kind: str, rescore: int | None) -> Iterator[Self]:
        """A build for a block; no other process builds in the folder meanwhile. After the block nothing is left of it.

        If the block fails, all batches that were saved stay.

        Raises:
            InputError: another process builds an index in the folder, or as for the class.
        """
        build = cls(folder, vectors, kind, rescore)
        delete_stale_stage(build._folder)
        is_new = not build._folder.exists() or not any(build._folder.iterdir())
        build._stage.mkdir(parents=True, exist_ok=True)
        with hold_lock(build._stage / LOCK, 0, f"build the index {folder}"):
            try:
                yield build
                BuildProgress.delete(build._stage)
            finally:
                if BuildProgress.load(build._stage) is None:  # it is complete, or nothing was saved
                    shutil.rmtree(build._stage)
                if is_new and not any(build._folder.iterdir()):
                    build._folder.rmdir()

    def encode(self) -> None:
        """Encode all vectors that are not encoded yet, batch by batch."""
        codes, progress = self._begun()
        total = len(self._vectors)
        with ExitStack() as stack:
            files = self._open_files(stack, codes, progress.done)
            starts = range(progress.done, total, BATCH_ROWS)
            for start in track(starts, "batches of vectors", len(starts)):
                stop = min(start + BATCH_ROWS, total)
                for first in range(start, stop, BLOCK_ROWS):
                    self._write(files, codes, self._block(first, min(first + BLOCK_ROWS, stop)))
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
                BuildProgress(progress.facts, total, stop).save(self._stage)

    def engine(self) -> Engine:
        """The engine of all vectors; the caller holds the lock of the index until the index is saved."""
        codes = self._trained()
        stored = np.memmap(self._stage / CODES, np.uint8, "r", shape=(len(self._vectors), codes.code_size))
        for start in range(0, len(stored), BLOCK_ROWS):
            codes.add_codes(stored[start : start + BLOCK_ROWS])
        if not self.rescore:
            return codes
        path = adopt_originals(self._stage / ORIGINALS, self._folder)
        with path.open("rb") as file:
            return RescoringEngine(codes, HalfStore.from_file(path, file, self._vectors.dim), self.rescore)

    def _begun(self) -> tuple[CodesEngine, BuildProgress]:
        """The trained engine, and how far the build is; one with other vectors or of another kind begins anew."""
        facts, total = self._facts(), len(self._vectors)
        before = BuildProgress.load(self._stage)
        if before is not None and before.facts == facts and self._is_there(before):
            log(f"{self._folder}: going on with the build of the index after {before.done:,} of {total:,} vectors")
            return self._trained(), before
        if total > BATCH_ROWS:
            log(f"{self._folder}: training on a sample of the {total:,} vectors, which are then encoded in batches")
        codes = create_codes(self._kind, self._vectors)
        progress = BuildProgress(facts, total, done=0)
        BuildProgress.delete(self._stage)  # that of another build must not meet these quantizers
        write_bytes(self._stage / TRAINED, codes.to_bytes())
        progress.save(self._stage)
        return codes, progress

    def _facts(self) -> dict[str, Any]:
        """What determines the codes and what else is kept."""
        digest = hashlib.sha256()
        for start in range(0, len(self._vectors), BLOCK_ROWS):
            digest.update(self._block(start, start + BLOCK_ROWS).data)
        return {
            "version": VERSION,
            "faiss": faiss.__version__,
            "kind": self._kind,
            "keeps vectors": self.rescore > 0,
            "dim": self._vectors.dim,
            "sha256": digest.hexdigest(),
        }

    def _is_there(self, progress: BuildProgress) -> bool:
        """Whether the files of a build hold what its progress says."""
        try:
            widths = self._widths(self._trained())
        except (OSError, InputError):
            return False
        files = {self._stage / name: width * progress.done for name, width in widths.items()}
        return progress.done == 0 or all(file.is_file() and file.stat().st_size >= size for file, size in files.items())

    def _trained(self) -> CodesEngine:
        return read_codes(self._kind, (self._stage / TRAINED).read_bytes())

    def _widths(self, codes: CodesEngine) -> dict[str, int]:
        """The bytes per vector of each file."""
        return {CODES: codes.code_size} | ({ORIGINALS: 2 * self._vectors.dim} if self.rescore else {})

    def _open_files(self, stack: ExitStack, codes: CodesEngine, done: int) -> dict[str, BinaryIO]:
        """The files, without what a killed process wrote after its last save."""
        files: dict[str, BinaryIO] = {}
        for name, width in self._widths(codes).items():
            files[name] = stack.enter_context((self._stage / name).open("ab"))
            files[name].truncate(width * done)
        return files

    def _write(self, files: dict[str, BinaryIO], codes: CodesEngine, block: Floats) -> None:
        files[CODES].write(codes.encode(block).data)
        if ORIGINALS in files:
            files[ORIGINALS].write(block.astype("<f2").data)

    def _block(self, start: int, stop: int) -> Floats:
        return np.ascontiguousarray(self._vectors.block(start, stop).cpu().numpy())
