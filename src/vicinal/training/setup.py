"""From a recipe to the things that train: the table, the order of images, the model beside its loss, the optimiser."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision, Precision
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from vicinal import distributed
from vicinal.data import (
    ClassBalancedSampler,
    HierarchicalBatchSampler,
    RandomBatchSampler,
    Table,
    add_noise,
    require_trainable,
)
from vicinal.errors import InputError
from vicinal.losses import Loss
from vicinal.losses.base import terms_of
from vicinal.models import Embedder
from vicinal.training.class_centers import check_start, create_centers
from vicinal.training.co_teaching import CoTeachingSystem
from vicinal.training.loop_settings import LoopSettings, OptimizerSettings
from vicinal.training.prism import FilteredSystem, PrismFilter
from vicinal.training.recipe import Recipe
from vicinal.training.settings import Data, Settings
from vicinal.training.system import System

DEFAULT_SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}


def load_table(settings: Settings) -> Table:
    """The table that a recipe describes, with its classes divided into splits and the noise it asks for.

    Raises:
        InputError: no source, one that cannot be read or divided, nothing to learn from, or nothing to validate with.
    """
    data = settings.data
    if data.source is None:
        raise InputError("data.source is missing: give a folder of class folders, a .csv or .parquet, or a benchmark")
    table = Table.load(data.source, root=data.root, path_column=data.path_column, label_column=data.label_column)
    shares = data.shares
    if (shares, data.classes, data.split_column) == (None, None, None) and not table.has("split"):
        _check_labelled(table, data.source)
        shares = DEFAULT_SHARES
    if shares or data.classes or data.split_column:
        table = table.split_classes(shares, data.classes, data.split_column, settings.seed)
    if "train" not in table.splits:
        raise InputError(f"{data.source} has no rows in the split train; its splits: {', '.join(table.splits)}")
    noise = data.noise
    table = add_noise(
        table,
        classes=noise.classes,
        label_share=noise.random_labels,
        foreign=noise.foreign,
        foreign_share=noise.foreign_share,
        foreign_root=noise.foreign_root,
        confusions=noise.confusions,
        confused_share=noise.confused_labels,
        open_set_share=noise.open_set_labels,
        cluster_size=noise.open_set_cluster_size,
        seed=settings.seed,
    )
    require_trainable(table.subset("train"))
    if "val" in table.splits:
        require_validatable(table.subset("val"), settings.validation.metric)
    return table


def require_validatable(table: Table, metric: str) -> None:
    """Say before the first step what would else come up at the first evaluation."""
    counts = table.class_counts
    if counts.max() < 2:
        raise InputError(
            "the split val has no class with two images, so there is nothing to find in it; see data.shares"
        )
    if metric.startswith("recall@") and len(table) <= int(metric[len("recall@") :]):
        raise InputError(f"validation.metric = {metric} needs more than the {len(table)} images of the split val")
    if len(counts) == 1:
        warnings.warn(f"the split val has one class ({table.classes[0]}): its scores are always perfect", stacklevel=2)


def _check_labelled(table: Table, source: str) -> None:
    """One class cannot be divided; say that before the division says something less plain."""
    if not table.has("label"):
        raise InputError(f"{source} has no labels; training needs a folder for each class, or a column with labels")
    require_trainable(table)


def make_sampler(settings: Settings, table: Table) -> ClassBalancedSampler | RandomBatchSampler:
    """The order in which this process sees its share of the training images.

    Raises:
        InputError: the images cannot fill such batches.
    """
    if settings.coarse_per_batch == 0:
        return flat_sampler(settings, table)
    coarse, parts = _super_labels(table, settings.coarse_column), settings.coarse_per_batch
    batch, per_class, fewer, seed = settings.batch, settings.per_class, settings.classes_with_fewer, settings.seed
    rank, world = distributed.rank(), distributed.world_size()
    return HierarchicalBatchSampler(
        table.labels, coarse, batch, per_class, parts, fewer, seed, rank, world, table.classes
    )


def flat_sampler(settings: LoopSettings, table: Table) -> ClassBalancedSampler | RandomBatchSampler:
    """As :func:`make_sampler`, whatever the super-labels."""
    batch, per_class, fewer, seed = settings.batch, settings.per_class, settings.classes_with_fewer, settings.seed
    rank, world = distributed.rank(), distributed.world_size()
    if per_class == 0:
        return RandomBatchSampler(table.labels, batch, seed, rank, world)
    return ClassBalancedSampler(table.labels, batch, per_class, fewer, seed, rank, world, table.classes)


def _super_labels(table: Table, column: str) -> npt.NDArray[np.generic]:
    if not table.has(column):
        raise InputError(
            f"coarse_column = {column}: coarse_per_batch takes super-labels from this column, which the table does not "
            f"have; its columns are {', '.join(table.frame.columns)}"
        )
    return table.frame[column].to_numpy()


def loading_processes(data: Data) -> int:
    """How many processes read and transform images."""
    if data.workers is not None:
        return data.workers
    return 0 if data.cache else min(8, os.cpu_count() or 1)


def make_precision(settings: LoopSettings) -> Precision:
    """How numbers are kept in the network; half precision scales the loss so that small gradients survive.

    Made here and not by Fabric, which trains in bfloat16 when it is asked for float16 on a CPU.
    """
    if settings.precision == "32":
        return Precision()
    gpu = settings.accelerator == "gpu" or (settings.accelerator == "auto" and torch.cuda.is_available())
    device = "cuda" if gpu else "cpu"
    scaler = torch.amp.GradScaler(device) if settings.precision == "16-mixed" else None
    return MixedPrecision(settings.precision, device, scaler)


def make_fabric(settings: LoopSettings, precision: Precision, some_unused: bool = False) -> Fabric:
    """Devices and processes.

    Args:
        settings: which devices, and how many.
        precision: of the network.
        some_unused: whether some parameters get no gradient at times, which DDP has to be told of.

    Raises:
        InputError: the machine has no such devices.
    """
    several = DDPStrategy(find_unused_parameters=some_unused)
    try:
        return Fabric(
            accelerator=settings.accelerator,
            devices=settings.devices,
            strategy=several if settings.devices > 1 else "auto",
            plugins=precision,
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"accelerator = {settings.accelerator}, devices = {settings.devices}: {reason}") from None


def make_system(recipe: Recipe, classes: int, images: int, fresh: bool = True) -> System:
    """Model and loss, both new, in the system that the recipe's way with wrong labels takes.

    Args:
        recipe: all settings.
        classes: training classes.
        images: training images.
        fresh: whether training begins; else its state comes from a checkpoint.

    Raises:
        InputError: the settings do not go together.
    """
    settings = recipe.settings
    torch.manual_seed(settings.seed)
    embedder, loss = _model_and_loss(recipe, classes)
    if fresh:
        check_start(settings.centers, loss, embedder)
    robust, micro_batch = settings.robust, settings.micro_batch
    if robust.method == "prism":
        keep = PrismFilter(robust.noise_rate, robust.memory or images, robust.window)
        return FilteredSystem(embedder, loss, micro_batch, keep, robust.warmup)
    if robust.method == "co-teaching":
        _require_values(loss)
        peers = _model_and_loss(recipe, classes)
        return CoTeachingSystem(embedder, loss, micro_batch, *peers, robust.noise_rate, robust.warmup)
    return System(embedder, loss, micro_batch)


def _model_and_loss(recipe: Recipe, classes: int) -> tuple[Embedder, Loss]:
    embedder, loss = recipe.embedder(), recipe.loss()
    create_centers(loss, classes, embedder.training_dim)
    return embedder, loss


def _require_values(loss: Loss) -> None:
    for term in terms_of(loss):
        if type(term)._values is Loss._values:
            name = type(term).__name__
            raise InputError(
                f"robust.method = co-teaching takes a loss with a value for each sample, and {name} has none"
            )


def make_optimizer(settings: OptimizerSettings, groups: Mapping[str, list[nn.Parameter]]) -> torch.optim.Optimizer:
    """An optimiser with one parameter group a part, named after it; the trainer sets the learning rates."""
    decay, of_loss = settings.weight_decay, settings.loss_weight_decay
    decays = {"loss": decay if of_loss is None else of_loss}
    parts = [
        {"params": parameters, "name": name, "weight_decay": decays.get(name, decay)}
        for name, parameters in groups.items()
    ]
    if settings.name == "sgd":
        nesterov = settings.momentum > 0  # torch knows no Nesterov momentum of 0
        return torch.optim.SGD(parts, settings.lr, settings.momentum, 0, settings.weight_decay, nesterov)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(parts, settings.lr, weight_decay=settings.weight_decay)
