"""An old model and a new one on the same images: adapters between them, and what an upgrade without embedding loses."""

from __future__ import annotations

from collections.abc import Mapping

from vicinal.evaluation import ResultsTable, compare_models, evaluate_across, upgrade_warnings
from vicinal.retrieval.adapter import LinearAdapter, Method
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.evaluate import EvaluatedSource, check_same_images, resampling_of
from vicinal.workflows.settings import EvaluationSettings


def learn_adapter(
    source: EmbeddedTable, target: EmbeddedTable, method: Method = "procrustes", alpha: float = 1.0
) -> LinearAdapter:
    """Learn a linear map between the embeddings of the same images by two models, which the adapter names."""
    check_same_images(source.table, target.table, "the two embeddings")
    models = source.fingerprint, target.fingerprint
    return LinearAdapter.fit(source.vectors, target.vectors, method, alpha, models)


def compare_across(
    sources: Mapping[str, EmbeddedTable],
    settings: EvaluationSettings,
    adapter: LinearAdapter | None = None,
    tolerance: float = 0.01,
) -> tuple[ResultsTable, list[str]]:
    """Evaluate an old and a new model, and queries of the new one against the gallery of the old one.

    The adapter maps embeddings of either model to the other. Returns the results by query side/gallery side, compared
    with `old/old`; and the messages of :func:`~vicinal.evaluation.upgrade_warnings`.
    """
    if len(sources) != 2:
        raise InputError(f"{len(sources)} sources; give the embeddings of an old model and of a new one")
    (old_name, old), (new_name, new) = sources.items()
    check_same_images(old.table, new.table, f"{new_name} against {old_name}")
    if settings.protocol_of(old_name) != "standard" or settings.hierarchy:
        raise InputError("evaluation across models needs the standard protocol and no hierarchy; leave them out")
    if adapter is not None:
        maps_old = len(adapter.matrix) == old.vectors.shape[1]
        adapter.check_model((old if maps_old else new).fingerprint)
    found = evaluate_across(
        old.vectors, new.vectors, old.table, adapter, settings.recall_at, metrics=settings.metrics or ()
    )
    resampling = resampling_of(EvaluatedSource(old_name, old.table, next(iter(found.values()))), settings)
    warnings = upgrade_warnings(found, old.table, tolerance, resampling)
    return compare_models(found, old.table, resampling), warnings
