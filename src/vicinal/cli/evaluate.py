"""`vicinal evaluate`: metrics of embeddings or of pairs, as a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from vicinal.cli import inputs
from vicinal.cli.compatibility import add_cross, check_cross, evaluate_cross
from vicinal.cli.evaluated_sources import (
    add_sources,
    check_sources,
    embed_sources,
    evaluation_settings,
    reranking_maker,
)
from vicinal.cli.flags import Arguments, Parser, add_settings, integer_from, print_result
from vicinal.utils.console import is_main_process, log
from vicinal.utils.errors import InputError

NOT_FOR_PAIRS = ("cross", "adapter", "tolerance", "compare", "average",
          "images", "embeddings", "labels", "intervals", "per_query", "rerank", "refiner",
          "csv", "group_by", "clusters", "open_set", "known_fraction", "calibration", "hierarchy", "metrics",
          "recall_at", "protocol", "devices",
          "checkpoint")  # fmt: skip


def add_evaluate(parser: Parser) -> None:
    from vicinal.workflows.settings import EvaluationSettings

    add_sources(parser)
    _add_combination(parser)
    add_settings(parser, EvaluationSettings, skip=("intervals", "root"))
    parser.add_argument(
        "--intervals", nargs="?", const="classes", choices=["classes", "queries"],
        help="bootstrap confidence intervals: resample classes (also --intervals alone), which tells how the model "
        "performs on other classes, or queries. --compare always has them",
    )  # fmt: skip
    inputs.add_groups(parser)
    parser.add_argument("--per_query", metavar="FILE", help="write the metrics of every query, with its path and "
                        "label, to a .csv or .parquet file")  # fmt: skip
    parser.add_argument("--pairs", metavar="FILE", help="instead: verify which listed pairs are of one class. A .csv "
                        "file with the columns a, b (paths, or row numbers of embeddings), same (1 or 0) and perhaps "
                        "fold: accuracy over ten folds as in LFW, TAR at FAR. Without a source, --model embeds the "
                        "listed images")  # fmt: skip
    parser.add_argument(
        "--devices", type=integer_from(1), metavar="INT",
        help="number of processes that share the ranking of stored embeddings; with torchrun or SLURM, per node "
        "(default: 1, or as many as they started). The results equal those of one process",
    )  # fmt: skip
    add_cross(parser)
    _add_refinement(parser)
    inputs.add_reranking(parser, "metrics before and after re-ranking")
    inputs.add_embedding(parser)
    printed = parser.add_mutually_exclusive_group()
    inputs.add_json(printed)
    printed.add_argument("--csv", action="store_true", help="print the table of results as CSV, values from 0 to 1")
    parser.show_first(
        "images", "model", "split", "compare", "intervals", "group_pattern", "group_minutes", "group_by", "recall_at",
        "metrics", "rerank", "per_query", "json", "csv",
    )  # fmt: skip


def _add_combination(parser: Parser) -> None:
    combined = parser.add_mutually_exclusive_group()
    combined.add_argument("--compare", action="store_true", help="compare the sources with the first one, on the same "
                          "images: differences, their intervals, p-values, and what each model costs")  # fmt: skip
    combined.add_argument("--average", action="store_true", help="the sources are runs of one recipe, such as of "
                          "several seeds: mean, standard deviation and interval of each metric")  # fmt: skip


def _add_refinement(parser: Parser) -> None:
    refinement = parser.add_argument_group("refinement", "metrics before and after refinement")
    inputs.add_refiner(refinement, "refines every embedding by its nearest neighbors, before --rerank")
    refinement.add_argument(
        "--context", choices=["everything", "gallery"],
        help="the images among which a refiner finds neighbors: everything (the default), queries and gallery "
        "together; or gallery, as when an index gets queries one by one. They differ only if queries and gallery do",
    )  # fmt: skip


def evaluate(arguments: Arguments) -> None:
    """Evaluate how well images of one class find each other: recall@k, mAP@R, R-precision, mAP and more."""
    if arguments.pairs is not None:
        return evaluate_pair_list(arguments)
    _check_combination(arguments)
    check_cross(arguments)
    check_sources(arguments)
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
    from vicinal.data.table_files import write_table
    from vicinal.workflows.evaluate import evaluate_sources, per_query_frame, tabulate_sources
    from vicinal.workflows.series import warn_of_series

    settings, make_reranking = evaluation_settings(arguments), reranking_maker(arguments)
    sources = embed_sources(arguments, mapped=True)
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
        write_table(Path(arguments.per_query), per_query_frame(evaluated[0].final, evaluated[0].table))
        log(f"wrote {arguments.per_query}")
    results = tabulate_sources(evaluated, settings, combine)
    if arguments.json:
        print_result(results.to_json())
    else:
        print_result(results.to_csv().rstrip() if arguments.csv else str(results))


def _check_combination(arguments: Arguments) -> None:
    combined, reranked = arguments.compare or arguments.average, arguments.rerank or arguments.refiner
    several = len(arguments.sources) > 1
    for given, is_invalid, message in (
        (combined, not several, "--compare and --average need several sources; name two or more"),
        (arguments.per_query, several or reranked, "--per_query is for one source without re-ranking; name one, "
         "without --rerank and --refiner"),
        (hasattr(arguments, "group_by"), combined or reranked, "--group_by is for single sources without re-ranking; "
         "leave out --compare, --average, --rerank and --refiner"),
        (hasattr(arguments, "open_set"), reranked, "--open_set is for embeddings without re-ranking; leave out "
         "--rerank and --refiner"),
        (hasattr(arguments, "clusters"), reranked, "--clusters is for embeddings without re-ranking; leave out "
         "--rerank and --refiner"),
        (arguments.intervals, arguments.average, "--average has intervals of its own; leave out --intervals"),
    ):  # fmt: skip
        if given and is_invalid:
            raise InputError(message)
    if arguments.per_query and not arguments.per_query.lower().endswith((".csv", ".parquet")):
        raise InputError(f"--per_query {arguments.per_query}: name a file ending in .csv or .parquet")


def _check_division(arguments: Arguments) -> None:
    from vicinal.workflows.source import Source

    if (arguments.devices or 1) > (os.cpu_count() or 1):
        raise InputError(f"--devices {arguments.devices}: this machine has {os.cpu_count()} cores; use at most that "
                         "many")  # fmt: skip
    for option in ("rerank", "refiner", "clusters", "open_set"):
        if getattr(arguments, option, None):
            raise InputError(f"--devices divides plain rankings of embeddings; leave out --{option}")
    for name in [arguments.images] if arguments.images is not None else arguments.sources:
        if not Source(name).is_stored:
            raise InputError(
                f"--devices divides the evaluation of stored embeddings, and {name} holds images; write their "
                "embeddings to a file first: vicinal embed"
            )


def evaluate_pair_list(arguments: Arguments) -> None:
    """Evaluate the pairs of a list by the embeddings of one source, or of the listed images by a model."""
    for name in NOT_FOR_PAIRS:
        if getattr(arguments, name, None) not in (None, False):
            raise InputError(f"--{name} is for rankings, not for --pairs; leave one of them out")
    if len(arguments.sources) > 1:
        raise InputError(f"--pairs is for one source; {len(arguments.sources)} are named")
    source = arguments.sources[0] if arguments.sources else None
    if source is None and getattr(arguments, "model", None) is None:
        raise InputError("--pairs needs a source with the images, or --model to embed the listed ones")
    inputs.check_files(arguments.pairs)
    inputs.check_embedding(arguments)
    inputs.check_source(source)
    from vicinal.workflows.pairs import PairList

    pairs = PairList.read(arguments.pairs, getattr(arguments, "root", None))
    reader = inputs.read_embedding(arguments, folder_on_error="raise")
    embedded = reader.embed_table(pairs.images()) if source is None else reader.embed(source, arguments.split)
    result = pairs.evaluate(embedded)
    print_result(result.to_dict() if arguments.json else str(result))
