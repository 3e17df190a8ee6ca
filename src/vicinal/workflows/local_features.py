"""Local features of embedded images, for re-ranking."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vicinal.data.table import Table
from vicinal.evaluation.reranking_weight import choose_weight
from vicinal.models import Embedder
from vicinal.models.module_embedder import ModuleEmbedder
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.reranking.local import LocalReranking
from vicinal.retrieval.reranking.local_features import MAX_FIT_IMAGES, IndexFeatures, LocalEncoder, images_of
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.settings import LocalSettings

MEBIBYTE = 2**20


def learn_encoder(model: object, images: Table, settings: LocalSettings, source: str) -> LocalEncoder:
    """The encoder of local features by a model, whose whitening is learned on some images.

    Args:
        model: that of the embeddings.
        images: those that are searched.
        settings: of the local features.
        source: the name of the images, for messages.

    Raises:
        InputError: the model is none of a timm backbone, or as :meth:`~vicinal.retrieval.LocalEncoder.fit`.
    """
    if not isinstance(model, Embedder) or isinstance(model, ModuleEmbedder):
        raise InputError(
            f"{source}: local features come from images and a model of a timm backbone, not from stored embeddings or "
            "an exported model; name the images, and the model with --model"
        )
    return LocalEncoder.fit(model, images, settings.dim or None, settings.size, settings.layer)


def with_local_features(
    method: LocalReranking,
    embedded: EmbeddedTable,
    settings: LocalSettings,
    source: str,
    validation: EmbeddedTable | None = None,
) -> LocalReranking:
    """A re-ranking of embedded images with their local features; what these cost is logged.

    Args:
        method: the re-ranking.
        embedded: the images, with the model that embedded them.
        settings: of the local features.
        source: the name of the images, for messages.
        validation: images of other classes, by which the weight is chosen; None: it is that of `method`.

    Raises:
        InputError: as :func:`learn_encoder` and :func:`~vicinal.evaluation.choose_weight`.
    """
    encoder = learn_encoder(embedded.origin, embedded.table, settings, source)
    features = encoder.features(embedded.table)
    method = method.with_features(features)
    log_cost(method, encoder, len(embedded.table))
    if validation is None:
        return method
    inputs = validation.vectors, validation.table
    choice = choose_weight(*inputs, method.with_features(encoder.features(validation.table)))
    classes = counted(len(validation.table.classes), "validation class", "validation classes")
    log(f"local features, by {classes}: {choice}")
    return replace(method, weight=choice.weight)


def log_cost(method: LocalReranking, encoder: LocalEncoder, num_images: int) -> None:
    """Log the memory and the time per query of a re-ranking by local features."""
    patches, dim = encoder.shape
    log(
        f"local features: {patches} patches of {dim} bytes, {num_images * patches * dim / MEBIBYTE:,.1f} MiB for "
        f"{counted(num_images, 'image')}; comparing a query with {min(method.k, num_images)} images takes about "
        f"{1000 * method.seconds_per_query():.0f} ms"
    )


class LocalSearch:
    """Searches an index with re-ranking by local features.

    Args:
        index: the index, whose images have paths.
        queries: images that were embedded by the model of the index.
        settings: of the local features.
        method: the re-ranking.

    Raises:
        InputError: as :func:`learn_encoder`, or no image of the index has a path.
    """

    def __init__(
        self, index: ImageIndex, queries: EmbeddedTable, settings: LocalSettings, method: LocalReranking
    ) -> None:
        generator = np.random.default_rng(0)
        ids = np.sort(index.sample_ids(min(len(index), MAX_FIT_IMAGES), generator))
        self._encoder = learn_encoder(queries.origin, images_of(index, ids), settings, "the queries")
        self._method, self._gallery = method, IndexFeatures(self._encoder, index)
        log_cost(method.with_features(self._gallery), self._encoder, len(index))

    def reranking(self, queries: EmbeddedTable) -> LocalReranking:
        """The re-ranking of some queries."""
        return self._method.with_features(self._encoder.features(queries.table), self._gallery)
