"""`vicinal index`: building an index, keeping it equal to a folder, changing, listing, upgrading and verifying it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vicinal.cli import inputs
from vicinal.cli.build_index import add_images, build_index, check_source, holds_images, sync_images
from vicinal.cli.flags import Arguments, Parser, add_settings, flag_type, integer_from, print_result
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval import ImageIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader

ABOUT_TABLES = ("root", "path_column", "label_column", "labels", "where")
LEARNED = ("ivfpq", "rabitq")  # kinds that are trained on all images
REFINER = (
    "refines every embedding by its nearest neighbors; an index that is built with a refiner refines images added "
    "and searched later too"
)


def index(arguments: Arguments) -> None:
    """Build an index of images, change it, keep it equal to a folder, list and verify it."""
    print_result(arguments.parser.format_help().rstrip())


def build(arguments: Arguments) -> None:
    """Build an index of images or of embeddings."""
    check_source(arguments)
    from vicinal.workflows.sync import index_exists

    if index_exists(arguments.index, arguments.timeout) and not arguments.overwrite:  # a damaged one is told first
        raise InputError(
            f"{arguments.index} is already an index; `vicinal index add` or `sync` adds images to it, --overwrite "
            "replaces it"
        )
    build_index(arguments)
    _print_facts(arguments)


def add(arguments: Arguments) -> None:
    """Add the images that an index does not have yet, or whose files have changed."""
    inputs.check_index(arguments.index)
    check_source(arguments)
    from vicinal.workflows.sync import index_exists

    if not index_exists(arguments.index, arguments.timeout):
        raise InputError(f"{arguments.index} is not an index; build one with `vicinal index build`")
    add_images(arguments)
    _print_facts(arguments)


def sync(arguments: Arguments) -> None:
    """Make an index hold the images of a folder or table, or say where its images are now."""
    root = getattr(arguments, "root", None)
    if arguments.source is None:
        if root is None:
            raise InputError("give the folder or table of images, or with --root the folder where the images are now")
        inputs.check_index(arguments.index)
        inputs.check_embedding(arguments)
        from vicinal.retrieval import Index

        with Index.open(arguments.index, arguments.timeout) as opened:
            opened.move(root)
    else:
        if arguments.kind in LEARNED:
            raise InputError(f"{arguments.kind} is trained on all images at once; build the index first, then sync it")
        check_source(arguments)
        sync_images(arguments, drop=True)
    _print_facts(arguments)


def delete(arguments: Arguments) -> None:
    """Delete images by id, by path, by the path of a folder, or by a condition."""
    if bool(arguments.images) == (arguments.where is not None):
        raise InputError('give either ids and paths, or --where alone, such as --where "price > 20"')
    inputs.check_index(arguments.index)
    from vicinal.retrieval import Index

    with Index.open(arguments.index, arguments.timeout) as opened:
        opened.delete(_ids_to_delete(opened, arguments))
    _print_facts(arguments)


def list_(arguments: Arguments) -> None:
    """Print the columns of the images of an index, or its kind, size and model."""
    inputs.check_index(arguments.index)
    if arguments.facts:
        if arguments.where is not None:
            raise InputError("--facts describes the whole index; leave out --where")
        return _print_facts(arguments)
    from vicinal.retrieval import Index
    from vicinal.retrieval.index.metadata import FILE_COLUMNS
    from vicinal.retrieval.search import plain_records

    opened = Index.load(arguments.index, arguments.timeout)
    frames = opened.frames(arguments.where)  # block by block, as a database gives them
    if arguments.json:
        return print_result([record for frame in frames for record in plain_records(frame)])
    shown = [column for column in opened.columns if column not in FILE_COLUMNS]
    first = [column for column in ("id", "path", "label") if column in shown]
    columns, is_first = [*first, *(column for column in shown if column not in first)], True
    for frame in frames:
        print_result(frame.reindex(columns=columns).to_csv(index=False, header=is_first).rstrip("\n"))
        is_first = False


def verify(arguments: Arguments) -> None:
    """Compare an index with exact search for some of its own vectors: recall at 10 and latency."""
    inputs.check_index(arguments.index)
    from vicinal.retrieval import Index
    from vicinal.retrieval.index.verification import verify_index

    opened = Index.load(arguments.index, arguments.timeout)
    verification = verify_index(opened, arguments.queries)
    print_result({**opened.describe(), **verification.to_dict()} if arguments.json else str(verification))


def upgrade(arguments: Arguments) -> None:
    """Embed the images of an index by another model while it is searched, compare both, and change over."""
    inputs.check_index(arguments.index)
    inputs.check_embedding(arguments)
    if not arguments.rollback and getattr(arguments, "model", None) is None and arguments.embeddings is None:
        raise InputError(
            "give the new model with --model, its embeddings with --embeddings, or return to the previous one with "
            "--rollback"
        )
    if arguments.rollback and arguments.embeddings is not None:
        raise InputError("--rollback needs no embeddings of a new model; leave out --embeddings")
    inputs.check_source(arguments.embeddings)
    from vicinal.workflows.upgrade import roll_back, upgrade_index
    from vicinal.workflows.upgrade_comparison import GenerationComparison

    def report(comparison: GenerationComparison) -> None:
        if arguments.json:
            log(str(comparison))
        else:
            print_result(str(comparison))

    if arguments.rollback:
        roll_back(
            arguments.index, partial(_reader_before, arguments), lambda made_with: inputs.load_refiner(arguments),
            timeout=arguments.timeout,
        )  # fmt: skip
    else:
        flags = inputs.made_with(arguments, arguments.index)
        flags = {name: value for name, value in flags.items() if name not in ABOUT_TABLES}
        reader, refiner = inputs.read_embedding(arguments), inputs.load_refiner(arguments)
        embeddings = None if arguments.embeddings is None else _stored(reader, arguments.embeddings)
        upgrade_index(arguments.index, reader, flags, refiner, embeddings, report=report, timeout=arguments.timeout)
    _print_facts(arguments)


def _stored(reader: EmbeddingReader, source: str) -> EmbeddedTable:
    """The stored embeddings; the model of the flags embeds only images that are not among them."""
    if holds_images(source):
        raise InputError(f"{source} holds no embeddings; `vicinal embed` makes them, with --shard on many machines")
    return replace(reader, mapped=True, model=None, weights=None, pooling=None, scales=None).embed(source)


def _reader_before(arguments: Arguments, made_with: Mapping[str, str]) -> EmbeddingReader | None:
    """The embedder from before the upgrade, by the flags or else as the index says; None if it is unknown."""
    if "model" in made_with:
        inputs.use_flags_of_index(arguments, made_with, [])
    return inputs.read_embedding(arguments) if getattr(arguments, "model", None) is not None else None


def _print_facts(arguments: Arguments) -> None:
    from vicinal.retrieval import Index

    facts = Index.load(arguments.index, arguments.timeout).describe()
    print_result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


def _ids_to_delete(opened: ImageIndex, arguments: Arguments) -> Sequence[int]:
    """The ids that are given directly, by paths, or by --where."""
    if arguments.where is not None:
        ids: list[int] = opened.where(arguments.where).tolist()
        log(f"deleting {len(ids):,} images with {arguments.where}")
        return ids
    found: dict[int, None] = {}
    for each in arguments.images:
        if each.isdecimal():
            found[int(each)] = None
            continue
        ids = opened.ids_at(os.path.abspath(os.path.expanduser(each))).tolist()
        if not ids:
            raise InputError(f"the index has no image {each}, and no images in such a folder")
        found |= dict.fromkeys(ids)
    return list(found)


# flags


def add_common(parser: Parser) -> None:
    """Add the flags --timeout and --json."""
    parser.add_argument(
        "--timeout", type=integer_from(0), default=600, metavar="SECONDS",
        help="wait this long while another process writes the index, or retry a database this long when the "
        "connection is cut (default: 600)",
    )  # fmt: skip
    inputs.add_json(parser)


def _add_source(parser: Parser, purpose: str, *first: str, **options: Any) -> None:
    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument("source", help=purpose, **options)
    inputs.add_refiner(parser, REFINER)
    inputs.add_embedding(parser)
    add_common(parser)
    parser.show_first(*first, "refiner", "model", "whitening", "split", "where", "labels", "root", "timeout", "json")


def _add_kind(parser: Parser) -> None:
    parser.add_argument(
        "--kind", choices=["auto", "exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary"],
        help="exact compares with every image; hnsw is faster and nearly exact; the others need less memory: sq8 a "
        "quarter, the rest a tenth or less; auto (the default) is exact up to 100,000 images, then hnsw; in a database "
        "it is hnsw. PostgreSQL has exact, hnsw and binary, Milvus all but binary",
    )  # fmt: skip
    parser.add_argument(
        "--rescore", type=integer_from(0), metavar="INT",
        help="for sq8, ivfpq, rabitq and binary: number of candidates per match to compare exactly, with vectors kept "
        "in a file; 0: none, so scores are approximate (default: 4, 10, 20, 40)",
    )  # fmt: skip


def _add_build(parser: Parser) -> None:
    from vicinal.workflows.settings import LocalSettings

    parser.add_argument("--overwrite", action="store_true", help="replace an existing index")
    _add_kind(parser)
    parser.add_argument(
        "--local", nargs="?", type=flag_type(float), const=0.5, metavar="WEIGHT",
        help="store local features of the images too, for --rerank local, with the weight that `vicinal evaluate "
        "--rerank local` chose (default: 0.5); images added or synced later get them too",
    )  # fmt: skip
    add_settings(parser, LocalSettings, prefix="local.")
    _add_source(parser, inputs.SOURCE, "overwrite", "kind", "rescore", "local")


def _add_sync(parser: Parser) -> None:
    _add_kind(parser)
    _add_source(
        parser,
        "a folder or table of images: new ones are added, missing ones are dropped (from this folder; with a table, "
        "from everywhere), changed files are embedded again. A missing index is built, and an interrupted call resumes "
        "where it was. Without it, --root says where the images of the index are now",
        "kind", "rescore", nargs="?",
    )  # fmt: skip


def _add_delete(parser: Parser) -> None:
    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument("images", nargs="*", metavar="ID_OR_PATH", help="ids, paths of images, or paths of folders")
    parser.add_argument("--where", metavar="CONDITION", help="delete the images whose columns fulfill this condition")
    add_common(parser)


def _add_list(parser: Parser) -> None:
    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument("--where", metavar="CONDITION", help="only images whose columns fulfill this condition")
    parser.add_argument("--facts", action="store_true", help="the kind, size and model of the index in place of images")
    add_common(parser)


def _add_verify(parser: Parser) -> None:
    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument("--queries", type=integer_from(1), default=100, metavar="INT", help="number of vectors of the "
                        "index to search for (default: 100); all vectors are read for that")  # fmt: skip
    add_common(parser)


def _add_upgrade(parser: Parser) -> None:
    from vicinal.workflows.models import EmbeddingOptions

    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument(
        "--rollback", action="store_true", help="return to the vectors before the last upgrade, and again to the newer "
        "ones. Images that were added since are embedded by the model before",
    )  # fmt: skip
    parser.add_argument(
        "--embeddings", metavar="SOURCE", help="embeddings of the images by the new model, such as the folder that "
        "`vicinal embed --shard` or `--ray` wrote; --model embeds what is not among them",
    )  # fmt: skip
    inputs.add_refiner(
        parser, "refines the new embeddings; an index that was built with a refiner needs one for the new model"
    )
    add_settings(parser.add_argument_group("embedding of images"), EmbeddingOptions, skip=ABOUT_TABLES)
    add_common(parser)
    parser.show_first(
        "rollback", "model", "embeddings", "refiner", "whitening", "num_workers", "on_error", "timeout", "json"
    )


INDEX_VERBS: dict[Callable[[Arguments], None], Callable[[Parser], None]] = {
    build: _add_build,
    add: partial(_add_source, purpose=inputs.SOURCE),
    sync: _add_sync,
    delete: _add_delete,
    list_: _add_list,
    upgrade: _add_upgrade,
    verify: _add_verify,
}
