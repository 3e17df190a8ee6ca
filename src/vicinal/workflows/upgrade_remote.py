"""A new model for an index in a database: its vectors are written beside the old ones, then they are searched."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vicinal.retrieval.index.remote.remote_generation import RemoteGeneration, generation_name
from vicinal.retrieval.index.remote.remote_index import RemoteIndex
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.upgrade_comparison import GenerationComparison, compare_generations
from vicinal.workflows.upgrade_images import MAX_LAST, UpgradedImages, check_reader_before

NUM_PROBES = 32  # images that tell the number of dimensions


def upgrade_remote(
    index: RemoteIndex, images: UpgradedImages, own: Mapping[str, Any], report: Callable[[GenerationComparison], object]
) -> None:
    """As :func:`upgrade_index <vicinal.workflows.upgrade_index>`, for an index in a database.

    `own` has the facts of the new vectors, except `generation`, `dim` and `local_features`.
    """
    dim = _first_dim(index, images)
    name = generation_name(own["model_fingerprint"], images.reader.used_precision, dim)
    local = images.learn_local_features(secrets.token_hex(8))
    own = {**own, "generation": name, "dim": dim, "local_features": local}
    with index.generation(own) as generation, generation.only_one():
        filling = _Filling(index, images, generation)
        generation.begin()
        filling.catch_up()
        generation.finish()
        filling.catch_up()
        images.fill_local_features(local)
        ids = np.setdiff1d(index.ids(), filling.missing())
        report(
            compare_generations(
                index, ids, lambda queries, k: index.search(index.vectors_of(queries), k).ids, generation.search
            )
        )
        filling.switch()
    _fill_last(index, images)


def roll_back_remote(index: RemoteIndex, reader_for: Callable[[Mapping[str, str]], EmbeddingReader | None]) -> None:
    """As :func:`roll_back <vicinal.workflows.roll_back>`, for an index in a database."""
    if index.previous is None:
        raise InputError(f"{index.url} has no previous generation: it was never upgraded")
    images = UpgradedImages(index, index.url, EmbeddingReader())
    with index.generation(index.previous) as generation, generation.only_one():
        filling = _Filling(index, images, generation)
        added = filling.missing()
        images.reader = check_reader_before(index, index.url, added, index.previous, reader_for) or images.reader
        filling.catch_up()
        if images.reader.model is not None:
            images.fill_local_features(index.previous.get("local_features"))
        filling.switch()
    _fill_last(index, images)


def _fill_last(index: RemoteIndex, images: UpgradedImages) -> None:
    """Store the local features of images that were added before the change; the model may not be known."""
    if images.reader.model is not None:
        with RemoteIndex.connect(images.place, index.timeout) as changed:
            replace(images, index=changed).fill_local_features(changed.local_settings)


def _first_dim(index: RemoteIndex, images: UpgradedImages) -> int:
    """The number of dimensions of the new vectors, by some images; those that cannot be embedded are left out."""
    for ids, _ in index.blocks():
        for start in range(0, len(ids), NUM_PROBES):
            found, vectors = images.embed(ids[start : start + NUM_PROBES])
            if len(found):
                return vectors.shape[1]
    raise InputError(f"{index.url} has no image that can be embedded; it is unchanged")


@dataclass
class _Filling:
    """Embeds the images that have no vector of a generation yet."""

    index: RemoteIndex
    images: UpgradedImages
    generation: RemoteGeneration

    def catch_up(self) -> None:
        """Embed images until only a few that were added meanwhile are left."""
        while self._fill() > MAX_LAST:
            pass

    def missing(self) -> Integers:
        """The ids of the images without a vector, ascending."""
        return np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in self.generation.missing())])

    def switch(self) -> None:
        """Switch searches to the generation; images that cannot be embedded leave the index."""
        gone = np.empty(0, np.int64)

        def finish() -> None:
            nonlocal gone
            self._fill()
            last = np.intersect1d(self.images.left_out, self.missing())
            self.generation.delete(last)
            gone = np.union1d(gone, last)

        self.generation.switch(finish)
        if len(gone):
            log(f"{len(gone):,} images that cannot be embedded were removed; a rollback does not restore them")
        log(f"{self.index.url} holds embeddings of {self.generation.facts['model_fingerprint']} now")

    def _fill(self) -> int:
        """Embed the images that have no vector now; returns their number."""
        number = 0
        for ids, versions in self.generation.missing():
            is_new = ~np.isin(ids, self.images.left_out)
            if not is_new.any():
                continue
            found, vectors = self.images.embed(ids[is_new])
            if len(found):
                version_of = dict(zip(ids.tolist(), versions, strict=True))
                self.generation.fill(found, [version_of[each] for each in found.tolist()], vectors)
                number += len(found)
                log(f"{self.index.url}: embedded {number:,} images")
        return number
