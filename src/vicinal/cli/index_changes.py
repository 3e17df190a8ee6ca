"""What `vicinal index` changes: an index is built, kept equal to a folder, added to, moved, or items are deleted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments
from vicinal.cli.index_flags import are_images, check_models, made_with, reader_for
from vicinal.cli.inputs import check_refiner, is_url, load_refiner, read_embedding
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex, Index, RemoteIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader


def changed_index(arguments: Arguments) -> ImageIndex:
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
        return Index.load(arguments.index, arguments.timeout)
    with Index.open(arguments.index, arguments.timeout) as index:
        if root is not None:
            index.move(root)
        if arguments.delete is not None:
            index.delete(_ids_to_delete(index, arguments))
    return index


def _build(arguments: Arguments) -> None:
    """Build and save an index of the source."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import with_file_facts

    in_batches = _is_built_in_batches(arguments, arguments.source)
    reader, refiner = read_embedding(arguments, mapped=in_batches), load_refiner(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    table = with_file_facts(embedded.table) if _is_of_images(arguments.source) else embedded.table
    index = _new_index(arguments, arguments.source, embedded, table, refiner)
    if isinstance(index, Index):
        index.save(arguments.index, arguments.timeout)


def _is_built_in_batches(arguments: Arguments, source: str) -> bool:
    """Whether an index is built in batches that are saved: one of codes in a folder, of embeddings that are stored."""
    from vicinal.retrieval.index.engines.rescoring import DEFAULT_RESCORE

    is_plain = arguments.kind in DEFAULT_RESCORE and not arguments.refiner and not is_url(arguments.index)
    return is_plain and not _is_of_images(source)


def _new_index(
    arguments: Arguments, source: str, embedded: EmbeddedTable, table: Any, refiner: ContextRefiner | None
) -> Index | RemoteIndex:
    """A new index: in memory, or complete in its folder or in a database."""
    from vicinal.retrieval import Index, RemoteIndex

    check_refiner(refiner, embedded)
    options = {
        "kind": arguments.kind or "auto", "model_fingerprint": embedded.fingerprint, "rescore": arguments.rescore,
        "made_with": made_with(arguments, source, embedded.engine), "overwrite": arguments.overwrite,
        "timeout": arguments.timeout,
    }  # fmt: skip
    index: Index | RemoteIndex
    if is_url(arguments.index):
        index = RemoteIndex.build(embedded.vectors, table, arguments.index, **options)
    else:
        folder = arguments.index if _is_built_in_batches(arguments, source) else None
        index = Index.build(embedded.vectors, table, refiner=refiner, folder=folder, **options)
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
    from vicinal.workflows.source import Source

    return Source(source).has_images


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
