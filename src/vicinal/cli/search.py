"""`vicinal index` and `vicinal search`: an index of embeddings, and its nearest images to queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.index_flags import are_images, made_with, use_flags_of_index
from vicinal.cli.inputs import (
    SOURCE,
    add_embedding,
    add_json,
    add_refiner,
    check_embedding,
    check_files,
    check_refiner,
    check_source,
    load_refiner,
    read_embedding,
)
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import Index
    from vicinal.workflows.sources import EmbeddedTable, EmbeddingReader


def add_index(parser: Parser) -> None:
    """Add the flags of `vicinal index`."""
    parser.add_argument("index", help="the folder of the index")
    parser.add_argument("--source", help=f"build the index, a new one if there is one, from {SOURCE}")
    parser.add_argument("--add", metavar="SOURCE", help="add images to the index; sources as for --source")
    parser.add_argument(
        "--delete", nargs="+", type=integer_from(0), metavar="ID", help="delete these ids from the index"
    )
    parser.add_argument(
        "--kind", choices=["auto", "exact", "hnsw", "ivfpq"],
        help="exact compares with every image; hnsw is faster and nearly exact; ivfpq is small and approximate; "
        "auto (the default) is exact up to 100,000 images, then hnsw",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=integer_from(0), default=600, metavar="SECONDS",
        help="wait so long while another process writes the index (default: 600)",
    )  # fmt: skip
    add_refiner(parser, "refines every embedding by its nearest neighbors; an index that is built with a refiner "
                "refines what is added and searched later too")  # fmt: skip
    add_embedding(parser)
    add_json(parser)


def add_search(parser: Parser) -> None:
    """Add the flags of `vicinal search`."""
    parser.add_argument("index", help="the folder of the index")
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument(
        "-k", type=integer_from(1), default=10, metavar="INT", help="number of matches per query (default: 10)"
    )
    parser.add_argument("--exclude_self", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument("--grid", metavar="PICTURE", help="draw queries and matches, such as found.png")
    add_refiner(parser, "that of the index, if it was built with one: refines every query by its nearest neighbors in "
                "the index")  # fmt: skip
    add_embedding(parser, split=False)
    add_json(parser)


def index(arguments: Arguments) -> None:
    """Build an index, add images to it or delete some, and show what it holds."""
    has_images = arguments.source or arguments.add
    for given, needed, message in (
        (arguments.kind, arguments.source, "--kind is about building an index; give --source too"),
        (arguments.split, has_images, "--split selects images of a source; give --source or --add too"),
        (arguments.refiner, has_images, "--refiner refines images that are added; give --source or --add too"),
    ):
        if given and not needed:
            raise InputError(message)
    check_source(arguments.source)
    check_source(arguments.add)
    check_files(None if arguments.source else arguments.index)
    check_embedding(arguments)
    if arguments.source:
        from vicinal.retrieval.index.storage import check_target

        check_target(Path(arguments.index))  # before images are embedded
    changed = _change(arguments)
    facts = changed.describe()
    print_result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


def _change(arguments: Arguments) -> Index:
    """The index, after the changes that the flags ask for."""
    from vicinal.retrieval import Index

    if arguments.source:
        reader, refiner = read_embedding(arguments), load_refiner(arguments)
        index = _build(arguments, reader, refiner)
        _add_and_delete(index, arguments, refiner, _embed_added(arguments, reader))
        index.save(arguments.index, arguments.timeout)
        return index
    index = Index.load(arguments.index)
    if not (arguments.add or arguments.delete):
        return index
    added = refiner = None
    if arguments.add:
        reader, refiner = _reader_for(index, arguments, [arguments.add])
        if are_images([arguments.add]):  # before many of them are embedded
            index.check_model(reader.fingerprint, made_with(arguments, arguments.add))
        del index  # images are embedded while others may write; what they wrote is loaded afterwards
        added = _embed_added(arguments, reader)
    with Index.open(arguments.index, arguments.timeout) as index:
        _add_and_delete(index, arguments, refiner, added)
    return index


def _build(arguments: Arguments, reader: EmbeddingReader, refiner: ContextRefiner | None) -> Index:
    """A new index of the source."""
    from vicinal.retrieval import Index

    embedded = reader.embed(arguments.source, arguments.split)
    check_refiner(refiner, embedded)
    return Index.build(
        embedded.vectors,
        embedded.table,
        arguments.kind or "auto",
        model_fingerprint=embedded.fingerprint,
        refiner=refiner,
        made_with=made_with(arguments, arguments.source),
    )


def _reader_for(
    index: Index, arguments: Arguments, sources: Sequence[str]
) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """What embeds images as those of the index, and refines them; by the flags, or else as the index was built.

    Raises:
        InputError: model or refiner are not those of the index, or not to be found.
    """
    use_flags_of_index(arguments, index.made_with, sources)
    reader, refiner = read_embedding(arguments), load_refiner(arguments)
    index.check_refiner(refiner)
    return reader, refiner


def _embed_added(arguments: Arguments, reader: EmbeddingReader) -> EmbeddedTable | None:
    """The embeddings of the images to add, if any."""
    return reader.embed(arguments.add, arguments.split) if arguments.add else None


def _add_and_delete(
    index: Index, arguments: Arguments, refiner: ContextRefiner | None, added: EmbeddedTable | None
) -> None:
    if added is not None:
        index.check_refiner(refiner)
        _check_models(index, refiner, added, made_with(arguments, arguments.add))
        index.add(added.vectors, added.table, refiner)
    if arguments.delete:
        index.delete(arguments.delete)


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    check_files(arguments.index)
    for source in arguments.queries:
        check_source(source)
    check_embedding(arguments)
    from vicinal.retrieval import Index, search_images

    index = Index.load(arguments.index)
    reader, refiner = _reader_for(index, arguments, arguments.queries)
    found = []
    flags = made_with(arguments, arguments.queries[0])
    for queries in reader.embed_sources(arguments.queries):
        _check_models(index, refiner, queries, flags)
        found += search_images(index, queries.vectors, queries.table, arguments.k, arguments.exclude_self, refiner)
    if arguments.grid:
        from vicinal.report.plots import neighbor_grid

        neighbor_grid([each.query for each in found], [each.matches for each in found], arguments.grid)
        log(f"drew {arguments.grid}")
    print_result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))


def _check_models(index: Index, refiner: ContextRefiner | None, embedded: EmbeddedTable, flags: dict[str, str]) -> None:
    """Raise InputError if embeddings are of another model than those of the index or the refiner."""
    index.check_model(embedded.fingerprint, flags)
    check_refiner(refiner, embedded)
