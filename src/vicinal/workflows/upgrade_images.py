"""Embedding the images of an index by another model; images that cannot be embedded are refused or leave the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from vicinal.data.batches.image_dataset import NoReadableImageError
from vicinal.data.columns import BOX_COLUMNS, image_keys
from vicinal.data.moved import image_file
from vicinal.data.table import Table
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.made_with import model_mismatch_error
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.embedding_reader import EmbeddingReader

if TYPE_CHECKING:
    from vicinal.models import Embedder

MAX_LAST = 32  # images that are embedded while nobody else writes
MAX_NAMED = 5


@dataclass
class UpgradedImages:
    """The images of an index, and how they become embeddings.

    Images that cannot be embedded are left out if the reader's `on_error` is "skip", else refused. Images that `stored`
    has, by path and bounding box, keep those embeddings.
    """

    index: ImageIndex
    place: str
    reader: EmbeddingReader
    stored: EmbeddedTable | None = None
    left_out: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def _row_of(self) -> dict[str, int]:
        keys = [] if self.stored is None else self.stored.table.image_keys
        return dict(zip(keys, range(len(keys)), strict=True))

    def stored_rows(self, ids: Integers) -> Integers:
        """The rows of images in the stored embeddings, int64 [n]; -1 for an image that is not among them."""
        if self.stored is None:
            return np.full(len(ids), -1, np.int64)
        found = self.index.lookup(ids, skip_unknown=True)
        frame = found[found["path"].notna()] if "path" in found else found.iloc[:0].assign(path="")
        rows = [self._row_of.get(key, -1) for key in image_keys(frame)]
        row_of = dict(zip(frame["id"].tolist(), rows, strict=True))
        absent = [number for number in found["id"].tolist() if row_of.get(number, -1) < 0]
        if absent and self.reader.model is None:
            raise InputError(
                f"{self.place}: {len(absent):,} images are not among the embeddings ("
                f"{named(self.index, np.array(absent))}); give the model with --model too, which embeds them here"
            )
        return np.array([row_of.get(number, -1) for number in ids.tolist()], np.int64)

    def frame(self, ids: Integers) -> pd.DataFrame:
        """The ids, files and bounding boxes of images; those without a file are refused or left out."""
        found = self.index.lookup(ids, skip_unknown=True)
        paths = found["path"] if "path" in found else pd.Series(None, index=found.index, dtype=object)
        files = [str(image_file(path, Path(self.place))) if isinstance(path, str) else "" for path in paths]
        is_there = np.array([os.path.isfile(file) for file in files], dtype=bool)
        self.refuse(found["id"].to_numpy(np.int64)[~is_there], "have no file")
        columns = [name for name in BOX_COLUMNS if name in found]
        frame = found[["id", *columns]].assign(path=files)
        return frame[is_there].reset_index(drop=True)

    def embed(self, ids: Integers) -> tuple[Integers, Floats]:
        """The ids and embeddings of the images that can be embedded, int64 [n] and float32 [n, dim]."""
        rows = self.stored_rows(ids)
        known = ids[rows >= 0]
        if self.stored is None or not len(known):
            return self._embed(ids)
        found, vectors = self._embed(ids[rows < 0])
        stored = np.asarray(self.stored.vectors[rows[rows >= 0]])
        return np.concatenate([known, found]), np.concatenate([stored, vectors.reshape(-1, stored.shape[1])])

    def _embed(self, ids: Integers) -> tuple[Integers, Floats]:
        frame = self.frame(ids)
        if not len(frame):
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        with_errors = replace(self.reader, on_error=self.reader.on_error or "raise")
        try:
            embedded = with_errors.embed_function("")(Table(frame))
        except NoReadableImageError as error:
            log(f"left out: {error}")
            self.left_out = np.union1d(self.left_out, ids)
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        found = embedded.table.frame["id"].to_numpy(np.int64)
        self.left_out = np.union1d(self.left_out, np.setdiff1d(ids, found))
        return found, embedded.vectors

    def learn_local_features(self, encoder: str) -> dict[str, Any] | None:
        """How local features are computed by the new model, under the name of an encoder, if the index stores some."""
        stored = self.index.local_settings
        if stored is None:
            return None
        if self.reader.model is None:
            raise InputError(f"{self.place} stores local features, which a model computes; give it with --model")
        from vicinal.retrieval.reranking.local_features import sample_images
        from vicinal.workflows.local_features import learn_encoder
        from vicinal.workflows.settings import LocalSettings

        options = LocalSettings(stored["size"], stored["layer"], stored["dim"] if stored["whitening"] else 0)
        learned = learn_encoder(self.reader.loaded_model, sample_images(self.index), options, self.place)
        return {**learned.to_settings(), "weight": stored["weight"], "encoder": encoder}

    def fill_local_features(self, settings: Mapping[str, Any] | None) -> None:
        """Store the missing local features by these settings; None: the index stores none."""
        if settings is None:
            return
        from vicinal.retrieval.reranking.local_features import LocalEncoder
        from vicinal.workflows.local_features import fill_local_features

        encoder = LocalEncoder.from_settings(cast("Embedder", self.reader.loaded_model), settings)
        fill_local_features(self.index, encoder, settings, self.left_out.tolist())

    def refuse(self, ids: Integers, problem: str) -> None:
        """Raise InputError for images that cannot be embedded, or leave them out."""
        if not len(ids):
            return
        text = f"{self.place}: {len(ids):,} images {problem} ({named(self.index, ids)})"
        if self.reader.on_error != "skip":
            raise InputError(f"{text}; --on_error skip removes them from the index, or delete them")
        log(f"left out: {text}")
        self.left_out = np.union1d(self.left_out, ids)


def named(index: ImageIndex, ids: Integers) -> str:
    """Some images by their paths, or else by their ids."""
    found = index.lookup(ids[:MAX_NAMED], skip_unknown=True)
    paths = found["path"] if "path" in found else [None] * len(found)
    names = [path if isinstance(path, str) else f"id {number}" for path, number in zip(paths, found["id"], strict=True)]
    return ", ".join(names) + (f" and {len(ids) - MAX_NAMED:,} more" if len(ids) > MAX_NAMED else "")


def check_reader_before(
    index: ImageIndex,
    place: object,
    added: Integers,
    before: Mapping[str, Any],
    reader_for: Callable[[Mapping[str, str]], EmbeddingReader | None],
) -> EmbeddingReader | None:
    """The reader of the previous generation, which embeds the images added since the upgrade; None without such images.

    `before` has the settings of that generation, with the flags by which `reader_for` gives its reader, if it is known.
    """
    made_with, fingerprint = before.get("made_with") or {}, before.get("model_fingerprint")
    if not len(added):
        return None
    reader = reader_for(made_with)
    if reader is None:
        raise InputError(
            f"{place}: {len(added):,} images were added since the upgrade ({named(index, added)}), and the model of "
            "the previous generation, to embed them, is unknown; give it with --model, or delete them"
        )
    if fingerprint is not None and reader.fingerprint != fingerprint:
        raise model_mismatch_error(fingerprint, str(reader.fingerprint), made_with, {})
    return reader
