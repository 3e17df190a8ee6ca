"""Building the state of an index from all its vectors."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.database import Database
from vicinal.retrieval.index.index_state import IndexState, half_blocks
from vicinal.retrieval.index.interface import checked_vectors
from vicinal.retrieval.index.item_rows import ItemRows
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.index.rescoring import RescoringEngine, create_engine
from vicinal.retrieval.index.segmented_engine import SegmentedEngine
from vicinal.retrieval.index.shared_state import SharedState
from vicinal.retrieval.index.vector_files import ORIGINALS, Names, check_target, open_originals, write_part
from vicinal.retrieval.refinement import refine
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.errors import InputError


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
    """The state of a new index, in memory or in a folder; see :meth:`Index.build <vicinal.Index.build>`.

    Args:
        vectors: float [n, dim].
        table: n rows.
        kind: of the index, or `auto`.
        refiner: refines every vector first; None: they stay as they are.
        rescore: candidates per neighbor; None: the default of the kind.
        settings: `model_fingerprint` and `made_with`.
        folder: of the index; None: it is in memory.
        overwrite: whether to replace an index that is there.
        timeout: seconds to wait while another process writes the folder.
    """
    if folder is not None:
        check_target(folder)
        if Database.exists(folder) and not overwrite:
            raise InputError(f"{folder} is an index already; add to it, or overwrite it")
    unit = searched = checked_vectors(vectors, table)
    if refiner is not None:
        refiner.check_model(settings["model_fingerprint"])
        searched = UnitVectors(refine(refiner, vectors), "refined embedding")
    database, ids, names, context = Database(None), np.arange(len(unit), dtype=np.int64), Names(), None
    with database.transaction():
        database.create()
        columns = ItemRows(database).insert(ids, table)
        engine = create_engine(kind, searched, rescore)
        if folder is not None and isinstance(engine, RescoringEngine):
            names[ORIGINALS] = write_part(folder, ORIGINALS, half_blocks(searched))
            engine.codes.add(searched)
            engine.store = open_originals(folder, names, engine.dim)
        else:
            engine.add(searched)
        if refiner is not None:
            context = RefinerContext.create(engine.kind, unit, refiner)
        settings = {
            "kind": engine.kind, "dim": engine.dim, "files": {}, "revision": secrets.token_hex(8),
            "rescore": engine.rescore if isinstance(engine, RescoringEngine) else None, **settings,
            "refiner_fingerprint": None if context is None else context.refiner_fingerprint,
        }  # fmt: skip
        database.change_settings(settings)
    state = SharedState(database, IndexState(settings, columns, SegmentedEngine(engine), ids, context))
    if folder is None:
        return state
    state.copy_to(folder, timeout, names)
    return SharedState(Database(folder, timeout))
