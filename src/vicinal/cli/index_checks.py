"""What `vicinal index` refuses before anything is read or embedded."""

from __future__ import annotations

from pathlib import Path

from vicinal.cli.flags import Arguments
from vicinal.cli.inputs import check_embedding, check_index, check_source, is_url
from vicinal.utils.errors import InputError


def check_flags(arguments: Arguments) -> None:
    """Raise InputError if flags exclude each other, or name what is not there or cannot hold the index."""
    _check_combination(arguments)
    for source in (arguments.source, arguments.add, arguments.sync):
        check_source(source)
    if not (arguments.source or arguments.sync):
        check_index(arguments.index)
    check_embedding(arguments)
    if is_url(arguments.index):
        _check_remote(arguments)
    elif arguments.source or arguments.sync:
        _check_folder(arguments)


def _check_combination(arguments: Arguments) -> None:
    for is_wrong, message in (*_wrong_builds(arguments), *_wrong_selections(arguments)):
        if is_wrong:
            raise InputError(message)


def _sources(arguments: Arguments) -> list[str]:
    """The flags that name sources."""
    return [name for name in ("source", "add", "sync") if getattr(arguments, name)]


def _wrong_builds(arguments: Arguments) -> list[tuple[bool, str]]:
    """Which flags about sources and kinds of indexes exclude each other, and the message."""
    sources, kind, is_built = _sources(arguments), arguments.kind, bool(arguments.source or arguments.sync)
    return [
        (
            bool(arguments.sync) and len(sources) > 1,
            f"--sync makes the index hold one source; leave out --{''.join(sources[:1])}",
        ),
        (
            arguments.overwrite and not arguments.source,
            "--overwrite is about building an index; give --source too",
        ),
        (
            bool(kind) and not is_built,
            "--kind is about building an index; give --source or --sync too",
        ),
        (
            arguments.rescore is not None and not kind,
            "--rescore is about an index of codes; give --kind too, such as sq8",
        ),
        (
            kind in ("ivfpq", "rabitq") and bool(arguments.sync),
            f"{kind} is learned from all images at once; build the index by --source, and --sync it later",
        ),
    ]


def _wrong_selections(arguments: Arguments) -> list[tuple[bool, str]]:
    """Which flags about images of sources and of the index exclude each other, and the message."""
    sources = _sources(arguments)
    where, root = (getattr(arguments, name, None) for name in ("where", "root"))
    has_where, is_deleting = where is not None, arguments.delete is not None
    return [
        (
            arguments.verify is not None and arguments.list,
            "--verify prints recall and latency; list the index by a call of its own",
        ),
        (
            bool(arguments.split) and not sources,
            "--split selects images of a source; give --source, --add or --sync too",
        ),
        (
            hasattr(arguments, "labels") and len(sources) != 1,
            "--labels is the table of one file of embeddings; give it as --source or --add",
        ),
        (
            bool(arguments.refiner) and not sources,
            "--refiner refines images that are added; give --source, --add or --sync too",
        ),
        (
            arguments.delete == [] and (not has_where or bool(sources)),
            '--delete needs ids, paths, or --where alone, such as --delete --where "price > 20"',
        ),
        (
            has_where and bool(arguments.delete),
            "--where is a selection of its own; leave out the ids and paths of --delete",
        ),
        (
            has_where and not sources and not is_deleting and not arguments.list,
            "--where selects images; give --delete, --list or a source too",
        ),
        (
            has_where and bool(sources) and arguments.list,
            "--where selects images of the source; list the index by a call of its own",
        ),
        (
            root is not None and not sources and is_deleting,
            "--root says where the images of the index are now; delete images by a call of its own",
        ),
    ]


def _check_folder(arguments: Arguments) -> None:
    """Raise before images are embedded if a folder cannot hold the index, or holds another one."""
    from vicinal.retrieval.index.database import Database
    from vicinal.retrieval.index.vector_files import check_target

    check_target(Path(arguments.index))
    if arguments.source and Database.exists(Path(arguments.index)) and not arguments.overwrite:
        raise _exists_already(arguments.index)


def _check_remote(arguments: Arguments) -> None:
    """Raise before images are embedded if a database cannot hold the index, is not there, or holds another one."""
    from vicinal.retrieval.index.remote.engine_url import EngineURL
    from vicinal.retrieval.index.remote.remote_engine import connect
    from vicinal.workflows.sync import index_exists

    url = EngineURL.parse(arguments.index)
    if arguments.refiner:
        raise InputError(f"an index of refined embeddings is kept in a folder, not at {url}; leave out --refiner")
    if arguments.kind:
        connect(url).check_kind("hnsw" if arguments.kind == "auto" else arguments.kind)
    if arguments.source and index_exists(arguments.index, arguments.timeout) and not arguments.overwrite:
        raise _exists_already(str(url))


def _exists_already(place: str) -> InputError:
    return InputError(f"{place} is an index already; --add or --sync adds images to it, --overwrite replaces it")
