"""Local features of embedded images, for re-ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vicinal.data.images.transforms import ImageTransform
from vicinal.data.table import Table
from vicinal.evaluation.reranking_weight import choose_weight
from vicinal.models import Embedder
from vicinal.models.feature_maps import patch_transform
from vicinal.models.module_embedder import ModuleEmbedder
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.reranking.local import LocalReranking
from vicinal.retrieval.reranking.local_features import IndexFeatures, LocalEncoder, encode_items, sample_images
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.settings import LocalSettings

MEBIBYTE = 2**20
BLOCK_SIZE = 1_000  # images whose local features are stored together


def learn_encoder(model: object, images: Table, settings: LocalSettings, source: str) -> LocalEncoder:
    """The encoder of local features by a model of a timm backbone, whose whitening is learned on the given images."""
    if not isinstance(model, Embedder) or isinstance(model, ModuleEmbedder):
        raise InputError(
            f"{source}: local features need images and a model with a timm backbone, not stored embeddings or "
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

    Its weight is chosen on the validation images, of other classes, if there are any.
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
    tables = embedded.table, validation.table
    if all(table.has("path") for table in tables) and {*tables[0].image_keys} & {*tables[1].image_keys}:
        log(
            f"{source}: the weight was chosen on images that are evaluated here, so its gain is overestimated; "
            "evaluate another split, such as --split test"
        )
    return replace(method, weight=choice.weight)


def log_cost(method: LocalReranking, encoder: LocalEncoder, num_images: int) -> None:
    """Log the memory and the time per query of a re-ranking by local features."""
    patches, dim = encoder.shape
    log(
        f"local features: {patches} patches of {dim} bytes, {num_images * patches * dim / MEBIBYTE:,.1f} MiB for "
        f"{counted(num_images, 'image')}; comparing a query with {min(method.k, num_images)} images takes about "
        f"{1000 * method.seconds_per_query():.0f} ms"
    )


def store_local_features(index: ImageIndex, encoder: LocalEncoder, weight: float) -> None:
    """Let an index in a folder or in PostgreSQL store local features, and compute those of its images."""
    index.store_local_codes({**encoder.to_settings(), "weight": weight})
    fill_local_features(index, encoder)


def fill_local_features(
    index: ImageIndex, encoder: LocalEncoder, settings: Mapping[str, Any] | None = None, left_out: Sequence[int] = ()
) -> None:
    """Compute and store the missing local features of the images of an index.

    They are stored a block at a time, under the settings of the encoder or else those of the index; images that others
    delete or replace meanwhile are left out.
    """
    missing = np.setdiff1d(index.ids_without_local_codes(settings), left_out)
    for start in range(0, len(missing), BLOCK_SIZE):
        ids = index.present(missing[start : start + BLOCK_SIZE])
        vectors = index.vectors_of(ids)
        codes = encode_items(index, ids, encoder)
        same = [number for number in _with_same_vectors(index, ids, vectors) if number in codes]
        index.add_local_codes(np.array(same, np.int64), [codes[number].tobytes() for number in same], settings)


def _with_same_vectors(index: ImageIndex, ids: Integers, vectors: Floats) -> list[int]:
    """The ids of images that still have these vectors; others were deleted or replaced."""
    present = index.present(ids)
    is_same = (index.vectors_of(present) == vectors[np.searchsorted(ids, present)]).all(axis=1)
    same: list[int] = present[is_same].tolist()
    return same


def stored_encoder(index: ImageIndex, model: object) -> LocalEncoder | None:
    """The encoder of the local features stored in an index, by its model; None without such features or a model."""
    if index.local_settings is None or not isinstance(model, Embedder):
        return None
    return LocalEncoder.from_settings(model, index.local_settings)


class LocalSearch:
    """Searches an index with re-ranking by local features, which the index stores or which are computed when needed.

    The settings apply to an index that stores none; the default weight of matching patches is that of the index, or
    else that of the method.
    """

    def __init__(
        self,
        index: ImageIndex,
        model: object,
        settings: LocalSettings | None,
        method: LocalReranking,
        weight: float | None = None,
    ) -> None:
        encoder, stored = stored_encoder(index, model), index.local_settings
        if encoder is not None and settings is not None:
            raise InputError("the index stores its local features; leave out the options --local.size, layer and dim")
        if encoder is None:
            encoder = learn_encoder(model, sample_images(index), settings or LocalSettings(), "the queries")
        if weight is None and stored is not None:
            weight = stored["weight"]
        self._method = method if weight is None else replace(method, weight=weight)
        self._encoder, self._gallery = encoder, IndexFeatures(index, encoder)
        log_cost(self._method.with_features(self._gallery), encoder, len(index))

    @property
    def transform(self) -> ImageTransform:
        """The transform of the images that are divided into patches."""
        return patch_transform(self._encoder.model, self._encoder.size)

    def reranking(self, queries: Table) -> LocalReranking:
        return self._method.with_features(self._encoder.features(queries), self._gallery)
