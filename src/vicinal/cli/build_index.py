"""Builds an index from a source of images or embeddings, adds to it, and keeps it equal to a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, read_settings
from vicinal.utils.arguments import MAX_MAGNITUDE
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex, Index, LocalEncoder, RemoteIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader


def check_source(arguments: Arguments) -> None:
    """Raise InputError for flags that contradict each other and for missing inputs; before anything slow."""
    kind = getattr(arguments, "kind", None)
    _check_local(arguments)
    if getattr(arguments, "rescore", None) is not None and not kind:
        raise InputError("--rescore needs an index of codes; give --kind too, such as sq8")
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


def build_index(arguments: Arguments) -> None:
    """Build and save an index of the source."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import with_file_facts

    in_batches = _is_built_in_batches(arguments)
    reader, refiner = inputs.read_embedding(arguments, mapped=in_batches), inputs.load_refiner(arguments)
    embedded = reader.embed(arguments.source, arguments.split)
    table = with_file_facts(embedded.table) if holds_images(arguments.source) else embedded.table
    encoder = _local_encoder(arguments, embedded)
    index = _new_index(arguments, embedded, table, refiner)
    if isinstance(index, Index):
        index.save(arguments.index, arguments.timeout, overwrite=getattr(arguments, "overwrite", False))
    if encoder is not None:
        from vicinal.workflows.local_features import store_local_features

        with Index.load(arguments.index, arguments.timeout) as saved:
            store_local_features(saved, encoder, arguments.local)


def _check_local(arguments: Arguments) -> None:
    """Raise InputError if requested local features cannot be stored, or if only their options are given."""
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
    """Store the missing local features, of new images and of images that a killed build left out."""
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
    """Whether an index is built in batches, without all vectors in memory: one of codes, in a folder, from files."""
    from vicinal.retrieval.index.kinds import DEFAULT_RESCORE

    is_plain = arguments.kind in DEFAULT_RESCORE and not arguments.refiner and not inputs.is_url(arguments.index)
    return is_plain and not holds_images(arguments.source)


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


def holds_images(source: str) -> bool:
    """Whether a source holds images, which are embedded here, rather than embeddings."""
    from vicinal.workflows.source import Source

    return Source(source).has_images


def _reader(arguments: Arguments) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """The embedder of the source; if the index exists, as the index was built."""
    from vicinal.retrieval import Index
    from vicinal.workflows.sync import index_exists

    if not index_exists(arguments.index, arguments.timeout):
        return inputs.read_embedding(arguments), inputs.load_refiner(arguments)
    with Index.load(arguments.index, arguments.timeout) as index:
        reader, refiner = inputs.reader_for(index, arguments, [arguments.source])
        if inputs.are_images([arguments.source]):  # before many of them are embedded
            index.check_model(reader.fingerprint, inputs.made_with(arguments, arguments.source))
    return reader, refiner


def sync_images(arguments: Arguments, drop: bool) -> None:
    """Add the new and the changed images of a source, and drop images that it no longer holds."""
    from vicinal.workflows.sync import sync_index

    source = arguments.source
    if not holds_images(source):
        raise InputError(f"{source} holds embeddings; sync takes a folder or table of images")
    reader, refiner = _reader(arguments)
    flags, table = inputs.made_with(arguments, source), reader.read_table(source, arguments.split)
    if not inputs.is_url(arguments.index) and getattr(arguments, "kind", "") in (None, "auto"):
        from vicinal.retrieval.index.faiss_engine import default_kind

        arguments.kind = default_kind(len(table))  # of all images, not of those that are embedded first

    def upsert(index: ImageIndex, embedded: EmbeddedTable) -> None:
        index.check_refiner(refiner)
        inputs.check_models(index, refiner, embedded, flags)
        index.upsert(embedded.vectors, embedded.table, refiner)

    changes = sync_index(
        arguments.index,
        table,
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
    if holds_images(arguments.source):
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
                log(f"left out {int((~is_new).sum()):,} images already in the index; delete them to replace them")
            if not is_new.any():
                return
            index.add(embedded.vectors[is_new], embedded.table.take(is_new), refiner)
        else:
            index.add(embedded.vectors, embedded.table, refiner)
