"""The images of a run: training and validation tables, batches, and the loader of training batches."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Generator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from vicinal.data import (
    ClassBalancedBatchSampler,
    HierarchicalBatchSampler,
    ImageDataset,
    RandomBatchSampler,
    Table,
    check_trainable,
    load_dataset,
)
from vicinal.data.batches.image_dataset import Batch
from vicinal.data.batches.train_batches import LoadedImages, Part, TrainBatches, TrainImages
from vicinal.data.class_samples import sample_classes
from vicinal.data.settings import DataSettings
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.relevance import class_group_codes
from vicinal.training.processes import start_worker
from vicinal.training.recipes.base_settings import BaseSettings
from vicinal.training.recipes.settings import TrainingSettings
from vicinal.utils import distributed
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError

BATCH_SIZE, SAMPLES_PER_CLASS = 128, 4
MAX_DROPPED = 0.1  # fraction of the classes that a larger number of samples per class may leave out


def load_training_table(settings: TrainingSettings) -> Table:
    """The table that a recipe describes, with the splits and the noise of the recipe, if it can be trained on."""
    table = load_dataset(settings.data, settings.seed)
    check_trainable(table.subset("train"))
    if "val" in table.splits:
        require_validatable(table.subset("val"), settings.validation.metric)
    return table


def require_validatable(table: Table, metric: str) -> None:
    """Raise InputError before the first step for errors that would otherwise occur at the first evaluation."""
    counts = table.class_counts
    if counts.max() < 2:
        raise InputError(
            "the split val has no class with two images, so its queries have no positives; see data.fractions"
        )
    groups = class_group_codes(table)
    of_group, of_class = np.bincount(groups + 1)[groups + 1], counts[table.labels]
    if not (np.where(groups < 0, 1, of_group) < of_class).any():
        raise InputError(
            f"the column group excludes all matches of the {len(table)} queries of the split val; leave the column "
            "out, or add images of other groups"
        )
    k, (_, gallery) = metric.partition("@")[2], query_gallery_rows(table)
    if k.isdigit() and not table.has("is_gallery") and len(table) <= int(k):
        raise InputError(f"validation.metric = {metric} needs more than the {len(table)} images of the split val")
    if k.isdigit() and len(gallery) < int(k):
        raise InputError(f"validation.metric = {metric} needs more than {len(gallery)} gallery images in the split val")
    if len(counts) == 1:
        warnings.warn(f"the split val has one class ({table.classes[0]}): its scores are always perfect", stacklevel=2)


def sample_training_images(table: Table, num_images: int | None, seed: int) -> Integers | None:
    """Sample training images whose recall@1 shows the progress of training: whole classes, or a part of large ones;
    rows, ascending.

    At most `num_images`; None: a twentieth of the images, at least 200 and at most 2,000, or no sample if no image has
    another of its class to find.
    """
    number = min(max(len(table) // 20, 200), 2000) if num_images is None else num_images
    has_positives = np.flatnonzero(_classes_with_positives(table)[table.labels])
    rows = sample_classes(has_positives, table.labels, number, seed) if len(has_positives) else has_positives
    if len(rows) and _classes_with_positives(table.take(rows)).any():
        return rows
    if num_images is None:
        return None
    if len(has_positives):
        raise InputError(f"validation.train_images = {num_images} is too few: none of them finds another of its class")
    raise InputError(f"validation.train_images = {num_images} must be 0: no training class has two images")


def _classes_with_positives(table: Table) -> npt.NDArray[np.bool_]:
    """Whether each class has two images that can find each other because they are not in the same group, [classes]."""
    codes = class_group_codes(table)
    alone = np.where(codes < 0, -1 - np.arange(len(table)), codes)  # images without a group find each other
    pairs = np.unique(np.stack([table.labels, alone]), axis=1)
    return np.bincount(pairs[0], minlength=len(table.classes)) > 1


def create_sampler(settings: TrainingSettings, table: Table) -> ClassBalancedBatchSampler | RandomBatchSampler:
    """The batch sampler of this process."""
    if settings.coarse_classes_per_batch == 0:
        return create_flat_sampler(settings, table)
    column = settings.coarse_column
    if not table.has(column):
        raise InputError(
            f"coarse_column = {column}: coarse_classes_per_batch needs coarse labels in this column, which the table "
            f"does not have; its columns are {', '.join(table.frame.columns)}"
        )
    return HierarchicalBatchSampler(
        table.labels,
        table.frame[column].to_numpy(),
        *fit_batches(settings, table),
        settings.coarse_classes_per_batch,
        coarse_sampling=settings.coarse_sampling,
        **_class_options(settings, table),
    )


def create_flat_sampler(settings: BaseSettings, table: Table) -> ClassBalancedBatchSampler | RandomBatchSampler:
    """The batch sampler of this process, without regard to coarse labels."""
    sizes = fit_batches(settings, table)
    if sizes.samples_per_class == 0:
        return RandomBatchSampler(len(table), sizes.batch_size, **_process_options(settings))
    return ClassBalancedBatchSampler(table.labels, *sizes, **_class_options(settings, table))


def steps_per_epoch(settings: TrainingSettings, table: Table) -> int:
    """The number of steps of the optimizer in an epoch of these training images."""
    return math.ceil(len(create_sampler(settings, table)) / settings.accumulate_grad_batches)


def num_trained_classes(settings: TrainingSettings, table: Table) -> int:
    """The number of classes that are trained on: `small_classes: drop` leaves out those with too few images."""
    return int(_is_used(settings, table, fit_batches(settings, table).samples_per_class).sum())


def _is_used(settings: BaseSettings, table: Table, samples: int) -> npt.NDArray[np.bool_]:
    """Whether each class comes to batches with so many samples of each class, [classes]."""
    return (table.class_counts >= samples) | (settings.small_classes == "replace")


def _class_options(settings: BaseSettings, table: Table) -> dict[str, Any]:
    classes = {name: getattr(settings, name) for name in ("class_sampling", "small_classes")}
    return {**classes, "class_names": table.classes, **_process_options(settings)}


def _process_options(settings: BaseSettings) -> dict[str, Any]:
    steps = settings.steps_per_epoch
    num_batches = None if steps is None else steps * settings.accumulate_grad_batches
    process = {"rank": distributed.rank(), "world_size": distributed.world_size()}
    return {"num_batches": num_batches, "seed": settings.seed, **process}


def num_workers(data: DataSettings) -> int:
    if data.num_workers is not None:
        return data.num_workers
    return 0 if data.cache else min(8, os.cpu_count() or 1)


class TrainLoader:
    """Loads the batches of one epoch after the other.

    Processes hand out pixels as uint8, in parts of at most 128 images, and read two parts each ahead. So they hold at
    most `2 * 128 * num_workers` images in shared memory, regardless of the batch size: 0.3 GB with 8 processes and 224
    x 224 pixels. The batch itself is made in this process, for a GPU in page-locked memory, from which it is copied
    faster. Processes are started with the first batch.
    """

    def __init__(
        self,
        images: ImageDataset,
        num_workers: int,
        device: torch.device,
        augmentation: Literal["workers", "device"] = "workers",
    ) -> None:
        self._parts: list[Part] = []  # of this epoch
        self._loader: DataLoader[LoadedImages] = DataLoader(
            TrainImages(images, augmentation),
            batch_size=None,
            sampler=self._parts,
            num_workers=num_workers,
            worker_init_fn=start_worker,
            pin_memory=device.type == "cuda",
            persistent_workers=num_workers > 0,
        )

    def load(self, batches: TrainBatches, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch from number `start` on."""
        self._parts[:] = batches.parts(start)
        try:
            yield from batches.collate(iter(self._loader), start)
        except BaseException:  # also where the generator is closed: its processes load unused batches
            self.close()
            raise

    def close(self) -> None:
        """End the processes, if there are any; the next epoch starts others."""
        workers: Any = self._loader._iterator
        self._loader._iterator = None
        if workers is not None:
            workers._shutdown_workers()  # a traceback would keep them alive


class BatchSize(NamedTuple):
    """The number of images in a batch, over all processes, and of each class; 0 for any."""

    batch_size: int
    samples_per_class: int


def fit_batches(settings: BaseSettings, table: Table) -> BatchSize:
    """The batch size and the samples per class of a run: as given, or else as near 128 and 4 as the data allow.

    The number of samples per class is the largest up to 4 for which at most a tenth of the classes with two images have
    too few. The batch is the largest up to 128 images with equally many classes for every process and every coarse
    class. A given value is kept even if it does not fit; with too little data, the smallest possible batch does not fit
    either.
    """
    samples, size = settings.samples_per_class, settings.batch_size
    if samples is None:
        samples = _fit_samples(settings, table)
    if size is None:
        size = _fit_size(settings, table, samples)
    return BatchSize(size, samples)


def _fit_samples(settings: BaseSettings, table: Table) -> int:
    size, counts = settings.batch_size, table.class_counts
    divisors = [each for each in range(SAMPLES_PER_CLASS, 1, -1) if size is None or (size % each == 0 and size > each)]
    if settings.small_classes == "drop":
        enough = max(2, (1 - MAX_DROPPED) * (counts >= 2).sum())
        divisors = [each for each in divisors if (counts >= each).sum() >= enough] or divisors[-1:]
    return divisors[0] if divisors else SAMPLES_PER_CLASS  # which the settings refuse for such a size


def _fit_size(settings: BaseSettings, table: Table, samples: int) -> int:
    if samples == 0:
        return _largest_multiple(settings.num_processes, min(BATCH_SIZE, len(table)))
    is_used = _is_used(settings, table, samples)
    groups, column = 1, None
    if isinstance(settings, TrainingSettings) and settings.coarse_classes_per_batch > 0:
        groups, column = settings.coarse_classes_per_batch, settings.coarse_column
    classes = min(BATCH_SIZE // samples, _max_classes(table, is_used, groups, column))
    return samples * _largest_multiple(math.lcm(settings.num_processes, groups), classes)


def _largest_multiple(divisor: int, limit: int) -> int:
    """The largest multiple of a number up to a limit, or the smallest that is 2 or more."""
    return max(limit // divisor, -(-2 // divisor)) * divisor


def _max_classes(table: Table, is_used: Booleans, groups: int, column: str | None) -> int:
    """The largest number of classes in a batch with this number of coarse classes from a column of the table.

    That many coarse classes must have enough classes each; smaller ones are merged by the sampler.
    """
    if column is None or not table.has(column):
        return int(is_used.sum())
    sizes = table.frame[is_used[table.labels]].groupby(column)["label"].nunique().sort_values(ascending=False)
    return groups * int(sizes.iloc[groups - 1]) if len(sizes) >= groups else int(is_used.sum())
