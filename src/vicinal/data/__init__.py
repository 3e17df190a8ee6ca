"""Datasets: tables, reading and transforming images, batch samplers, noise, files of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.data.batches.hierarchical_sampler import HierarchicalBatchSampler as HierarchicalBatchSampler
    from vicinal.data.batches.image_dataset import Batch as Batch
    from vicinal.data.batches.image_dataset import ImageDataset as ImageDataset
    from vicinal.data.batches.samplers import ClassBalancedBatchSampler as ClassBalancedBatchSampler
    from vicinal.data.batches.samplers import RandomBatchSampler as RandomBatchSampler
    from vicinal.data.batches.train_batches import TrainBatches as TrainBatches
    from vicinal.data.checks import check_trainable as check_trainable
    from vicinal.data.cleaning_decisions import apply_decisions as apply_decisions
    from vicinal.data.conditions import matching_rows as matching_rows
    from vicinal.data.containers.listing import ListedImages as ListedImages
    from vicinal.data.dataset import load_dataset as load_dataset
    from vicinal.data.dataset import use_train_list as use_train_list
    from vicinal.data.embedding_files import load_embeddings as load_embeddings
    from vicinal.data.embedding_files import load_labels as load_labels
    from vicinal.data.embedding_files import load_vectors as load_vectors
    from vicinal.data.embedding_files import read_fingerprint as read_fingerprint
    from vicinal.data.embedding_files import save_embeddings as save_embeddings
    from vicinal.data.embedding_shards import EmbeddingShards as EmbeddingShards
    from vicinal.data.embedding_shards import merge_shards as merge_shards
    from vicinal.data.embedding_shards import verify_shards as verify_shards
    from vicinal.data.images.colors import convert_image as convert_image
    from vicinal.data.images.decoding import read_image as read_image
    from vicinal.data.images.formats import is_image_file as is_image_file
    from vicinal.data.images.transforms import ImageTransform as ImageTransform
    from vicinal.data.label_noise import confused_labels as confused_labels
    from vicinal.data.label_noise import open_set_labels as open_set_labels
    from vicinal.data.label_noise import random_labels as random_labels
    from vicinal.data.loading import load_table as load_table
    from vicinal.data.noise import add_noise as add_noise
    from vicinal.data.noise import first_classes as first_classes
    from vicinal.data.noise import foreign_images as foreign_images
    from vicinal.data.settings import DataSettings as DataSettings
    from vicinal.data.settings import NoiseSettings as NoiseSettings
    from vicinal.data.splits import class_folds as class_folds
    from vicinal.data.statistics import Statistics as Statistics
    from vicinal.data.statistics import split_fingerprint as split_fingerprint
    from vicinal.data.table import Table as Table
else:
    __getattr__, __dir__ = lazy_imports(__name__)
