"""From the command's arguments to what they mean: sources, models, methods, and what is measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from vicinal.cli_arguments import RERANK_OPTIONS, RERANKINGS
from vicinal.console import log
from vicinal.errors import InputError

Arguments = argparse.Namespace


def reranking(arguments: Arguments) -> Any:
    """The method of re-ranking that was asked for, None if none was."""
    from vicinal.retrieval import (
        ContextualReranking,
        DatabaseAugmentation,
        NeighborAverage,
        QueryExpansion,
        ReciprocalReranking,
    )

    given = {name: getattr(arguments, f"rerank.{name}") for name in RERANK_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.rerank is None:
        if given:
            raise InputError(f"--rerank.{next(iter(given))} says how to re-rank; give --rerank too")
        return None
    methods: tuple[Any, ...] = (
        ContextualReranking,
        ReciprocalReranking,
        QueryExpansion,
        DatabaseAugmentation,
        NeighborAverage,
    )
    method = dict(zip(RERANKINGS, methods, strict=True))[arguments.rerank]
    known = [field.name for field in fields(method)]
    for name in given:
        if name not in known:
            raise InputError(f"--rerank.{name} is no option of {arguments.rerank}; its options: {', '.join(known)}")
    return method(**given)


def refiner(arguments: Arguments) -> Any:
    """The refiner that was asked for, None if none was."""
    if getattr(arguments, "context", None) and arguments.refiner is None:
        raise InputError("--context says where a refiner looks for the nearest; give --refiner too")
    if arguments.refiner is None:
        return None
    from vicinal.sources import load_refiner, usable_device

    return load_refiner(arguments.refiner).to(usable_device(arguments.device))


def method(arguments: Arguments) -> Callable[[Any], Any] | None:
    """What makes the re-ranking or refinement that was asked for, of some embeddings; None if none was."""
    second_look, model = reranking(arguments), refiner(arguments)
    if model is not None:
        return partial(refinement, model, context=arguments.context, reranking=second_look)
    return None if second_look is None else lambda _: second_look


def refinement(refiner: Any, embedded: Any, context: Any, reranking: Any) -> Any:
    """Refinement of these embeddings, and re-ranking after it where that was asked for."""
    from vicinal.retrieval import InTurn, Refinement

    check_refiner(refiner, embedded)
    refinement = Refinement(refiner, context or "everything")
    return refinement if reranking is None else InTurn(refinement, reranking)


def check_models(index: Any, refiner: Any, embedded: Any) -> None:
    """Refuse embeddings of another model than the index holds or the refiner was trained for."""
    index.check_model(embedded.fingerprint)
    if refiner is not None:
        check_refiner(refiner, embedded)


def check_refiner(refiner: Any, embedded: Any) -> None:
    """Refuse embeddings of another model than the refiner was trained for; tell where nobody knows."""
    refiner.check_model(embedded.fingerprint)
    if embedded.fingerprint is None and refiner.model_fingerprint is not None:
        known = f"the refiner is for those of {refiner.model_fingerprint}"
        log(f"{embedded.source} does not say what model made its embeddings; {known}")


def refined(refiner: Any, embedded: Any) -> tuple[Any, str | None]:
    """Refined embeddings, and the fingerprint of what made them: of model and refiner together."""
    from vicinal.retrieval import refine

    check_refiner(refiner, embedded)
    model = embedded.fingerprint
    return refine(refiner, embedded.vectors), None if model is None else f"{model}+{refiner.fingerprint()}"


def reading(arguments: Arguments) -> Any:
    """How images become embeddings."""
    from vicinal.sources import Reading

    names = ("model", "root", "batch", "workers", "precision", "device", "on_error", "longest")
    scales = None if arguments.scales is None else tuple(arguments.scales)
    whitening = getattr(arguments, "whitening", None)
    return Reading(**{name: getattr(arguments, name) for name in names}, scales=scales, whitening=whitening)


def sources(arguments: Arguments) -> dict[str, Any]:
    """Name -> embeddings of every source that was named, or of the files given in its place."""
    from vicinal.sources import is_embeddings

    how, names, split = replace(reading(arguments), only_evaluated=True), arguments.sources, arguments.split
    if arguments.embeddings or arguments.labels:
        if not (arguments.embeddings and arguments.labels):
            raise InputError("--embeddings and --labels go together: a file of vectors, and one of their labels")
        if names or arguments.images:
            raise InputError("--embeddings and --labels stand in the place of a source; leave out the source")
        return {arguments.embeddings: how.label(arguments.embeddings, arguments.labels, split)}
    if not names:
        raise InputError(
            "nothing to measure: name a source (before options that take several values), "
            "or give --embeddings and --labels"
        )
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is named twice; name every source once")
    if arguments.images is None:
        return {name: how.embed(name, split) for name in names}
    if arguments.model is not None:
        raise InputError("with --images the sources are the models; leave out --model")
    if is_embeddings(arguments.images):
        raise InputError(f"{arguments.images} holds embeddings, not images; measure it as a source")
    return {name: replace(how, model=name).embed(arguments.images, split) for name in names}


def check_evaluate(arguments: Arguments) -> None:
    """Refuse what cannot be had together, before anything is computed."""
    together, second_look = arguments.compare or arguments.average, arguments.rerank or arguments.refiner
    several = len(arguments.sources) > 1
    for given, hindered, message in (
        (together, not several, "--compare and --average are about several sources; name two or more"),
        (arguments.per_query, several or second_look, "--per-query is for one source as it ranks; name one, without "
         "--rerank and --refiner"),
        (arguments.by, together or second_look, "--by is for sources as they rank; leave out --compare, --average, "
         "--rerank and --refiner"),
        (arguments.clusters, second_look, "--clusters is about embeddings as they come; leave out --rerank, --refiner"),
        (arguments.intervals, arguments.average, "--average has intervals of its own; leave out --intervals"),
        (arguments.csv, several and second_look and not together, "--csv has no place for several sources before and "
         "after; add --compare, or name one"),
    ):  # fmt: skip
        if given and hindered:
            raise InputError(message)
    if arguments.per_query and not arguments.per_query.lower().endswith((".csv", ".parquet")):
        raise InputError(f"--per-query {arguments.per_query}: name a file ending in .csv or .parquet")


def check_labelled(sources: dict[str, Any]) -> None:
    """Refuse embeddings without labels, and tell where training classes are among what is measured."""
    for name, embedded in sources.items():
        table = embedded.table
        if not table.has("label") and not table.has("is_query"):
            raise InputError(f"{name} has no labels; give them with --embeddings {name} --labels FILE")
        if table.has("split") and "train" in table.splits and len(table.splits) > 1 and not table.has("is_query"):
            log(f"{name}: images of all splits are measured, those trained on too; --split test measures the test's")


def measuring(arguments: Arguments) -> Any:
    """What is measured, and by which protocol."""
    from vicinal.evaluating import Measuring, protocol_of

    names = ("recall_at", "hierarchy", "root", "intervals", "level", "draws", "seed")
    more = {name: getattr(arguments, name) for name in ("by", "clusters", "protocol") if hasattr(arguments, name)}
    if more.get("protocol") is None and arguments.images is not None:
        more["protocol"] = protocol_of(arguments.images)
    given = {name: getattr(arguments, name) for name in names}
    given["intervals"] = None if given["intervals"] == "none" else given["intervals"]
    return Measuring(**given, **more, metrics=tuple(arguments.metrics))
