"""Models, each carried in one folder: the embedder, with its preprocessing, and the refiner of its embeddings."""

from vicinal.models.descriptors import multi_scale
from vicinal.models.embedder import Embedder
from vicinal.models.initializations import create_backbone, default_transform
from vicinal.models.pooling import AvgMaxPool, AvgPool, ClassToken, GeM, MaxPool, PoolingName, build_pooling
from vicinal.models.refiner import ContextRefiner

__all__ = [
    "AvgMaxPool",
    "AvgPool",
    "ClassToken",
    "ContextRefiner",
    "Embedder",
    "GeM",
    "MaxPool",
    "PoolingName",
    "build_pooling",
    "create_backbone",
    "default_transform",
    "multi_scale",
]
