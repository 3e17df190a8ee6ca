"""The settings of a training run beside its model and loss: their types, defaults, limits, and what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.data import ImageTransform
from vicinal.data.columns import is_coarse_column
from vicinal.errors import InputError
from vicinal.training.loop_settings import OptimizerSettings, Validation, check_factors, check_loop, require
from vicinal.training.schedule import Schedule


@dataclass(frozen=True)
class Noise:
    """Noise and want of data put into the training split on purpose, to see how a method bears them.

    Args:
        random_labels: share of the training images that get another class's label, drawn at random.
        confused_labels: share of the training images of the classes in `confusions` that get the other class's label.
        confusions: a CSV file with the columns `label` and `confused_with`, a pair of training classes a line.
        open_set_labels: share of the training images whose classes are dissolved into small clusters, each under the
            label of a class that stays.
        open_set_cluster_size: mean images of such a cluster.
        foreign: images foreign to all classes: a folder, a .csv or .parquet table, or a benchmark.
        foreign_share: share of the training images that give way to foreign ones; their labels stay.
        foreign_root: folder that the paths of such a table start from, or that holds such a benchmark's files.
        classes: train on the first classes only, in sorted order of their names: up to 1 their share, above 1 their
            number; null: all.
    """

    random_labels: float = 0.0
    confused_labels: float = 0.0
    confusions: str | None = None
    open_set_labels: float = 0.0
    open_set_cluster_size: float = 2.0
    foreign: str | None = None
    foreign_share: float = 0.0
    foreign_root: str | None = None
    classes: float | None = None

    def __post_init__(self) -> None:
        for name in ("random_labels", "confused_labels", "open_set_labels", "foreign_share"):
            require(0 <= getattr(self, name) <= 1, f"data.noise.{name}", getattr(self, name), "from 0 to 1")
        require(self.classes is None or self.classes > 0, "data.noise.classes", self.classes, "above 0 or null")
        both = (self.foreign is None) == (self.foreign_share == 0)
        require(both, "data.noise.foreign_share", self.foreign_share, "above 0 with data.noise.foreign, else 0")
        both = (self.confusions is None) == (self.confused_labels == 0)
        require(both, "data.noise.confused_labels", self.confused_labels, "above 0 with data.noise.confusions, else 0")
        self._check_clusters()

    def _check_clusters(self) -> None:
        key, size = "data.noise.open_set_cluster_size", self.open_set_cluster_size
        require(1 <= size < math.inf, key, size, "1 or more")
        alone = self.open_set_labels > 0 or size == Noise.open_set_cluster_size
        require(alone, key, size, "left alone unless data.noise.open_set_labels is above 0")


@dataclass(frozen=True)
class Data:
    """Where the images come from and how their classes are divided.

    Args:
        source: a folder with one folder of images per class, a .csv or .parquet table with the columns `path` and
            `label`, or a benchmark: digits, omniglot, glyphs.
        root: folder that relative paths of a table start from (default: the table's own), or that holds a benchmark.
        path_column: name of the table's column with the image paths.
        label_column: name of the table's column with the labels.
        shares: share of the classes each split gets, such as {train: 0.6, val: 0.2, test: 0.2}. Default: the splits
            that the source brings, or else the shares of this example.
        classes: the classes of each split by name, such as {train: [cat, dog], test: [owl]}.
        split_column: name of a column that holds the split of each class; with shares or classes, the column whose
            values are dealt out in the place of labels, such as coarse.
        noise: noise and want of data put into the training split on purpose.
        cache: keep all decoded images in memory.
        workers: processes that read and transform images. Default: none with `cache`, else one a core, at most 8.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out and counts it.
    """

    source: str | None = None
    root: str | None = None
    path_column: str = "path"
    label_column: str = "label"
    shares: dict[str, float] | None = None
    classes: dict[str, list[str | int]] | None = None
    split_column: str | None = None
    noise: Noise = field(default_factory=Noise)
    cache: bool = False
    workers: int | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise InputError(f"data.workers = {self.workers} must be 0 or more")


@dataclass(frozen=True)
class Factors:
    """Factors of the learning rate for parts of what is trained; 0 keeps a part as it is.

    Args:
        backbone: the network below the pooling.
        head: pooling, norm and linear layer.
        projector: the projector used in training only.
        loss: parameters of the loss, such as class centers.
    """

    backbone: float = 1.0
    head: float = 1.0
    projector: float = 1.0
    loss: float = 1.0

    def __post_init__(self) -> None:
        check_factors(self)


@dataclass(frozen=True)
class Optimizer(OptimizerSettings):
    """How gradients change the parameters of an embedder.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: learning rate at its highest.
        weight_decay: L2 penalty (sgd, adam) or decoupled decay (adamw).
        loss_weight_decay: the same for parameters of the loss, such as class centers; null: as for the others.
        momentum: momentum of sgd; 0 is none.
        factors: learning-rate factors for parts of what is trained.
    """

    factors: Factors = field(default_factory=Factors)


@dataclass(frozen=True)
class Robust:
    """How the run bears wrong labels: leaving out, batch by batch, what is probably wrong.

    Args:
        method: "none"; "prism" leaves out samples that look little like their class, by a memory of past ones (Liu et
            al., CVPR 2021); "co-teaching" trains two models on what the other finds easy (Han et al., NeurIPS 2018),
            with a loss that has a value for each sample.
        noise_rate: share of the training images that are taken to be wrong.
        warmup: epochs before prism leaves anything out, or after which co-teaching leaves out all that it may.
        memory: entries of prism's memory; null: as many as training images.
        window: batches that prism's threshold is averaged over.
    """

    method: Literal["none", "prism", "co-teaching"] = "none"
    noise_rate: float = 0.2
    warmup: int = 1
    memory: int | None = None
    window: int = 10

    def __post_init__(self) -> None:
        require(0 <= self.noise_rate < 1, "robust.noise_rate", self.noise_rate, "from 0 to below 1")
        require(self.warmup >= 0, "robust.warmup", self.warmup, "0 or more")
        require(self.window >= 1, "robust.window", self.window, "at least 1")
        require(self.memory is None or self.memory >= 1, "robust.memory", self.memory, "at least 1 or null")
        if self.method != "prism":
            alone = (self.memory, self.window) == (Robust.memory, Robust.window)
            require(alone, "robust.method", self.method, "prism where robust.memory or robust.window are given")
        if self.method == "none":
            alone = (self.noise_rate, self.warmup) == (Robust.noise_rate, Robust.warmup)
            what = "prism or co-teaching where robust.noise_rate or robust.warmup are given"
            require(alone, "robust.method", self.method, what)


@dataclass(frozen=True)
class Settings:
    """All settings of a run beside the model and the loss.

    Args:
        data: where the images come from and how their classes are divided.
        transform: how an image becomes a tensor, in training and at test.
        batch: images a step, over all processes.
        micro_batch: images a forward and backward pass, on each process, when the network cannot take its part of the
            batch at once; the gradient stays that of the whole batch, a step takes a third longer. null: all at once.
        per_class: images of each class in a batch; 0 draws images at random whatever their class.
        classes_with_fewer: "leave_out" classes with fewer than `per_class` images, or "replace": draw them with
            replacement.
        coarse_per_batch: super-labels in a batch, each with as many of its images (balanced hierarchical sampling); 0
            draws classes whatever their super-label.
        coarse_column: the table's column with the super-labels: coarse, coarse_2, ...
        epochs: passes over the training images.
        optimizer: how gradients change the parameters.
        schedule: how the learning rate changes over the epochs.
        centers: where the class centers of a loss that has some start: "random", "class_means" of the training images'
            embeddings by the untrained model, or the folder of a run, whose centers are taken over by class name;
            classes it does not know get random ones.
        robust: how the run bears wrong labels.
        freeze_backbone_epochs: first epochs in which the backbone stays as it is.
        clip: largest norm of the gradient; null does not clip.
        accumulate: batches whose gradients are averaged before a step.
        precision: "32", "bf16-mixed" or "16-mixed"; the loss is always computed in float32.
        validation: how the run is watched.
        checkpoint_minutes: a checkpoint is written after every epoch and, in long epochs, after so many minutes.
        log_every: steps between two lines of the log.
        seed: fixes initial weights, order of images, augmentation and dropout.
        accelerator: auto, cpu or gpu.
        devices: number of processes, one a device.
    """

    data: Data = field(default_factory=Data)
    transform: ImageTransform = field(default_factory=ImageTransform)
    batch: int = 128
    micro_batch: int | None = None
    per_class: int = 4
    classes_with_fewer: Literal["leave_out", "replace"] = "leave_out"
    coarse_per_batch: int = 0
    coarse_column: str = "coarse"
    epochs: int = 30
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    centers: str = "random"
    robust: Robust = field(default_factory=Robust)
    freeze_backbone_epochs: int = 0
    clip: float | None = None
    accumulate: int = 1
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    validation: Validation = field(default_factory=Validation)
    checkpoint_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1

    def __post_init__(self) -> None:
        check_loop(self)
        for name in ("coarse_per_batch", "freeze_backbone_epochs"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.devices >= 1, "devices", self.devices, "at least 1")
        require(
            self.micro_batch is None or self.micro_batch >= 1, "micro_batch", self.micro_batch, "at least 1 or null"
        )
        self._check_hierarchy()

    def _check_hierarchy(self) -> None:
        parts, per_class = self.coarse_per_batch, self.per_class
        require(is_coarse_column(self.coarse_column), "coarse_column", self.coarse_column, "coarse, coarse_2, ...")
        if parts == 0:
            where = "left alone unless coarse_per_batch says how many super-labels make a batch"
            return require(self.coarse_column == "coarse", "coarse_column", self.coarse_column, where)
        require(per_class > 0, "coarse_per_batch", parts, "0 with per_class = 0, which draws images whatever they are")
        what = f"a multiple of per_class = {per_class} times coarse_per_batch = {parts}"
        require(self.batch % (per_class * parts) == 0, "batch", self.batch, what)
