"""`vicinal search`: the nearest images of an index to queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.index_flags import check_models, made_with, reader_for
from vicinal.cli.inputs import INDEX, add_embedding, add_json, add_refiner, check_embedding, check_index, check_source
from vicinal.cli.reranking_flags import add_reranking, read_reranking
from vicinal.utils.console import log

if TYPE_CHECKING:
    from vicinal.retrieval import SearchResult

DEFAULT_K = 10


def add_search(parser: Parser) -> None:
    """Add the flags of `vicinal search`."""
    parser.add_argument("index", help=INDEX)
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument(
        "-k", type=integer_from(1), metavar="INT",
        help=f"number of matches per query (default: {DEFAULT_K}, or all of an index with fewer images)",
    )  # fmt: skip
    parser.add_argument("--exclude_self", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument(
        "--where", metavar="CONDITION", help="find only images whose columns in the index fulfill this condition, such "
        "as \"category == 'cup' and price < 20\"",
    )  # fmt: skip
    parser.add_argument(
        "--group_by", metavar="COLUMN", help="find only the best image of each value of a column, such as product"
    )
    parser.add_argument("--min_score", type=float, metavar="FLOAT", help="leave out matches with a lower score")
    parser.add_argument("--min_probability", type=float, metavar="FLOAT", help="leave out matches that are right with "
                        "a lower probability, by the calibration of the index (vicinal calibrate)")  # fmt: skip
    parser.add_argument(
        "--grid",
        metavar="PICTURE",
        help="draw queries and matches, such as found.png; what does not fit on it is drawn on found_2.png and so on",
    )
    add_refiner(parser, "that of the index, if it was built with one: refines every query by its nearest neighbors in "
                "the index")  # fmt: skip
    add_reranking(
        parser, "each query is compared with all images that may be found, and scores are those of the method"
    )
    add_embedding(parser, split=False, where=False)
    add_json(parser)
    parser.show_first(
        "k", "exclude_self", "where", "group_by", "min_score", "min_probability", "grid", "rerank", "model", "json",
    )  # fmt: skip


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    check_index(arguments.index)
    for source in arguments.queries:
        check_source(source)
    check_embedding(arguments)
    reranking = read_reranking(arguments)
    from vicinal.retrieval import Index, match_images, search_images
    from vicinal.workflows.calibration_places import warn_of_larger_gallery

    index = Index.load(arguments.index)
    reader, refiner = reader_for(index, arguments, arguments.queries, where=None)  # which is for the index
    has_minimum = arguments.min_score is not None or arguments.min_probability is not None
    find: Callable[..., Sequence[SearchResult]] = search_images
    if has_minimum or (index.calibration is not None and reranking is None):
        warn_of_larger_gallery(arguments.index, index)
        find = partial(match_images, min_score=arguments.min_score, min_probability=arguments.min_probability)
    found: list[SearchResult] = []
    flags = made_with(arguments, arguments.queries[0])
    for queries in reader.embed_sources(arguments.queries):
        check_models(index, refiner, queries, flags)
        found += find(
            index,
            queries.vectors,
            queries.table,
            arguments.k or max(1, index.count(at_most=DEFAULT_K)),
            arguments.exclude_self,
            refiner=refiner,
            where=arguments.where,
            group_by=arguments.group_by,
            reranking=reranking,
        )
    if arguments.grid:
        _draw(found, arguments.grid)
    print_result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))


def _draw(found: Sequence[SearchResult], path: str) -> None:
    """Draw queries and matches, each with its first further column, such as the price."""
    from vicinal.report import neighbor_grid
    from vicinal.retrieval.search import further_columns

    def item(record: dict[str, Any]) -> dict[str, Any]:
        caption = next((f"{name} {value}" for name, value in further_columns(record).items()), None)
        return {**record, "caption": caption}

    queries = [item(each.query) for each in found]
    for sheet in neighbor_grid(queries, [[item(match) for match in each.matches] for each in found], path):
        log(f"drew {sheet}")
