"""`vicinal search`: the nearest images of an index to queries."""

from __future__ import annotations

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.index_flags import check_models, made_with, reader_for
from vicinal.cli.inputs import add_embedding, add_json, add_refiner, check_embedding, check_files, check_source
from vicinal.cli.reranking_flags import add_reranking, read_reranking
from vicinal.utils.console import log


def add_search(parser: Parser) -> None:
    """Add the flags of `vicinal search`."""
    parser.add_argument("index", help="the folder of the index")
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument(
        "-k", type=integer_from(1), default=10, metavar="INT", help="number of matches per query (default: 10)"
    )
    parser.add_argument("--exclude_self", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument(
        "--where", metavar="CONDITION", help="find only images whose columns in the index fulfill this condition, such "
        "as \"category == 'cup' and price < 20\"",
    )  # fmt: skip
    parser.add_argument(
        "--group_by", metavar="COLUMN", help="find only the best image of each value of a column, such as product"
    )
    parser.add_argument("--grid", metavar="PICTURE", help="draw queries and matches, such as found.png")
    add_refiner(parser, "that of the index, if it was built with one: refines every query by its nearest neighbors in "
                "the index")  # fmt: skip
    add_reranking(
        parser, "each query is compared with all images that may be found, and scores are those of the method"
    )
    add_embedding(parser, split=False, where=False)
    add_json(parser)


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    check_files(arguments.index)
    for source in arguments.queries:
        check_source(source)
    check_embedding(arguments)
    reranking = read_reranking(arguments)
    from vicinal.retrieval import Index, search_images

    index = Index.load(arguments.index)
    reader, refiner = reader_for(index, arguments, arguments.queries, where=None)  # which is for the index
    found = []
    flags = made_with(arguments, arguments.queries[0])
    for queries in reader.embed_sources(arguments.queries):
        check_models(index, refiner, queries, flags)
        found += search_images(
            index,
            queries.vectors,
            queries.table,
            arguments.k,
            arguments.exclude_self,
            refiner,
            where=arguments.where,
            group_by=arguments.group_by,
            reranking=reranking,
        )
    if arguments.grid:
        from vicinal.report.plots import neighbor_grid

        neighbor_grid([each.query for each in found], [each.matches for each in found], arguments.grid)
        log(f"drew {arguments.grid}")
    print_result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))
