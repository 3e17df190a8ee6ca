"""Data: tables of images, their reading, transforms, batches and samplers, noise, embeddings in files, benchmarks."""

from vicinal.data.benchmarks import (
    GroundTruth,
    digits,
    glyphs,
    in_shop,
    omniglot,
    revisited_truth,
    roxford,
    rparis,
    vehicle_id,
)
from vicinal.data.checks import require_trainable
from vicinal.data.embeddings import fingerprint_of, load_embeddings, load_labels, load_vectors, save_embeddings
from vicinal.data.folders import is_image_file
from vicinal.data.hierarchical_sampler import HierarchicalBatchSampler
from vicinal.data.images import (
    Batch,
    ImageDataset,
    ImageTransform,
    TestBatches,
    TrainBatches,
    convert_image,
    read_image,
)
from vicinal.data.label_noise import confused_labels, random_labels
from vicinal.data.noise import add_noise, first_classes, foreign_images
from vicinal.data.open_set_noise import open_set_labels
from vicinal.data.samplers import ClassBalancedSampler, RandomBatchSampler
from vicinal.data.statistics import Statistics
from vicinal.data.table import Table

__all__ = [
    "Batch",
    "ClassBalancedSampler",
    "GroundTruth",
    "HierarchicalBatchSampler",
    "ImageDataset",
    "ImageTransform",
    "RandomBatchSampler",
    "Statistics",
    "Table",
    "TestBatches",
    "TrainBatches",
    "add_noise",
    "confused_labels",
    "convert_image",
    "digits",
    "fingerprint_of",
    "first_classes",
    "foreign_images",
    "glyphs",
    "in_shop",
    "is_image_file",
    "load_embeddings",
    "load_labels",
    "load_vectors",
    "omniglot",
    "open_set_labels",
    "random_labels",
    "read_image",
    "require_trainable",
    "revisited_truth",
    "roxford",
    "rparis",
    "save_embeddings",
    "vehicle_id",
]
