"""Models that are saved as folders: the embedder with its image transform, and the refiner of its embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.models.adapters import add_lora, train_biases_and_norms, train_last_blocks
    from vicinal.models.backbones import default_pooling
    from vicinal.models.embedder import Embedder
    from vicinal.models.head import AvgMaxPool, AvgPool, ClassToken, GeM, MaxPool, PoolingName, build_pooling
    from vicinal.models.initialization_table import INITIALIZATIONS, Initialization
    from vicinal.models.initializations import create_backbone, default_transform
    from vicinal.models.multi_scale import embed_multi_scale
    from vicinal.models.refiner import ContextRefiner
else:
    __getattr__, __dir__ = lazy_imports(__name__)


__all__ = [
    "INITIALIZATIONS",
    "AvgMaxPool",
    "AvgPool",
    "ClassToken",
    "ContextRefiner",
    "Embedder",
    "GeM",
    "Initialization",
    "MaxPool",
    "PoolingName",
    "add_lora",
    "build_pooling",
    "create_backbone",
    "default_pooling",
    "default_transform",
    "embed_multi_scale",
    "train_biases_and_norms",
    "train_last_blocks",
]
