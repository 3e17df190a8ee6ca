"""`vicinal index`: building an index, keeping it equal to a folder, changing and listing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.index_changes import changed_index
from vicinal.cli.index_checks import check_flags
from vicinal.cli.inputs import INDEX, SOURCE, add_embedding, add_json, add_refiner

if TYPE_CHECKING:
    from vicinal.retrieval import ImageIndex


def add_index(parser: Parser) -> None:
    """Add the flags of `vicinal index`."""
    parser.add_argument("index", help=INDEX)
    _add_changes(parser)
    parser.add_argument(
        "--list", action="store_true", help="print id, path and the other columns of all images as CSV, or as --json; "
        "with --where, of some",
    )  # fmt: skip
    _add_kind(parser)
    parser.add_argument(
        "--timeout", type=integer_from(0), default=600, metavar="SECONDS",
        help="wait so long while another process writes the index, or ask a database again so long when the "
        "connection is cut (default: 600)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", nargs="?", const=100, type=integer_from(1), metavar="QUERIES",
        help="compare the index with exact search for some of its own vectors (default: 100): recall at 10 and "
        "latency; all vectors are read for that",
    )  # fmt: skip
    add_refiner(parser, "refines every embedding by its nearest neighbors; an index that is built with a refiner "
                "refines what is added and searched later too")  # fmt: skip
    add_embedding(parser)
    add_json(parser)
    parser.show_first(
        "source", "add", "sync", "delete", "list", "overwrite", "kind", "model", "split", "where", "labels", "verify",
        "json",
    )  # fmt: skip


def _add_changes(parser: Parser) -> None:
    """Add the flags that change what the index holds."""
    parser.add_argument("--source", help=f"build the index from {SOURCE}")
    parser.add_argument("--overwrite", action="store_true", help="with --source: replace an index that is there")
    parser.add_argument(
        "--add", metavar="SOURCE",
        help="add images to the index, those that it does not have yet or whose files have changed; sources as for "
        "--source",
    )  # fmt: skip
    parser.add_argument(
        "--sync", metavar="SOURCE",
        help="make the index hold what a folder or table of images holds: add new images, drop those that have "
        "vanished (from the folder; from everywhere if it is a table), embed changed files anew. An index that is "
        "not there yet is built, and an interrupted call goes on where it was",
    )  # fmt: skip
    parser.add_argument(
        "--delete", nargs="*", metavar="ID_OR_PATH",
        help="delete images by id, by path, or by the path of a folder; without any, those that --where selects",
    )  # fmt: skip


def _add_kind(parser: Parser) -> None:
    """Add the flags about the kind of the index."""
    parser.add_argument(
        "--kind", choices=["auto", "exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary"],
        help="exact compares with every image; hnsw is faster and nearly exact; the others need less memory: sq8 a "
        "quarter, the rest a tenth or less; auto (the default) is exact up to 100,000 images, then hnsw; in a database "
        "it is hnsw. PostgreSQL has exact, hnsw and binary, Milvus all but binary",
    )  # fmt: skip
    parser.add_argument(
        "--rescore", type=integer_from(0), metavar="INT",
        help="for sq8, ivfpq, rabitq and binary: how many candidates per match are compared exactly, with vectors that "
        "stay in a file; 0: none, scores are then approximate (default: 4, 10, 20, 40)",
    )  # fmt: skip


def index(arguments: Arguments) -> None:
    """Build an index, add images to it or delete some, keep it equal to a folder, and show what it holds."""
    check_flags(arguments)
    changed = changed_index(arguments)
    if arguments.list:
        return _print_list(changed, arguments)
    facts = changed.describe()
    if arguments.verify is not None:
        from vicinal.retrieval.index.verification import verify_index

        verification = verify_index(changed, arguments.verify)
        return print_result({**facts, **verification.to_dict()} if arguments.json else str(verification))
    print_result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


def _print_list(index: ImageIndex, arguments: Arguments) -> None:
    """Print the columns of the images, block by block as a database gives them."""
    from vicinal.retrieval.index.metadata import FILE_COLUMNS
    from vicinal.retrieval.search import plain_records

    frames = index.frames(getattr(arguments, "where", None))
    if arguments.json:
        return print_result([record for frame in frames for record in plain_records(frame)])
    shown = [column for column in index.columns if column not in FILE_COLUMNS]
    first = [column for column in ("id", "path", "label") if column in shown]
    columns, is_first = [*first, *(column for column in shown if column not in first)], True
    for frame in frames:
        print_result(frame.reindex(columns=columns).to_csv(index=False, header=is_first).rstrip("\n"))
        is_first = False
