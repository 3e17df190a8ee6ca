"""Models that are saved as folders: the embedder with its image transform, and the refiner of its embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.models.adapters import add_lora as add_lora
    from vicinal.models.adapters import train_biases_and_norms as train_biases_and_norms
    from vicinal.models.adapters import train_last_blocks as train_last_blocks
    from vicinal.models.backbones import default_pooling as default_pooling
    from vicinal.models.embedder import Embedder as Embedder
    from vicinal.models.head import AvgMaxPool as AvgMaxPool
    from vicinal.models.head import AvgPool as AvgPool
    from vicinal.models.head import ClassToken as ClassToken
    from vicinal.models.head import GeM as GeM
    from vicinal.models.head import MaxPool as MaxPool
    from vicinal.models.head import PoolingName as PoolingName
    from vicinal.models.head import build_pooling as build_pooling
    from vicinal.models.initialization_table import INITIALIZATIONS as INITIALIZATIONS
    from vicinal.models.initialization_table import Initialization as Initialization
    from vicinal.models.initializations import create_backbone as create_backbone
    from vicinal.models.initializations import default_transform as default_transform
    from vicinal.models.multi_scale import embed_multi_scale as embed_multi_scale
    from vicinal.models.refiner import ContextRefiner as ContextRefiner
else:
    __getattr__, __dir__ = lazy_imports(__name__)
