"""`vicinal report`: a page about one or several sets of embeddings."""

from __future__ import annotations

from vicinal.cli import inputs
from vicinal.cli.evaluated_sources import (
    add_sources,
    check_sources,
    embed_sources,
    evaluation_settings,
    reranking_maker,
)
from vicinal.cli.flags import Arguments, Parser, add_settings, integer_from, print_result
from vicinal.utils.errors import InputError


def add_report(parser: Parser) -> None:
    from vicinal.workflows.settings import EvaluationSettings

    add_sources(parser)
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


def report(arguments: Arguments) -> None:
    """Write a page about evaluated images, or several sources side by side: one HTML file that opens from disk."""
    if len(arguments.sources) > 1 and arguments.map_images is not None:
        raise InputError("--map_images is for the page of one source; a comparison has no map")
    if len(arguments.sources) > 1 and arguments.rerank:
        raise InputError("--rerank is for the page of one source; vicinal evaluate --compare --rerank compares several")
    check_sources(arguments)
    from vicinal.workflows.report import default_page, write_report

    settings, make_reranking = evaluation_settings(arguments), reranking_maker(arguments)
    sources = embed_sources(arguments)
    out = arguments.out or default_page(arguments.sources)
    write_report(out, sources, settings, arguments.title, arguments.map_images, make_reranking)
    print_result(str(out))
