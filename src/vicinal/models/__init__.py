"""The model: a backbone, pooling and a head that make an embedding, carried in one folder with its preprocessing."""

from vicinal.models.embedder import Embedder
from vicinal.models.initializations import create_backbone, default_transform
from vicinal.models.pooling import AvgMaxPool, AvgPool, ClassToken, GeM, MaxPool, PoolingName, build_pooling

__all__ = [
    "AvgMaxPool",
    "AvgPool",
    "ClassToken",
    "Embedder",
    "GeM",
    "MaxPool",
    "PoolingName",
    "build_pooling",
    "create_backbone",
    "default_transform",
]
