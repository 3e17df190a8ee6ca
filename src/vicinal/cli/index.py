"""`vicinal index`: building an index, keeping it equal to a folder, changing and listing it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.index_flags import are_images, check_models, made_with, reader_for
from vicinal.cli.inputs import (
    INDEX,
    SOURCE,
    add_embedding,
    add_json,
    add_refiner,
    check_embedding,
    check_index,
    check_refiner,
    check_source,
    is_url,
    load_refiner,
    read_embedding,
)
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex, Index
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.sources import EmbeddingReader


def add_index(parser: Parser) -> None:
    """Add the flags of `vicinal index`."""
    parser.add_argument("index", help=INDEX)
    parser.add_argument(
        "--source", help=f"build the index from {SOURCE}. Repeat the command after an interruption: an index of codes "
        "(sq8, ivfpq, rabitq, binary) of stored embeddings goes on with the batches that are not saved yet",
    )  # fmt: skip
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
    parser.add_argument(
        "--list", action="store_true", help="print id, path and the other columns of all images as CSV, or as --json; "
        "with --where, of some",
    )  # fmt: skip
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


def index(arguments: Arguments) -> None:
    """Build an index, add images to it or delete some, keep it equal to a folder, and show what it holds."""
    _check_combination(arguments)
    for source in (arguments.source, arguments.add, arguments.sync):
        check_source(source)
    if not (arguments.source or arguments.sync):
        check_index(arguments.index)
    check_embedding(arguments)
    if is_url(arguments.index):
        _check_remote(arguments)
    elif arguments.source or arguments.sync:
        from vicinal.retrieval.index.storage import CONFIG, check_target

        check_target(Path(arguments.index))  # before images are embedded
        if arguments.source and Path(arguments.index, CONFIG).exists() and not arguments.overwrite:
            raise _exists_already(arguments.index)
    changed = _change(arguments)
    if arguments.list:
        return _print_list(changed, arguments)
    facts = changed.describe()
    if arguments.verify is not None:
        from vicinal.retrieval.index.verification import verify_index

        verification = verify_index(changed, arguments.verify)
        return print_result({**facts, **verification.to_dict()} if arguments.json else str(verification))
    print_result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


def _exists_already(place: str) -> InputError:
    return InputError(f"{place} is an index already; --add or --sync adds images to it, --overwrite replaces it")


def _check_remote(arguments: Arguments) -> None:
    """Raise before images are embedded if a database cannot hold the index, is not there, or holds another one."""
    from vicinal.retrieval.index.engine_url import EngineURL
    from vicinal.retrieval.index.remote_engine import connect
    from vicinal.workflows.sync import index_exists

    url = EngineURL.parse(arguments.index)
    if arguments.refiner:
        raise InputError(f"an index of refined embeddings is kept in a folder, not at {url}; leave out --refiner")
    if arguments.kind:
        connect(url).check_kind("hnsw" if arguments.kind == "auto" else arguments.kind)
    if arguments.source and index_exists(arguments.index, arguments.timeout) and not arguments.overwrite:
        raise _exists_already(str(url))


def _check_combination(arguments: Arguments) -> None:
    """Raise InputError if flags exclude each other, before anything is read."""
    sources = [name for name in ("source", "add", "sync") if getattr(arguments, name)]
    where, root = (getattr(arguments, name, None) for name in ("where", "root"))
    message = None
    if arguments.sync and len(sources) > 1:
        message = f"--sync makes the index hold one source; leave out --{sources[0]}"
    elif arguments.overwrite and not arguments.source:
        message = "--overwrite is about building an index; give --source too"
    elif arguments.kind and not (arguments.source or arguments.sync):
        message = "--kind is about building an index; give --source or --sync too"
    elif arguments.rescore is not None and not arguments.kind:
        message = "--rescore is about an index of codes; give --kind too, such as sq8"
    elif arguments.kind in ("ivfpq", "rabitq") and arguments.sync:
        message = (
            f"{arguments.kind} is learned from all images at once; build the index by --source, and --sync it later"
        )
    elif arguments.verify is not None and arguments.list:
        message = "--verify prints recall and latency; list the index by a call of its own"
    elif arguments.split and not sources:
        message = "--split selects images of a source; give --source, --add or --sync too"
    elif arguments.refiner and not sources:
        message = "--refiner refines images that are added; give --source, --add or --sync too"
    elif arguments.delete == [] and (where is None or sources):
        message = '--delete needs ids, paths, or --where alone, such as --delete --where "price > 20"'
    elif where is not None and arguments.delete:
        message = "--where is a selection of its own; leave out the ids and paths of --delete"
    elif where is not None and not sources and arguments.delete is None and not arguments.list:
        message = "--where selects images; give --delete, --list or a source too"
    elif where is not None and sources and arguments.list:
        message = "--where selects images of the source; list the index by a call of its own"
    elif root is not None and len(sources) == 0 and (arguments.delete is not None):
        message = "--root says where the images of the index are now; delete images by a call of its own"
    if message is not None:
        raise InputError(message)


def _change(arguments: Arguments) -> ImageIndex:
    """The index, after the changes that the flags ask for."""
    from vicinal.retrieval import Index

    if arguments.source:
        _build(arguments)
    if arguments.sync:
        _sync(arguments, arguments.sync, drop=True)
    if arguments.add:
        _add(arguments)
    root = None if arguments.source or arguments.add or arguments.sync else getattr(arguments, "root", None)
    if arguments.delete is None and root is None:
        return Index.load(arguments.index)
    with Index.open(arguments.index, arguments.timeout) as index:
        if root is not None:
            index.move(root)
        if arguments.delete is not None:
            index.delete(_ids_to_delete(index, arguments))
    return index


def _build(arguments: Arguments) -> None:
    """Build and save an index of the source."""
    from vicinal.workflows.sync import with_file_facts

    in_batches = _is_built_in_batches(arguments, arguments.source)
    reader, refiner = read_embedding(arguments, mapped=in_batches), load_refiner(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    table = with_file_facts(embedded.table) if _is_of_images(arguments.source) else embedded.table
    index = _new_index(arguments, arguments.source, embedded, table, refiner)
    if not (in_batches or is_url(arguments.index)):
        index.save(arguments.index, arguments.timeout)


def _is_built_in_batches(arguments: Arguments, source: str) -> bool:
    """Whether an index is built in batches that are saved: one of codes in a folder, of embeddings that are stored."""
    from vicinal.retrieval.index.rescoring import DEFAULT_RESCORE

    is_plain = arguments.kind in DEFAULT_RESCORE and not arguments.refiner and not is_url(arguments.index)
    return is_plain and not _is_of_images(source)


def _new_index(
    arguments: Arguments, source: str, embedded: EmbeddedTable, table: Any, refiner: ContextRefiner | None
) -> Index:
    """A new index: in memory, or complete in its folder or in a database."""
    from vicinal.retrieval import Index

    check_refiner(refiner, embedded)
    index = Index.build(
        embedded.vectors,
        table,
        arguments.kind or "auto",
        model_fingerprint=embedded.fingerprint,
        refiner=refiner,
        made_with=made_with(arguments, source),
        rescore=arguments.rescore,
        url=arguments.index if is_url(arguments.index) else None,
        overwrite=arguments.overwrite,
        timeout=arguments.timeout,
        folder=arguments.index if _is_built_in_batches(arguments, source) else None,
    )
    index.root = _root(arguments, source)
    if "model" in index.made_with:
        from vicinal.workflows.calibration_places import stored_calibration

        index.calibration = stored_calibration(index.made_with["model"], index.fingerprint())
    return index


def _root(arguments: Arguments, source: str) -> str | None:
    """The folder of a source's images, from which their paths are kept; None if it is no folder or table."""
    if not are_images([source]):
        return None
    if Path(source).suffix.lower() in (".csv", ".parquet") and Path(source).is_file():
        return os.path.abspath(getattr(arguments, "root", None) or Path(source).parent)
    return os.path.abspath(source) if os.path.isdir(source) else None


def _is_of_images(source: str) -> bool:
    """Whether a source is embedded here, and holds no embeddings."""
    from vicinal.workflows.source_kind import source_kind

    return source_kind(source) in ("run", "image", "images")


def _reader(arguments: Arguments, source: str) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """What embeds the images of a source as those of the index, if there is one."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import index_exists

    if not index_exists(arguments.index, arguments.timeout):
        return read_embedding(arguments), load_refiner(arguments)
    index = Index.load(arguments.index)
    reader, refiner = reader_for(index, arguments, [source])
    if are_images([source]):  # before many of them are embedded
        index.check_model(reader.fingerprint, made_with(arguments, source))
    return reader, refiner


def _sync(arguments: Arguments, source: str, drop: bool) -> None:
    """Add the new and the changed images of a source, and drop those that it does not hold any more."""
    from vicinal.workflows.sync import sync_index

    if not _is_of_images(source):
        raise InputError(f"{source} holds embeddings; --sync takes a folder or table of images")
    reader, refiner = _reader(arguments, source)
    flags = made_with(arguments, source)

    def upsert(index: ImageIndex, embedded: EmbeddedTable) -> None:
        index.check_refiner(refiner)
        check_models(index, refiner, embedded, flags)
        index.upsert(embedded.vectors, embedded.table, refiner)

    changes = sync_index(
        arguments.index,
        reader.read_table(source, arguments.split),
        reader.embed_function(source),
        lambda embedded: _new_index(arguments, source, embedded, embedded.table, refiner),
        upsert,
        drop=drop,
        below=source if os.path.isdir(source) and are_images([source]) else None,
        root=_root(arguments, source),
        timeout=arguments.timeout,
    )
    numbers = str(changes) if drop else str(changes).replace(f"{len(changes.vanished):,} vanished, ", "")
    log(f"{source}: {numbers}")


def _add(arguments: Arguments) -> None:
    """Add images of a source that the index does not have."""
    if _is_of_images(arguments.add):
        return _sync(arguments, arguments.add, drop=False)
    from vicinal.retrieval import Index

    reader, refiner = _reader(arguments, arguments.add)
    embedded = reader.embed(arguments.add, arguments.split)
    with Index.open(arguments.index, arguments.timeout) as index:
        index.check_refiner(refiner)
        check_models(index, refiner, embedded, made_with(arguments, arguments.add))
        if embedded.table.has("path"):
            is_new = index.ids_by_key(embedded.table.image_keys) < 0
            if not is_new.all():
                log(f"left out {int((~is_new).sum()):,} images that the index has already; delete them to replace them")
            if not is_new.any():
                return
            index.add(embedded.vectors[is_new], embedded.table.take(is_new), refiner)
        else:
            index.add(embedded.vectors, embedded.table, refiner)


def _ids_to_delete(index: ImageIndex, arguments: Arguments) -> Sequence[int]:
    """The ids that --delete names, by themselves, by paths, or by --where."""
    if not arguments.delete:
        ids = index.where(arguments.where).tolist()
        log(f"deleting {len(ids):,} images with {arguments.where}")
        return list(ids)
    found: dict[int, None] = {}
    for each in arguments.delete:
        if each.isdecimal():
            found[int(each)] = None
            continue
        ids = index.ids_at(os.path.abspath(os.path.expanduser(each))).tolist()
        if not ids:
            raise InputError(f"the index has no image {each}, nor one in a folder of this name")
        found |= dict.fromkeys(ids)
    return list(found)


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
