"""Generations of an index in a folder: vectors of different models for the same images, of which one is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.database import Database
from vicinal.retrieval.index.engines import SegmentedEngine, create_engine
from vicinal.retrieval.index.index_state import CONTEXT, VECTORS, RefinerContext, read_files, write_part
from vicinal.retrieval.index.kinds import DEFAULT_RESCORE
from vicinal.retrieval.index.shared_state import fill_engine
from vicinal.retrieval.refinement import refine
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

OWN = (
    "kind", "dim", "rescore", "files", "model_fingerprint", "refiner_fingerprint", "made_with", "calibration",
    "local_features",
)  # fmt: skip
"""The settings that every generation has of its own."""


@dataclass(frozen=True)
class Generation:
    """Vectors that may take the place of those of an index.

    Args:
        settings: those of `OWN`.
        engine: one vector per id; those of deleted images are never found.
        context: the unrefined vectors, of a generation of refined ones.
    """

    settings: Mapping[str, Any]
    engine: SegmentedEngine
    context: RefinerContext | None = None

    @classmethod
    def build(
        cls,
        folder: Path,
        settings: Mapping[str, Any],
        vectors: Floats,
        ids: Integers,
        refiner: ContextRefiner | None = None,
    ) -> Generation:
        """Build the search structure and write its files, which no database names yet.

        Args:
            folder: of the index.
            settings: of the index, with the fingerprint and flags of the model that made the vectors.
            vectors: float [n, dim], one per id.
            ids: int64 [m], those of images; the others are not learned from.
            refiner: refines the vector of each image by its nearest among the others.

        Raises:
            InputError: there are too few vectors for `ivfpq`, one contains NaN or infinity, or the refiner has another
                dimension.
            OSError: a file cannot be written.
        """
        kind, searched, context = settings["kind"], vectors, None
        if refiner is not None:
            searched = np.zeros(vectors.shape, np.float32)
            searched[ids] = refine(refiner, vectors[ids])
            context = RefinerContext.create(kind, UnitVectors(vectors, "vector"), refiner)
        rescore = (settings.get("rescore") or 0) if kind in DEFAULT_RESCORE else None
        engine = create_engine(kind, UnitVectors(searched, "vector", rows=ids), rescore)
        names = fill_engine(engine, UnitVectors(searched, "vector"), folder)
        names[VECTORS] = write_part(folder, VECTORS, [engine.to_bytes()])
        if context is not None:
            names[CONTEXT] = write_part(folder, CONTEXT, [context.engine.base.to_bytes()])
        own = {name: settings.get(name) for name in OWN}
        refined_by = None if context is None else context.refiner_fingerprint
        own |= {"dim": engine.dim, "files": names, "refiner_fingerprint": refined_by}
        return cls(own, SegmentedEngine(engine), context)

    @classmethod
    def before(cls, database: Database) -> Generation:
        """The generation that was searched before the last switch.

        Raises:
            InputError: there is none.
        """
        previous = database.settings().get("previous")
        if previous is None:
            raise InputError(f"{database.folder} has no generation before this one: it was never upgraded")
        state = read_files(database.folder, previous)
        state = state.with_vectors(*database.changes(len(state.engine), state.engine.dim, "previous_changes"))
        return cls(previous, state.engine, state.context)

    def extended(
        self, next_id: int, ids: Integers, vectors: Floats, all_ids: Integers, refiner: ContextRefiner | None = None
    ) -> Generation:
        """The vectors of all ids below `next_id`, with those of images that were added since.

        Args:
            next_id: of the index.
            ids: int64 [n], those of images that were added since, ascending.
            vectors: float [n, dim], theirs.
            all_ids: int64 [m], those of all images, among which a refiner finds neighbors.
            refiner: that of a generation of refined vectors, if any image was added since.
        """
        start, added = len(self.engine), np.zeros((next_id - len(self.engine), self.engine.dim), np.float32)
        if len(ids):
            added[ids - start] = UnitVectors(vectors, "vector").block(0, len(ids)).cpu().numpy()
        context = self.context
        if context is not None:
            context = RefinerContext(context.engine.with_added(added.copy()), context.refiner_fingerprint)
            if len(ids) and refiner is not None:
                refined = context.refine(UnitVectors(added[ids - start], "vector"), refiner, all_ids, query_ids=ids)
                added[ids - start] = refined.block(0, len(refined)).cpu().numpy()
        return replace(self, engine=self.engine.with_added(added), context=context)
