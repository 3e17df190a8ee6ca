"""Training of a head on frozen features, which are computed once for every image and then read from a cache."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from vicinal.data import Table
from vicinal.models import Embedder
from vicinal.models.execution import UsedPrecision
from vicinal.training import feature_cache
from vicinal.training.base_trainer import Batch
from vicinal.training.feature_cache import CachedFeatures, FeatureDataset
from vicinal.training.recipes.recipe import Recipe
from vicinal.training.trainer import Trainer
from vicinal.training.training_module import TrainingModule
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder


class FrozenTrainer(Trainer):
    """Trains the head of an embedder by a recipe with `features: frozen`.

    The backbone and the pooling stay outside of the trained module and return when the model is saved: checkpoints do
    not hold them, and the device holds them only during the one pass over the images.
    """

    def __init__(self, recipe: Recipe, table: Table, run: RunFolder) -> None:
        if recipe.model["learned_p"]:
            raise InputError("model.learned_p = true must be false with features = frozen, which includes the pooling")
        if recipe.model["dim"] is None and recipe.model["norm"] != "layer_affine":
            raise InputError("model.dim = null must be a number with features = frozen: else no head is trained")
        super().__init__(recipe, table, run)

    def _new_module(self, training: Table) -> TrainingModule:
        module = super()._new_module(training)
        module.micro_batch_size = None  # applies to images, not features
        self.backbone, self.pooling = module.embedder.backbone, module.embedder.pooling
        for embedder in module.embedders:
            feature_cache.remove_backbone(embedder)
        return module

    def _zero_shot_model(self) -> Embedder:
        """A head that is the identity; with the backbone if the model is being saved."""
        embedder = super()._zero_shot_model()
        if isinstance(self.embedder.backbone, nn.Identity):
            feature_cache.remove_backbone(embedder)
        return embedder

    @contextmanager
    def _whole_embedder(self) -> Iterator[Embedder]:
        """The embedder with its backbone and pooling, for a block."""
        self.embedder.backbone, self.embedder.pooling = self.backbone, self.pooling
        try:
            yield self.embedder
        finally:
            feature_cache.remove_backbone(self.embedder)

    @cached_property
    def features(self) -> CachedFeatures:
        settings, device = self.settings, self.engine.fabric.device
        used = self.table.frame["split"].isin(["train", "val"]).to_numpy()
        with self._whole_embedder() as embedder:
            embedder.to(device)
            table = self.table.take(np.flatnonzero(used))
            features = feature_cache.features_by_settings(embedder, table, settings, settings.feature_dtype)
        self.backbone.cpu(), self.pooling.cpu()
        return features

    @cached_property
    def _feature_model(self) -> str:
        """The fingerprint of the model of the features, independent of the device: a run may resume without its GPU."""
        with self._whole_embedder() as embedder:
            return feature_cache.feature_fingerprint(
                embedder, cast(UsedPrecision, self.settings.precision.removesuffix("-mixed"))
            )

    def _dataset(self, table: Table) -> FeatureDataset:
        return FeatureDataset(table, self.settings.transform, self.features)

    def _load_batches(self, plan: list[list[int]], start: int) -> Generator[Batch, None, None]:
        images = cast(FeatureDataset, self.images)
        labels = torch.from_numpy(images.table.labels)
        for batch in plan[start:]:
            rows = torch.tensor(batch)
            yield {"images": images.features(batch), "labels": labels[rows], "rows": rows}

    def _on_epoch_start(self) -> None:
        self.module.train()
        self.bare_module.start_epoch(self.progress.epoch)

    def _embed_rows(self, images: Any, embedder: Embedder, rows: range) -> Floats:
        return feature_cache.embed_features(embedder, images, self.engine.fabric.device, rows)

    @property
    def _test_batch_size(self) -> int:
        return feature_cache.FEATURES_PER_PASS

    def _extra_state(self) -> dict[str, Any]:
        return {**super()._extra_state(), "features": self._feature_model}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        super()._load_extra_state(state)
        own, model = state["features"], self._feature_model
        if own != model:
            found = f"was trained on features of the model {own}"
            raise InputError(f"{self.run.path}: {found}, and the recipe's is {model}")

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        with self._whole_embedder():
            super()._write_model(metrics)
