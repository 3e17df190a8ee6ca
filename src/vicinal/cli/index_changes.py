"""Building, syncing and adding to an index from a source of images or embeddings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.cli.flags import Arguments
from vicinal.cli.index_flags import are_images, check_models, made_with, reader_for
from vicinal.cli.inputs import check_refiner, is_url, load_refiner, read_embedding
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex, Index, RemoteIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader


def build_index(arguments: Arguments) -> None:
    """Build and save an index of the source."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import with_file_facts

    in_batches = _is_built_in_batches(arguments)
    reader, refiner = read_embedding(arguments, mapped=in_batches), load_refiner(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    table = with_file_facts(embedded.table) if _is_of_images(arguments.source) else embedded.table
    index = _new_index(arguments, embedded, table, refiner)
    if isinstance(index, Index):
        index.save(arguments.index, arguments.timeout)


def _is_built_in_batches(arguments: Arguments) -> bool:
    """Whether an index is built in batches that are saved: one of codes in a folder, of embeddings that are stored."""
    from vicinal.retrieval.index.kinds import DEFAULT_RESCORE

    is_plain = arguments.kind in DEFAULT_RESCORE and not arguments.refiner and not is_url(arguments.index)
    return is_plain and not _is_of_images(arguments.source)


def _new_index(
    arguments: Arguments, embedded: EmbeddedTable, table: Table, refiner: ContextRefiner | None
) -> Index | RemoteIndex:
    """A new index: in memory, or complete in its folder or in a database."""
    from vicinal.retrieval import Index, RemoteIndex

    check_refiner(refiner, embedded)
    options = {
        "kind": arguments.kind or "auto", "model_fingerprint": embedded.fingerprint, "rescore": arguments.rescore,
        "made_with": made_with(arguments, arguments.source, embedded.engine),
        "overwrite": getattr(arguments, "overwrite", False), "timeout": arguments.timeout,
    }  # fmt: skip
    index: Index | RemoteIndex
    if is_url(arguments.index):
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
    if not are_images([source]):
        return None
    if Path(source).suffix.lower() in (".csv", ".parquet") and Path(source).is_file():
        return os.path.abspath(getattr(arguments, "root", None) or Path(source).parent)
    return os.path.abspath(source) if os.path.isdir(source) else None


def _is_of_images(source: str) -> bool:
    """Whether a source is embedded here, and holds no embeddings."""
    from vicinal.workflows.source import Source

    return Source(source).has_images


def _reader(arguments: Arguments) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """What embeds the images of the source as those of the index, if there is one."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import index_exists

    if not index_exists(arguments.index, arguments.timeout):
        return read_embedding(arguments), load_refiner(arguments)
    index = Index.load(arguments.index)
    reader, refiner = reader_for(index, arguments, [arguments.source])
    if are_images([arguments.source]):  # before many of them are embedded
        index.check_model(reader.fingerprint, made_with(arguments, arguments.source))
    return reader, refiner


def sync_images(arguments: Arguments, drop: bool) -> None:
    """Add the new and the changed images of a source, and drop those that it does not hold any more."""
    from vicinal.workflows.sync import sync_index

    source = arguments.source
    if not _is_of_images(source):
        raise InputError(f"{source} holds embeddings; sync takes a folder or table of images")
    reader, refiner = _reader(arguments)
    flags = made_with(arguments, source)

    def upsert(index: ImageIndex, embedded: EmbeddedTable) -> None:
        index.check_refiner(refiner)
        check_models(index, refiner, embedded, flags)
        index.upsert(embedded.vectors, embedded.table, refiner)

    changes = sync_index(
        arguments.index,
        reader.read_table(source, arguments.split),
        reader.embed_function(source),
        lambda embedded: _new_index(arguments, embedded, embedded.table, refiner),
        upsert,
        drop=drop,
        below=source if os.path.isdir(source) and are_images([source]) else None,
        root=_root(arguments),
        timeout=arguments.timeout,
    )
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
        check_models(index, refiner, embedded, made_with(arguments, arguments.source))
        if embedded.table.has("path"):
            is_new = index.ids_by_key(embedded.table.image_keys) < 0
            if not is_new.all():
                log(f"left out {int((~is_new).sum()):,} images that the index has already; delete them to replace them")
            if not is_new.any():
                return
            index.add(embedded.vectors[is_new], embedded.table.take(is_new), refiner)
        else:
            index.add(embedded.vectors, embedded.table, refiner)
