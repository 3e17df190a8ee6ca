"""The sources of `vicinal evaluate` and `vicinal report`: their flags, checks, embeddings and re-ranking."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, read_settings
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import Reranking
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.evaluate import MakeReranking
    from vicinal.workflows.settings import EvaluationSettings

VALIDATION = "val"  # the split on whose classes the weight of local features is chosen


def add_sources(parser: Parser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="source", help=f"{inputs.SOURCE}; with --images: a model, or --model"
    )
    parser.add_argument("--images", metavar="SOURCE", help=f"evaluate on these images: {inputs.IMAGES}. The sources "
                        "are then runs, model folders, models on the Hugging Face Hub, or untrained backbones, such as "
                        "timm/resnet50")  # fmt: skip
    parser.add_argument("--embeddings", metavar="FILE", help="instead of a source: a .npy or .parquet file, with "
                        "--labels")  # fmt: skip


def evaluation_settings(arguments: Arguments) -> EvaluationSettings:
    from vicinal.workflows.settings import EvaluationSettings

    intervals = None if arguments.intervals == "none" else arguments.intervals
    settings = read_settings(EvaluationSettings, arguments, intervals=intervals)
    if arguments.images is not None:
        return replace(settings, protocol=settings.protocol_of(arguments.images))
    return settings


def reranking_maker(arguments: Arguments) -> MakeReranking | None:
    """The function that makes the re-ranking and refinement of the flags for some embeddings, or None without any."""
    given = vars(arguments)
    if given.get("context") and arguments.refiner is None:
        raise InputError("--context is for a refiner; give --refiner too")
    reranking = inputs.read_reranking(arguments)
    refiner = inputs.load_refiner(arguments) if given.get("refiner") else None
    if refiner is not None:
        if arguments.rerank == "local":
            raise InputError("--rerank local is for embeddings that are not refined; leave out --refiner")
        return partial(_refinement, refiner, arguments.context or "everything", reranking)
    if arguments.rerank == "local":
        return _local_reranking(arguments)
    return None if reranking is None else lambda *_: reranking


def _local_reranking(arguments: Arguments) -> MakeReranking:
    """The function that re-ranks a source by local features, with a weight chosen on its split val if none is given."""
    from vicinal.workflows.local_features import with_local_features
    from vicinal.workflows.settings import LocalSettings
    from vicinal.workflows.source import Source

    for name in [arguments.images] if arguments.images is not None else arguments.sources or [arguments.embeddings]:
        if Source(name).is_stored:
            raise InputError(f"{name} holds embeddings; --rerank local needs the images too: name them with --images")
    method, settings = inputs.read_reranking(arguments), read_settings(LocalSettings, arguments, "local.")
    validation: dict[str, EmbeddedTable] = {}
    if getattr(arguments, "rerank.weight") is None:
        try:
            validation = embed_sources(argparse.Namespace(**{**vars(arguments), "split": VALIDATION}))
        except InputError as error:
            raise InputError(f"the weight of local features is chosen on the split {VALIDATION}: {error}; or give the "
                             "weight, such as --rerank.weight 0.5") from None  # fmt: skip
    return lambda name, embedded: with_local_features(method, embedded, settings, name, validation.get(name))


def _refinement(
    refiner: ContextRefiner, context: Literal["everything", "gallery"], reranking: Any, _: str, embedded: EmbeddedTable
) -> Reranking:
    from vicinal.retrieval import Refinement, SequentialReranking

    inputs.check_refiner(refiner, embedded)
    refinement = Refinement(refiner, context)
    return refinement if reranking is None else SequentialReranking(refinement, reranking)


def check_sources(arguments: Arguments) -> None:
    inputs.check_embedding(arguments)
    if arguments.images is not None and not arguments.sources and getattr(arguments, "model", None) is not None:
        arguments.sources, arguments.model = [arguments.model], None
    sources, model, labels = arguments.sources, getattr(arguments, "model", None), getattr(arguments, "labels", None)
    if arguments.embeddings:
        if not labels:
            raise InputError("--embeddings is a file of vectors; give their labels with --labels")
        if sources or arguments.images:
            raise InputError("--embeddings and --labels replace a source; leave out the source")
        return inputs.check_files(arguments.embeddings)
    if not sources:
        raise InputError("no source: name one (before flags that take several values), or give --embeddings, --labels")
    for name in sources:
        if sources.count(name) > 1:
            raise InputError(f"{name} is named twice; name every source once")
    if arguments.images is None:
        for name in sources:
            inputs.check_source(name)
    elif model is not None:
        raise InputError("with --images the sources are the models; leave out --model")
    else:
        for name in sources:
            inputs.check_model(name)
    inputs.check_source(arguments.images)


def embed_sources(arguments: Arguments, mapped: bool = False) -> dict[str, EmbeddedTable]:
    from vicinal.data.groups import with_groups
    from vicinal.workflows.embedding_reader import embed_several
    from vicinal.workflows.source import Source

    given = vars(arguments)
    measure = len(arguments.sources) > 1 and not given.get("average")
    reader = inputs.read_embedding(
        arguments, query_gallery_only=True, folder_on_error="raise", measure=measure, mapped=mapped
    )
    if arguments.images is not None and Source(arguments.images).kind == "embeddings":
        raise InputError(f"{arguments.images} holds embeddings, not images; name it as a source")
    names = [arguments.embeddings] if arguments.embeddings else arguments.sources
    keep = any(map(given.get, ("refiner", "open_set", "adapter"))) or given.get("rerank") == "local"
    sources = dict(embed_several(reader, names, arguments.split, images=arguments.images, keep_models=keep))
    for name, embedded in sources.items():
        _log_warnings(name, embedded.table)
        table = with_groups(embedded.table, arguments.group_pattern, arguments.group_minutes)
        sources[name] = replace(embedded, table=table)
    return sources


def _log_warnings(name: str, table: Table) -> None:
    from vicinal.evaluation import count_noisy_labels

    if table.has("split") and "train" in table.splits and len(table.splits) > 1 and not table.has("is_query"):
        log(f"{name}: images of all splits are evaluated, training images too; --split test evaluates the test images")
    if table.has("label") and len(table.classes) == 1:
        log(
            f"{name}: only one class ({str(table.classes[0])!r}, {len(table):,} images): every image is a match, "
            "so the scores tell nothing about the model"
        )
    num_noisy, num_labels = count_noisy_labels(table)
    if num_noisy:
        log(f"{name}: {num_noisy:,} of the {num_labels:,} evaluated labels were made noisy on purpose (noisy_label)")
