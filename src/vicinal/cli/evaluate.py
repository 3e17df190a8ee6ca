"""`vicinal evaluate` and `vicinal report`: metrics of embeddings or of pairs, as a table or as a page."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vicinal.cli import inputs
from vicinal.cli.compatibility import add_cross, check_cross, evaluate_cross
from vicinal.cli.flags import Arguments, Parser, add_settings, integer_from, print_result, read_settings
from vicinal.utils.console import is_main_process, log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import Reranking
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.evaluate import MakeReranking
    from vicinal.workflows.settings import EvaluationSettings

VALIDATION = "val"  # the split on whose classes the weight of local features is chosen
OTHERS = ("cross", "adapter", "tolerance", "compare", "average",
          "images", "embeddings", "labels", "intervals", "per_query", "rerank", "refiner",
          "csv", "group_by", "clusters", "open_set", "known_fraction", "calibration", "hierarchy", "metrics",
          "recall_at", "protocol", "devices",
          "checkpoint")  # fmt: skip


def add_evaluate(parser: Parser) -> None:
    from vicinal.workflows.settings import EvaluationSettings

    _add_sources(parser)
    combined = parser.add_mutually_exclusive_group()
    combined.add_argument("--compare", action="store_true", help="compare the sources with the first one, on the same "
                          "images: differences, their intervals, p-values, and what each model costs")  # fmt: skip
    combined.add_argument("--average", action="store_true", help="the sources are runs of one recipe, such as of "
                          "several seeds: mean, standard deviation and interval of each metric")  # fmt: skip
    add_settings(parser, EvaluationSettings, skip=("intervals", "root"))
    parser.add_argument(
        "--intervals", nargs="?", const="classes", choices=["classes", "queries"],
        help="bootstrap confidence intervals: resample classes (what --intervals alone means), which tells how the "
        "model performs on other classes, or queries. --compare always has them",
    )  # fmt: skip
    inputs.add_groups(parser)
    parser.add_argument("--per_query", metavar="FILE", help="write the metrics of every query, with its path and "
                        "label, to a .csv or .parquet file")  # fmt: skip
    parser.add_argument("--pairs", metavar="FILE", help="instead: tell which listed pairs are of one class. A .csv "
                        "file with the columns a, b (paths, or row numbers of embeddings), same (1 or 0) and perhaps "
                        "fold: accuracy over ten folds as in LFW, TAR at FAR. Without a source, --model embeds the "
                        "listed images")  # fmt: skip
    parser.add_argument(
        "--devices", type=integer_from(1), metavar="INT",
        help="number of processes that divide the rankings of stored embeddings; with torchrun or SLURM, of each node "
        "(default: 1, or as many as they started). The results are those of one process",
    )  # fmt: skip
    add_cross(parser)
    refinement = parser.add_argument_group("refinement", "metrics before and after refinement")
    inputs.add_refiner(refinement, "refines every embedding by its nearest neighbors, before --rerank")
    refinement.add_argument(
        "--context", choices=["everything", "gallery"],
        help="the images among which a refiner finds neighbors: everything (the default), queries and gallery "
        "together; or gallery, as when queries come one by one to an index. They differ where queries and gallery do",
    )  # fmt: skip
    inputs.add_reranking(parser, "metrics before and after re-ranking")
    inputs.add_embedding(parser)
    printed = parser.add_mutually_exclusive_group()
    inputs.add_json(printed)
    printed.add_argument("--csv", action="store_true", help="print the table of results as CSV, values from 0 to 1")
    parser.show_first(
        "images", "model", "split", "compare", "intervals", "group_pattern", "group_minutes", "group_by", "recall_at",
        "metrics", "rerank", "per_query", "json", "csv",
    )  # fmt: skip


def add_report(parser: Parser) -> None:
    from vicinal.workflows.settings import EvaluationSettings

    _add_sources(parser)
    parser.add_argument("--out", metavar="PAGE", help="the page (default: report.html in the run, or else here)")
    parser.add_argument("--title", help="title of the page (default: the name of the source)")
    parser.add_argument("--map_images", type=integer_from(0), metavar="INT",
                        help="maximum number of images on the map (default: 2000)")  # fmt: skip
    skipped = ("intervals", "root", "group_by", "clusters", "open_set", "known_fraction", "calibration", "protocol")
    add_settings(parser, EvaluationSettings, skip=skipped)
    parser.add_argument("--intervals", choices=["classes", "queries", "none"], default="classes",
                        help="units that are resampled for confidence intervals (default: classes)")  # fmt: skip
    inputs.add_groups(parser)
    inputs.add_reranking(
        parser,
        "scores and neighbors on a page of one source are re-ranked; with local, images show why they match",
    )
    inputs.add_embedding(parser)


def evaluate(arguments: Arguments) -> None:
    """Evaluate how well images of one class find each other: recall@k, mAP@R, R-precision, mAP and more."""
    if arguments.pairs is not None:
        return evaluate_pair_list(arguments)
    _check_combination(arguments)
    check_cross(arguments)
    _check_sources(arguments)
    from vicinal.utils.launch import Launch

    if arguments.devices in (None, 1) and Launch.of().launcher is None:
        return _evaluate(arguments, divided=False)
    _check_division(arguments)
    from vicinal.training.processes import needs_processes, run_in_processes

    if needs_processes(arguments.devices):
        return run_in_processes(arguments.words, arguments.devices)
    from vicinal.workflows.evaluate import join_processes

    join_processes(arguments.devices)
    _evaluate(arguments, divided=True)


def _evaluate(arguments: Arguments, divided: bool) -> None:
    """Evaluate the sources, and print the results; `divided` if several processes run this together."""
    from vicinal.workflows.evaluate import evaluate_sources, tabulate_sources, write_per_query
    from vicinal.workflows.series import warn_of_series

    settings, make_reranking = _settings(arguments), _make_reranking(arguments)
    sources = _embedded(arguments, mapped=True)
    for name, embedded in sources.items():
        if not embedded.table.has("is_query"):  # whose matches may be listed in place of labels
            inputs.require_labels(name, embedded.table, "evaluation")
    if arguments.cross:
        return evaluate_cross(arguments, sources, settings)
    if is_main_process():
        name = next(iter(sources))
        warn_of_series(name, sources[name])
    combine: Literal["compare", "average"] | None = (
        "compare" if arguments.compare else "average" if arguments.average else None
    )
    calibrations = None
    if settings.open_set:
        from vicinal.workflows.calibration_places import calibration_of

        model, given = getattr(arguments, "model", None), settings.calibration
        calibrations = {name: calibration_of(name, each, model, given) for name, each in sources.items()}
    evaluated = evaluate_sources(sources, settings, make_reranking, combine, divided, calibrations)
    if divided and not is_main_process():
        return
    if arguments.per_query:
        write_per_query(arguments.per_query, evaluated[0].final, evaluated[0].table)
        log(f"wrote {arguments.per_query}")
    results = tabulate_sources(evaluated, settings, combine)
    if arguments.json:
        print_result(results.to_json())
    else:
        print_result(results.to_csv().rstrip() if arguments.csv else str(results))


def report(arguments: Arguments) -> None:
    """Write a page about evaluated images, or several sources side by side: one HTML file that opens from disk."""
    if len(arguments.sources) > 1 and arguments.map_images is not None:
        raise InputError("--map_images is for the page of one source; a comparison has no map")
    if len(arguments.sources) > 1 and arguments.rerank:
        raise InputError("--rerank is for the page of one source; vicinal evaluate --compare --rerank compares several")
    _check_sources(arguments)
    from vicinal.workflows.report import default_page, write_report

    settings, make_reranking = _settings(arguments), _make_reranking(arguments)
    sources = _embedded(arguments)
    out = arguments.out or default_page(arguments.sources)
    write_report(out, sources, settings, arguments.title, arguments.map_images, make_reranking)
    print_result(str(out))


def _add_sources(parser: Parser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="source", help=f"{inputs.SOURCE}; with --images: a model, or --model"
    )
    parser.add_argument("--images", metavar="SOURCE", help=f"evaluate on these images: {inputs.IMAGES}. The sources "
                        "are then runs, model folders, models on the Hugging Face Hub, or untrained backbones, such as "
                        "timm/resnet50")  # fmt: skip
    parser.add_argument("--embeddings", metavar="FILE", help="instead of a source: a .npy or .parquet file, with "
                        "--labels")  # fmt: skip


def _settings(arguments: Arguments) -> EvaluationSettings:
    from vicinal.workflows.settings import EvaluationSettings

    intervals = None if arguments.intervals == "none" else arguments.intervals
    settings = read_settings(EvaluationSettings, arguments, intervals=intervals)
    if arguments.images is not None:
        return replace(settings, protocol=settings.protocol_of(arguments.images))
    return settings


def _make_reranking(arguments: Arguments) -> MakeReranking | None:
    """The function that makes the re-ranking and refinement of the flags for some embeddings, or None without any."""
    given = vars(arguments)
    if given.get("context") and arguments.refiner is None:
        raise InputError("--context is about a refiner; give --refiner too")
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
            validation = _embedded(argparse.Namespace(**{**vars(arguments), "split": VALIDATION}))
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


def _check_combination(arguments: Arguments) -> None:
    combined, reranked = arguments.compare or arguments.average, arguments.rerank or arguments.refiner
    several = len(arguments.sources) > 1
    for given, is_invalid, message in (
        (combined, not several, "--compare and --average need several sources; name two or more"),
        (arguments.per_query, several or reranked, "--per_query is for one source without re-ranking; name one, "
         "without --rerank and --refiner"),
        (hasattr(arguments, "group_by"), combined or reranked, "--group_by is for single sources without re-ranking; "
         "leave out --compare, --average, --rerank and --refiner"),
        (hasattr(arguments, "open_set"), reranked, "--open_set is about embeddings without re-ranking; leave out "
         "--rerank and --refiner"),
        (hasattr(arguments, "clusters"), reranked, "--clusters is about embeddings without re-ranking; leave out "
         "--rerank and --refiner"),
        (arguments.intervals, arguments.average, "--average has intervals of its own; leave out --intervals"),
    ):  # fmt: skip
        if given and is_invalid:
            raise InputError(message)
    if arguments.per_query and not arguments.per_query.lower().endswith((".csv", ".parquet")):
        raise InputError(f"--per_query {arguments.per_query}: name a file ending in .csv or .parquet")


def _check_sources(arguments: Arguments) -> None:
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


def _check_division(arguments: Arguments) -> None:
    from vicinal.workflows.source import Source

    if (arguments.devices or 1) > (os.cpu_count() or 1):
        raise InputError(f"--devices {arguments.devices}: this machine has {os.cpu_count()} cores; divide by at most "
                         "as many")  # fmt: skip
    for option in ("rerank", "refiner", "clusters", "open_set"):
        if getattr(arguments, option, None):
            raise InputError(f"--devices divides rankings of embeddings as they are; leave out --{option}")
    for name in [arguments.images] if arguments.images is not None else arguments.sources:
        if not Source(name).is_stored:
            raise InputError(
                f"--devices divides the evaluation of stored embeddings, and {name} holds images; write their "
                "embeddings to a file first: vicinal embed"
            )


def _embedded(arguments: Arguments, mapped: bool = False) -> dict[str, EmbeddedTable]:
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


def evaluate_pair_list(arguments: Arguments) -> None:
    """Evaluate the pairs of a list by the embeddings of one source, or of the listed images by a model."""
    for name in OTHERS:
        if getattr(arguments, name, None) not in (None, False):
            raise InputError(f"--{name} is about rankings, not about --pairs; leave one of them out")
    if len(arguments.sources) > 1:
        raise InputError(f"--pairs is for one source; {len(arguments.sources)} are named")
    source = arguments.sources[0] if arguments.sources else None
    if source is None and getattr(arguments, "model", None) is None:
        raise InputError("--pairs needs a source that holds the images, or --model to embed those of the list")
    inputs.check_files(arguments.pairs)
    inputs.check_embedding(arguments)
    inputs.check_source(source)
    from vicinal.workflows.pairs import PairList

    pairs = PairList.read(arguments.pairs, getattr(arguments, "root", None))
    reader = inputs.read_embedding(arguments, folder_on_error="raise")
    embedded = reader.embed_table(pairs.images()) if source is None else reader.embed(source, arguments.split)
    result = pairs.evaluate(embedded)
    print_result(result.to_dict() if arguments.json else str(result))
