"""Backward-compatible training: new embeddings are also trained to be found among those of an old model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vicinal.data import Table
from vicinal.losses import Loss
from vicinal.losses.base import zero_loss
from vicinal.losses.row_functions import softplus
from vicinal.models import Embedder
from vicinal.similarity.center_sum import sum_over_anchors, values_of_anchors
from vicinal.similarity.class_centers import CenterRows, ClassCenters
from vicinal.similarity.embeddings import check_label_range
from vicinal.similarity.pair_source import PairSource
from vicinal.training.feature_cache import FeatureDataset, embed_features, features_by_settings, remove_backbone
from vicinal.utils.arguments import check_positive, check_positive_integer
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, prefixed_errors

if TYPE_CHECKING:
    from vicinal.training.recipes.settings import TrainingSettings


class CompatibilityLoss(Loss):
    """The influence loss of backward-compatible training: the mean over all anchors i with class y of

        -log( exp(scale cos(x_i, o_y)) / sum_j exp(scale cos(x_i, o_j)) )

    where o_j is the mean of the old model's embeddings of class j, which are unit vectors; it is not trained. The old
    model needs no classifier: the means replace it, as the reference does for classes that the old one does not have.
    Checkpoints hold the means, so that a resumed run needs no old model.

    Reference: Shen et al., "Towards Backward-Compatible Representation Learning", CVPR 2020, Eq. (6) and Section 3.4.
    """

    supports_references = False
    old_centers: Tensor  # [num_classes, dim], of any length; zeros until `set_old_centers`

    def __init__(self, num_classes: int, dim: int, scale: float = 20.0) -> None:
        super().__init__()
        check_positive_integer(self, num_classes=num_classes, dim=dim)
        check_positive(self, scale=scale)
        self.num_classes, self.dim, self.scale = num_classes, dim, scale
        self.register_buffer("old_centers", torch.zeros(num_classes, dim))

    def set_old_centers(self, centers: Tensor) -> None:
        """Set the mean of the old embeddings of each class, float [num_classes, dim]."""
        self.old_centers.copy_(centers)

    def value(self, source: PairSource) -> Tensor:
        if not len(source):
            return zero_loss(source)
        return sum_over_anchors(*self._inputs(source), self._row_values) / len(source)

    def _anchor_values(self, source: PairSource) -> Tensor:
        if not len(source):
            return source.anchors.new_zeros(0)
        return values_of_anchors(*self._inputs(source), self._row_values)

    def _inputs(self, source: PairSource) -> tuple[Tensor, Tensor, ClassCenters]:
        if source.labels is None or not source.is_by_label or source.has_own_references:
            raise InputError("CompatibilityLoss: the references are the old class centers; give labels alone")
        if source.dim != self.dim:
            raise InputError(f"CompatibilityLoss: embeddings have {source.dim} dimensions and old ones {self.dim}")
        check_label_range("CompatibilityLoss", source.labels, self.num_classes)
        return source.anchors, source.labels, ClassCenters(self.old_centers, self.scale)

    def _row_values(self, rows: CenterRows) -> Tensor:
        return softplus(rows.others - self.scale * rows.own[:, 0])


def add_compatibility(loss: Loss, settings: TrainingSettings, num_classes: int, dim: int) -> Loss:
    """Add the weighted term of `compatible_with` to a loss, if that is given; its centers are still zeros."""
    if settings.compatible_with is None:
        return loss
    return loss + settings.compatible_weight * CompatibilityLoss(num_classes, dim)


def check_old_model(settings: TrainingSettings, embedder: Embedder, allow_imports: Sequence[str] = ()) -> None:
    """Raise InputError if the model of `compatible_with` cannot be read or its embeddings have another dimension."""
    if settings.compatible_with is None:
        return
    if embedder.projector is not None:
        raise InputError("compatible_with: the loss sees the projector's output, not the embeddings; leave it out")
    old = _old_model(settings, allow_imports).dim
    if old != embedder.dim:
        raise InputError(
            f"compatible_with = {settings.compatible_with}: its embeddings have {old} dimensions, those of the new "
            f"model {embedder.dim}; give model.dim = {old}, or learn an adapter: vicinal adapt"
        )


def old_class_centers(
    settings: TrainingSettings, table: Table, device: torch.device, allow_imports: Sequence[str] = ()
) -> Tensor:
    """The mean of the old model's embeddings of each training class, float64 [classes, dim].

    Every image is passed once through the old model, without augmentation, and its features are kept in the cache.
    """
    embedder = _old_model(settings, allow_imports).to(device)
    features = features_by_settings(embedder, table, settings)
    images = FeatureDataset(table, embedder.transform, features)
    remove_backbone(embedder)
    vectors = torch.from_numpy(embed_features(embedder, images, device, range(len(images)))).double()
    labels = torch.from_numpy(table.labels[np.array([key in features.rows for key in table.image_keys])])
    sums = torch.zeros(len(table.classes), vectors.shape[1], dtype=torch.float64).index_add_(0, labels, vectors)
    log(f"compatible with {settings.compatible_with}: its embeddings of {len(images):,} training images")
    return sums / torch.bincount(labels, minlength=len(sums)).clamp_min(1)[:, None]


def set_old_centers(losses: Sequence[Loss], centers: Tensor) -> None:
    """Set the centers of the compatibility terms of losses."""
    for loss in losses:
        for part in loss.modules():
            if isinstance(part, CompatibilityLoss):
                part.set_old_centers(centers)


def _old_model(settings: TrainingSettings, allow_imports: Sequence[str]) -> Embedder:
    with prefixed_errors("compatible_with"):
        return Embedder.from_pretrained(str(settings.compatible_with), allow_imports=allow_imports)
