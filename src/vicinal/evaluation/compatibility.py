"""Scores across two models: queries of a new model against gallery vectors of an old one, as they are or adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import paired_differences
from vicinal.evaluation.protocol import evaluate
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.scores import Array
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.adapter import LinearAdapter

OLD, CROSS, NEW, ADAPTED = "old/old", "new/old", "new/new", "new/adapted"
JUDGED = ("recall@1", "mAP@R")


def evaluate_across(
    old: Array,
    new: Array,
    table: Table,
    adapter: LinearAdapter | None = None,
    recall_at: Sequence[int] | None = None,
    *,
    metrics: Sequence[str] = (),
) -> dict[str, Evaluation]:
    """Evaluate a new model, an old one, and what queries of the new one find among gallery vectors of the old one.

    Args:
        old: float [n, d], embeddings of the table's images by the old model.
        new: float [n, e], by the new model.
        table: n rows, as for :func:`~vicinal.evaluation.evaluate`.
        adapter: maps vectors of the old model to the new one, or of the new model to the old one where only that fits.
        recall_at: as for :func:`~vicinal.evaluation.evaluate`.
        metrics: as for :func:`~vicinal.evaluation.evaluate`.

    Returns:
        The evaluations by query side/gallery side: `old/old`; `new/old`, if the dimensions are equal; `new/new`, which
        needs a gallery that is embedded anew; and `new/adapted`, if there is an adapter: with the gallery vectors
        mapped, or with the queries mapped where the adapter maps to the old model.

    Raises:
        InputError: as :func:`~vicinal.evaluation.evaluate`, or the adapter fits neither way.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.retrieval import LinearAdapter
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> old = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> new = old[:, ::-1]
        >>> found = evaluate_across(old, new, table, LinearAdapter.fit(old, new), recall_at=[1])
        >>> {name: each.metrics["recall@1"] for name, each in found.items()}
        {'old/old': 1.0, 'new/old': 0.0, 'new/new': 1.0, 'new/adapted': 1.0}
    """
    sides: dict[str, tuple[Array, Array]] = {OLD: (old, old)}
    if old.shape[1] == new.shape[1]:
        sides[CROSS] = (new, old)
    sides[NEW] = (new, new)
    if adapter is not None:
        sides[ADAPTED] = _adapted(old, new, adapter)
    return {
        name: evaluate(queries, table, recall_at, metrics=metrics, gallery_embeddings=gallery)
        for name, (queries, gallery) in sides.items()
    }


def _adapted(old: Array, new: Array, adapter: LinearAdapter) -> tuple[Array, Array]:
    """Queries and gallery; for square matrices, an adapter is taken to map the gallery."""
    shape = adapter.matrix.shape
    if shape == (old.shape[1], new.shape[1]):
        return new, adapter.apply(old)
    if shape == (new.shape[1], old.shape[1]):
        return adapter.apply(new), old
    raise InputError(
        f"the adapter maps {shape[0]} to {shape[1]} dimensions; the models have {old.shape[1]} (old) and "
        f"{new.shape[1]} (new)"
    )


def upgrade_warnings(
    evaluations: Mapping[str, Evaluation],
    table: Table | None,
    tolerance: float = 0.01,
    resampling: Resampling = DEFAULT_RESAMPLING,
) -> list[str]:
    """Tell where an upgrade without embedding anew loses more than a tolerance against embedding the gallery anew.

    Args:
        evaluations: of :func:`evaluate_across`; the upgrade is `new/adapted`, or `new/old` without an adapter.
        table: the evaluated table; it may be None when resampling queries.
        tolerance: the largest accepted loss of recall@1 and mAP@R, each from 0 to 1, such as 0.01 for one point.
        resampling: how the intervals of the losses are computed.

    Returns:
        One sentence per metric that loses more, and one per metric that is lower than before the upgrade; empty if the
        upgrade is good.

    Raises:
        InputError: the tolerance is not from 0 to 1, or there is no upgrade: no adapter, and the dimensions differ.
    """
    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance is {tolerance}; it must be from 0 to 1")
    upgrade = next((name for name in (ADAPTED, CROSS) if name in evaluations), None)
    if upgrade is None:
        raise InputError("the dimensions of old and new embeddings differ: queries of the new model need an adapter")
    warnings = []
    for base, words in ((NEW, "re-embedding the gallery"), (OLD, "keeping the old model")):
        differences = paired_differences(evaluations[base], evaluations[upgrade], table, resampling)
        for metric in [name for name in JUDGED if name in differences.index]:
            row = 100 * differences.loc[metric]
            if row["difference"] < -100 * (tolerance if base == NEW else 0):
                limit = f", more than the tolerance of {100 * tolerance:g} points" if base == NEW else ""
                bounds = f"[{-row['difference_high']:.2f}, {-row['difference_low']:.2f}]"
                warnings.append(
                    f"{upgrade} loses {-row['difference']:.2f} points {bounds} of {metric} against {words}{limit}"
                )
    return warnings
