"""Generations of an index in a folder: vectors of different models for the same images, of which one is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.retrieval.index.database import Database
from vicinal.retrieval.index.engines import SegmentedEngine, create_engine
from vicinal.retrieval.index.index_state import VECTORS, read_files, write_part
from vicinal.retrieval.index.kinds import DEFAULT_RESCORE
from vicinal.retrieval.index.shared_state import fill_engine
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

OWN = ("kind", "dim", "rescore", "files", "model_fingerprint", "made_with", "calibration")
"""The settings that every generation has of its own."""


@dataclass(frozen=True)
class Generation:
    """Vectors that may take the place of those of an index.

    Args:
        settings: those of `OWN`.
        engine: one vector per id; those of deleted images are never found.
    """

    settings: Mapping[str, Any]
    engine: SegmentedEngine

    @classmethod
    def build(cls, folder: Path, settings: Mapping[str, Any], vectors: Floats, ids: Integers) -> Generation:
        """Build the search structure and write its files, which no database names yet.

        Args:
            folder: of the index.
            settings: of the index, with the fingerprint and flags of the model that made the vectors.
            vectors: float [n, dim], one per id.
            ids: int64 [m], those of images; the others are not learned from.

        Raises:
            InputError: there are too few vectors for `ivfpq`, or one contains NaN or infinity.
            OSError: a file cannot be written.
        """
        unit, kind = UnitVectors(vectors, "vector"), settings["kind"]
        rescore = (settings.get("rescore") or 0) if kind in DEFAULT_RESCORE else None
        engine = create_engine(kind, UnitVectors(vectors, "vector", rows=ids), rescore)
        names = fill_engine(engine, unit, folder)
        names[VECTORS] = write_part(folder, VECTORS, [engine.to_bytes()])
        own = {name: settings.get(name) for name in OWN}
        return cls({**own, "dim": engine.dim, "files": names}, SegmentedEngine(engine))

    @classmethod
    def before(cls, database: Database) -> Generation:
        """The generation that was searched before the last switch.

        Raises:
            InputError: there is none.
        """
        previous = database.settings().get("previous")
        if previous is None:
            raise InputError(f"{database.folder} has no generation before this one: it was never upgraded")
        engine = read_files(database.folder, previous).engine
        added, _ = database.changes(len(engine), engine.dim, "previous_changes")
        return cls(previous, engine.with_added(added))

    def extended(self, next_id: int, ids: Integers, vectors: Floats) -> SegmentedEngine:
        """The vectors of all ids below `next_id`, with those of images that were added since.

        Args:
            next_id: of the index.
            ids: int64 [n], those of images that were added since, ascending.
            vectors: float [n, dim], theirs.
        """
        added = np.zeros((next_id - len(self.engine), self.engine.dim), np.float32)
        if len(ids):
            added[ids - len(self.engine)] = UnitVectors(vectors, "vector").block(0, len(ids)).cpu().numpy()
        return self.engine.with_added(added)
