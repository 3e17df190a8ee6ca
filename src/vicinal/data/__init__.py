"""Datasets: tables, reading and transforming images, batch samplers, noise, files of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.data.batches.hierarchical_sampler import HierarchicalBatchSampler
    from vicinal.data.batches.image_dataset import Batch, ImageDataset
    from vicinal.data.batches.samplers import ClassBalancedBatchSampler, RandomBatchSampler
    from vicinal.data.batches.train_batches import TrainBatches
    from vicinal.data.checks import check_trainable
    from vicinal.data.cleaning_decisions import apply_decisions
    from vicinal.data.conditions import matching_rows
    from vicinal.data.containers.listing import ListedImages
    from vicinal.data.dataset import load_dataset, use_train_list
    from vicinal.data.embedding_files import (
        load_embeddings,
        load_labels,
        load_vectors,
        read_fingerprint,
        save_embeddings,
    )
    from vicinal.data.embedding_shards import EmbeddingShards, merge_shards, verify_shards
    from vicinal.data.images.colors import convert_image
    from vicinal.data.images.decoding import read_image
    from vicinal.data.images.formats import is_image_file
    from vicinal.data.images.transforms import ImageTransform
    from vicinal.data.label_noise import confused_labels, open_set_labels, random_labels
    from vicinal.data.loading import load_table
    from vicinal.data.noise import add_noise, first_classes, foreign_images
    from vicinal.data.settings import DataSettings, NoiseSettings
    from vicinal.data.splits import class_folds
    from vicinal.data.statistics import Statistics, split_fingerprint
    from vicinal.data.table import Table
else:
    __getattr__, __dir__ = lazy_imports(__name__)


__all__ = [
    "Batch",
    "ClassBalancedBatchSampler",
    "DataSettings",
    "EmbeddingShards",
    "HierarchicalBatchSampler",
    "ImageDataset",
    "ImageTransform",
    "ListedImages",
    "NoiseSettings",
    "RandomBatchSampler",
    "Statistics",
    "Table",
    "TrainBatches",
    "add_noise",
    "apply_decisions",
    "check_trainable",
    "class_folds",
    "confused_labels",
    "convert_image",
    "first_classes",
    "foreign_images",
    "is_image_file",
    "load_dataset",
    "load_embeddings",
    "load_labels",
    "load_table",
    "load_vectors",
    "matching_rows",
    "merge_shards",
    "open_set_labels",
    "random_labels",
    "read_fingerprint",
    "read_image",
    "save_embeddings",
    "split_fingerprint",
    "use_train_list",
    "verify_shards",
]
