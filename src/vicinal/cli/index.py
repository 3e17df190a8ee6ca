"""`vicinal index`: building an index, keeping it equal to a folder, changing, listing, upgrading and verifying it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, add_settings, flag_type, integer_from, print_result, read_settings
from vicinal.utils.arguments import MAX_MAGNITUDE
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex, Index, LocalEncoder, RemoteIndex
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

    if not arguments.overwrite and index_exists(arguments.index, arguments.timeout):
        raise InputError(
            f"{arguments.index} is an index already; `vicinal index add` or `sync` adds images to it, --overwrite "
            "replaces it"
        )
    build_index(arguments)
    _print_facts(arguments)


def add(arguments: Arguments) -> None:
    """Add the images that an index does not have yet, or whose files have changed."""
    inputs.check_index(arguments.index)
    check_source(arguments)
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
            raise InputError(
                f"{arguments.kind} is learned from all images at once; build the index first, and sync it later"
            )
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
            raise InputError("--facts is about the whole index; leave out --where")
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
            "give the new model with --model, embeddings by it with --embeddings, or return to the one before with "
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
    """Embeddings that are there already; the model of the flags embeds only what is not among them."""
    if _is_of_images(source):
        raise InputError(f"{source} holds no embeddings; `vicinal embed` makes them, with --shard on many machines")
    return replace(reader, mapped=True, model=None, weights=None, pooling=None, scales=None).embed(source)


def _reader_before(arguments: Arguments, made_with: Mapping[str, str]) -> EmbeddingReader | None:
    """How images were embedded before the upgrade, by the flags or else as the index says; None if it is unknown."""
    if "model" in made_with:
        inputs.use_flags_of_index(arguments, made_with, [])
    return inputs.read_embedding(arguments) if getattr(arguments, "model", None) is not None else None


def _print_facts(arguments: Arguments) -> None:
    from vicinal.retrieval import Index

    facts = Index.load(arguments.index, arguments.timeout).describe()
    print_result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


# mistakes that are refused before anything is read or embedded


def check_source(arguments: Arguments) -> None:
    """Raise InputError for flags that contradict each other and for what does not exist; before anything slow."""
    kind = getattr(arguments, "kind", None)
    _check_local(arguments)
    if getattr(arguments, "rescore", None) is not None and not kind:
        raise InputError("--rescore is about an index of codes; give --kind too, such as sq8")
    inputs.check_source(arguments.source)
    inputs.check_embedding(arguments)
    if not inputs.is_url(arguments.index):
        from vicinal.retrieval.index.index_state import check_target

        return check_target(Path(arguments.index))
    from vicinal.retrieval.index.remote.engine_url import EngineURL
    from vicinal.retrieval.index.remote.remote_engine import connect

    url = EngineURL.parse(arguments.index)
    if arguments.refiner:
        raise InputError(f"an index of refined embeddings is kept in a folder, not at {url}; leave out --refiner")
    if kind:
        connect(url).check_kind("hnsw" if kind == "auto" else kind)


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
            raise InputError(f"the index has no image {each}, nor one in a folder of this name")
        found |= dict.fromkeys(ids)
    return list(found)


# flags


def _add_place(parser: Parser) -> None:
    parser.add_argument("index", help=inputs.INDEX)


def _add_common(parser: Parser) -> None:
    parser.add_argument(
        "--timeout", type=integer_from(0), default=600, metavar="SECONDS",
        help="wait this long while another process writes the index, or retry a database this long when the "
        "connection is cut (default: 600)",
    )  # fmt: skip
    inputs.add_json(parser)


def _add_source(parser: Parser, purpose: str, *first: str, **options: Any) -> None:
    _add_place(parser)
    parser.add_argument("source", help=purpose, **options)
    inputs.add_refiner(parser, REFINER)
    inputs.add_embedding(parser)
    _add_common(parser)
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
        help="for sq8, ivfpq, rabitq and binary: how many candidates per match are compared exactly, with vectors that "
        "stay in a file; 0: none, scores are then approximate (default: 4, 10, 20, 40)",
    )  # fmt: skip


def _add_build(parser: Parser) -> None:
    from vicinal.workflows.settings import LocalSettings

    parser.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    _add_kind(parser)
    parser.add_argument(
        "--local", nargs="?", type=flag_type(float), const=0.5, metavar="WEIGHT",
        help="store local features of the images too, for --rerank local, with the weight that `vicinal evaluate "
        "--rerank local` chose (default: 0.5); images that are added or synced later get theirs",
    )  # fmt: skip
    add_settings(parser, LocalSettings, prefix="local.")
    _add_source(parser, inputs.SOURCE, "overwrite", "kind", "rescore", "local")


def _add_sync(parser: Parser) -> None:
    _add_kind(parser)
    _add_source(
        parser,
        "a folder or table of images: new ones are added, those that have vanished are dropped (from the folder; from "
        "everywhere if it is a table), changed files are embedded again. An index that is not there yet is built, and "
        "an interrupted call goes on where it was. Without it, --root says where the images of the index are now",
        "kind", "rescore", nargs="?",
    )  # fmt: skip


def _add_delete(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("images", nargs="*", metavar="ID_OR_PATH", help="ids, paths of images, or paths of folders")
    parser.add_argument("--where", metavar="CONDITION", help="delete the images whose columns fulfill this condition")
    _add_common(parser)


def _add_list(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("--where", metavar="CONDITION", help="only images whose columns fulfill this condition")
    parser.add_argument("--facts", action="store_true", help="the kind, size and model of the index in place of images")
    _add_common(parser)


def _add_verify(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("--queries", type=integer_from(1), default=100, metavar="INT", help="number of vectors of the "
                        "index to search for (default: 100); all vectors are read for that")  # fmt: skip
    _add_common(parser)


def _add_upgrade(parser: Parser) -> None:
    from vicinal.workflows.models import EmbeddingOptions

    _add_place(parser)
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
    _add_common(parser)
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


def build_index(arguments: Arguments) -> None:
    """Build and save an index of the source."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import with_file_facts

    in_batches = _is_built_in_batches(arguments)
    reader, refiner = inputs.read_embedding(arguments, mapped=in_batches), inputs.load_refiner(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    table = with_file_facts(embedded.table) if _is_of_images(arguments.source) else embedded.table
    encoder = _local_encoder(arguments, embedded)
    index = _new_index(arguments, embedded, table, refiner)
    if isinstance(index, Index):
        index.save(arguments.index, arguments.timeout, overwrite=getattr(arguments, "overwrite", False))
    if encoder is not None:
        from vicinal.workflows.local_features import store_local_features

        with Index.load(arguments.index, arguments.timeout) as saved:
            store_local_features(saved, encoder, arguments.local)


def _check_local(arguments: Arguments) -> None:
    """Raise InputError if local features are asked for that cannot be stored, or their options without them."""
    weight = getattr(arguments, "local", None)
    if weight is None:
        return inputs.check_local(arguments, is_used=False, needed="--local")
    if not 0 <= weight <= MAX_MAGNITUDE:
        raise InputError(f"--local {weight:g}: the weight of local features must be 0 or larger, and finite")
    if inputs.is_url(arguments.index):
        from vicinal.retrieval.index.remote.engine_url import EngineURL
        from vicinal.retrieval.index.remote.remote_engine import NO_CODES

        if EngineURL.parse(arguments.index).engine == "milvus":
            raise InputError(NO_CODES)
    if arguments.refiner:
        raise InputError("an index of refined embeddings is not re-ranked; leave out --local or --refiner")


def _local_encoder(arguments: Arguments, embedded: EmbeddedTable) -> LocalEncoder | None:
    """The encoder of the local features of a new index; None if it stores none."""
    if getattr(arguments, "local", None) is None:
        return None
    from vicinal.workflows.local_features import learn_encoder
    from vicinal.workflows.settings import LocalSettings

    settings = read_settings(LocalSettings, arguments, "local.")
    return learn_encoder(embedded.origin, embedded.table, settings, arguments.source)


def fill_local(arguments: Arguments, reader: EmbeddingReader | None = None) -> None:
    """Store the local features that are missing in an index that stores them, as those of new images are.

    A build that was killed may have left some out too.
    """
    from vicinal.retrieval import Index

    with Index.load(arguments.index, arguments.timeout) as index:
        if index.local_settings is None or not len(index.ids_without_local_codes()):
            return
        from vicinal.workflows.local_features import fill_local_features, stored_encoder

        reader = reader or _reader(arguments)[0]
        encoder = None if reader.model is None else stored_encoder(index, reader.loaded_model)
        if encoder is not None:
            fill_local_features(index, encoder)


def _is_built_in_batches(arguments: Arguments) -> bool:
    """Whether an index is built in batches that are saved: one of codes in a folder, of embeddings that are stored."""
    from vicinal.retrieval.index.kinds import DEFAULT_RESCORE

    is_plain = arguments.kind in DEFAULT_RESCORE and not arguments.refiner and not inputs.is_url(arguments.index)
    return is_plain and not _is_of_images(arguments.source)


def _new_index(
    arguments: Arguments, embedded: EmbeddedTable, table: Table, refiner: ContextRefiner | None
) -> Index | RemoteIndex:
    """A new index: in memory, or complete in its folder or in a database."""
    from vicinal.retrieval import Index, RemoteIndex

    inputs.check_refiner(refiner, embedded)
    options = {
        "kind": arguments.kind or "auto", "model_fingerprint": embedded.fingerprint, "rescore": arguments.rescore,
        "made_with": inputs.made_with(arguments, arguments.source, embedded.engine),
        "overwrite": getattr(arguments, "overwrite", False), "timeout": arguments.timeout,
    }  # fmt: skip
    index: Index | RemoteIndex
    if inputs.is_url(arguments.index):
        index = RemoteIndex.build(embedded.vectors, table, arguments.index, **options)
    else:
        folder = arguments.index if _is_built_in_batches(arguments) else None
        index = Index.build(embedded.vectors, table, refiner=refiner, folder=folder, **options)
    index.root = _root(arguments)
    if "model" in index.made_with:
        from vicinal.workflows.calibration_places import stored_calibration

        index.calibration = stored_calibration(index.made_with["model"], index.fingerprint())
    return index


def _root(arguments: Arguments) -> str | None:
    """The folder of the source's images, from which their paths are kept; None if it is not a folder or table."""
    source = arguments.source
    if not inputs.are_images([source]):
        return None
    if Path(source).suffix.lower() in (".csv", ".parquet") and Path(source).is_file():
        return os.path.abspath(getattr(arguments, "root", None) or Path(source).parent)
    return os.path.abspath(source) if os.path.isdir(source) else None


def _is_of_images(source: str) -> bool:
    """Whether a source is embedded here, and holds no embeddings."""
    from vicinal.workflows.source import Source

    return Source(source).has_images


def _reader(arguments: Arguments) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """The embedder of the source, by that of the index if it exists."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import index_exists

    if not index_exists(arguments.index, arguments.timeout):
        return inputs.read_embedding(arguments), inputs.load_refiner(arguments)
    index = Index.load(arguments.index)
    reader, refiner = inputs.reader_for(index, arguments, [arguments.source])
    if inputs.are_images([arguments.source]):  # before many of them are embedded
        index.check_model(reader.fingerprint, inputs.made_with(arguments, arguments.source))
    return reader, refiner


def sync_images(arguments: Arguments, drop: bool) -> None:
    """Add the new and the changed images of a source, and drop those that it does not hold any more."""
    from vicinal.workflows.sync import sync_index

    source = arguments.source
    if not _is_of_images(source):
        raise InputError(f"{source} holds embeddings; sync takes a folder or table of images")
    reader, refiner = _reader(arguments)
    flags = inputs.made_with(arguments, source)

    def upsert(index: ImageIndex, embedded: EmbeddedTable) -> None:
        index.check_refiner(refiner)
        inputs.check_models(index, refiner, embedded, flags)
        index.upsert(embedded.vectors, embedded.table, refiner)

    changes = sync_index(
        arguments.index,
        reader.read_table(source, arguments.split),
        reader.embed_function(source),
        lambda embedded: _new_index(arguments, embedded, embedded.table, refiner),
        upsert,
        drop=drop,
        below=source if os.path.isdir(source) and inputs.are_images([source]) else None,
        root=_root(arguments),
        timeout=arguments.timeout,
    )
    fill_local(arguments, reader)
    numbers = str(changes) if drop else str(changes).replace(f"{len(changes.vanished):,} vanished, ", "")
    log(f"{source}: {numbers}")


def add_images(arguments: Arguments) -> None:
    """Add images of a source that the index does not have."""
    if _is_of_images(arguments.source):
        return sync_images(arguments, drop=False)
    from vicinal.retrieval import Index

    reader, refiner = _reader(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    with Index.open(arguments.index, arguments.timeout) as index:
        index.check_refiner(refiner)
        inputs.check_models(index, refiner, embedded, inputs.made_with(arguments, arguments.source))
        if embedded.table.has("path"):
            is_new = index.ids_by_key(embedded.table.image_keys) < 0
            if not is_new.all():
                log(f"left out {int((~is_new).sum()):,} images that the index has already; delete them to replace them")
            if not is_new.any():
                return
            index.add(embedded.vectors[is_new], embedded.table.take(is_new), refiner)
        else:
            index.add(embedded.vectors, embedded.table, refiner)
