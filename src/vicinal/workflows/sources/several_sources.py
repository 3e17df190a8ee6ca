"""Several embedding sources, one after the other: the memory is that of one model and all vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vicinal.workflows.sources.embedded_table import EmbeddedTable
from vicinal.workflows.sources.embedding_reader import EmbeddingReader


def embed_several(
    reader: EmbeddingReader,
    sources: Sequence[str],
    split: str | None = None,
    *,
    images: str | None = None,
    keep_models: bool = False,
) -> Iterator[tuple[str, EmbeddedTable]]:
    """Yield the name and the embeddings of several sources in order.

    All models are loaded once before the first image is read, so that one that cannot be loaded is reported at once.
    Each is let go before the next is loaded.

    Args:
        reader: how sources are read.
        sources: the sources; with `images`, models that embed these.
        split: use only the images of this split.
        images: as a source of :meth:`EmbeddingReader.embed`.
        keep_models: whether the embeddings keep the models that made them, for their fingerprints.

    Raises:
        InputError: a model cannot be loaded, or as :meth:`EmbeddingReader.embed`.
    """
    if len(sources) > 1:
        for name in sources:
            _reader(reader, name, images).check_model(images or name)
    for name in sources:
        yield name, _embed(_reader(reader, name, images), name, images or name, split, keep_models)


def _embed(reader: EmbeddingReader, name: str, source: str, split: str | None, keep_model: bool) -> EmbeddedTable:
    """A function of its own, so that no variable of the generator holds the last model while the next is loaded."""
    embedded = reader.embed(source, split)
    return embedded if keep_model or isinstance(embedded.origin, str) else replace(embedded, origin=name)


def _reader(reader: EmbeddingReader, name: str, images: str | None) -> EmbeddingReader:
    """A reader of its own for each model, which does not outlive it."""
    return reader if images is None else replace(reader, model=name)
