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
    """Vectors that may replace those of an index; the settings are those of `OWN`."""

    settings: Mapping[str, Any]
    engine: SegmentedEngine  # one vector per id; those of deleted images are never found
    context: RefinerContext | None = None  # the unrefined vectors, of a generation of refined ones

    @classmethod
    def build(
        cls,
        folder: Path,
        settings: Mapping[str, Any],
        vectors: Floats,
        ids: Integers,
        refiner: ContextRefiner | None = None,
    ) -> Generation:
        """Build the search structure, learned from the vectors of `ids`, and write its still unnamed files."""
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
        """The generation that was searched before the last switch."""
        previous = database.settings().get("previous")
        if previous is None:
            raise InputError(f"{database.folder} has no previous generation: it was never upgraded")
        state = read_files(database.folder, previous)
        state = state.with_vectors(*database.changes(len(state.engine), state.engine.dim, "previous_changes"))
        return cls(previous, state.engine, state.context)

    def extended(
        self, next_id: int, ids: Integers, vectors: Floats, all_ids: Integers, refiner: ContextRefiner | None = None
    ) -> Generation:
        """The vectors of all ids below `next_id`, with those of the ascending ids that were added since."""
        start, added = len(self.engine), np.zeros((next_id - len(self.engine), self.engine.dim), np.float32)
        if len(ids):
            added[ids - start] = UnitVectors(vectors, "vector").block(0, len(ids)).cpu().numpy()
        context = self.context
        if context is not None:
            context = replace(context, engine=context.engine.with_added(added.copy()))
            if len(ids) and refiner is not None:
                refined = context.refine(UnitVectors(added[ids - start], "vector"), refiner, all_ids, query_ids=ids)
                added[ids - start] = refined.block(0, len(refined)).cpu().numpy()
        return replace(self, engine=self.engine.with_added(added), context=context)
