"""The settings of all training recipes: batches, optimizer, schedule, validation, checkpoints and devices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from vicinal.training.schedule import Schedule
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: highest learning rate of the schedule.
        weight_decay: L2 penalty (sgd, adam) or decoupled weight decay (adamw).
        loss_weight_decay: weight decay of the loss's parameters, such as class centers; null: `weight_decay`.
        momentum: momentum of sgd; 0 for none.
    """

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = 1e-4
    weight_decay: float = 1e-4
    loss_weight_decay: float | None = None
    momentum: float = 0.9

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, "optimizer.lr", self.lr, "a positive number")
        require(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", self.weight_decay, "0 or more")
        decay = self.loss_weight_decay
        require(decay is None or 0 <= decay < math.inf, "optimizer.loss_weight_decay", decay, "0 or more, or null")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")

    def lr_factor(self, part: str) -> float:
        """The factor of the learning rate for one part of the module, such as the backbone."""
        return 1.0


@dataclass(frozen=True)
class Validation:
    """Evaluation on the split `val`, whose classes are not trained on.

    Args:
        metric: the metric that decides which weights are best, such as recall@1, mAP@R, R-precision or mAP.
        every: number of epochs between two evaluations.
        patience: stop after this many evaluations without a new best score; null never stops early.
    """

    metric: str = "recall@1"
    every: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        check_metric("validation.metric", self.metric)
        require(self.every >= 1, "validation.every", self.every, "at least 1 epoch")
        require(self.patience is None or self.patience >= 1, "validation.patience", self.patience, "at least 1")


@dataclass(frozen=True)
class BaseSettings:
    """The settings that the recipes of embedders and refiners share.

    Args:
        batch_size: number of images per batch, over all processes.
        samples_per_class: number of images of each class in a batch; 0 draws images at random whatever their class.
        small_classes: "drop" leaves out classes with fewer than `samples_per_class` images, "replace" draws their
            images with replacement.
        epochs: number of passes over the training images.
        optimizer: the optimizer.
        schedule: the schedule of the learning rate.
        max_grad_norm: largest norm of the gradient, to which larger gradients are scaled down; null: no limit.
        accumulate_grad_batches: number of batches whose gradients are averaged before each step of the optimizer.
        precision: "32", "bf16-mixed" or "16-mixed"; the loss is always computed in float32.
        validation: evaluation on the split `val`.
        checkpoint_minutes: minutes between two checkpoints within an epoch; one is also written after every epoch.
        log_every: number of steps between two lines of the log.
        seed: seed of the initial weights, the order of the images, augmentation, dropout and the split of the classes.
        accelerator: auto, cpu or gpu.
    """

    batch_size: int = 128
    samples_per_class: int = 4
    small_classes: Literal["drop", "replace"] = "drop"
    epochs: int = 30
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: Schedule = field(default_factory=Schedule)
    max_grad_norm: float | None = None
    accumulate_grad_batches: int = 1
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    validation: Validation = field(default_factory=Validation)
    checkpoint_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"

    @property
    def num_processes(self) -> int:
        """The number of training processes, one per device."""
        return 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate_grad_batches", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("samples_per_class", "seed", "checkpoint_minutes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        max_norm, batch_size, samples = self.max_grad_norm, self.batch_size, self.samples_per_class
        require(max_norm is None or 0 < max_norm < math.inf, "max_grad_norm", max_norm, "a positive number or null")
        require(batch_size >= 2, "batch_size", batch_size, "at least 2: a loss compares images")
        require(samples != 1, "samples_per_class", 1, "0 or at least 2: a loss compares images of one class")
        above = f"above samples_per_class = {samples}, so that a batch has two classes"
        require(samples < batch_size, "batch_size", batch_size, above)
        require(self.seed < 2**63, "seed", self.seed, "below 2**63")
        divisible = samples == 0 or batch_size % samples == 0
        require(divisible, "batch_size", batch_size, f"a multiple of samples_per_class = {samples}")


def check_lr_factors(factors: object) -> None:
    """Raise InputError unless all factors of the learning rate are finite and not negative."""
    for name, value in vars(factors).items():
        require(0 <= value < math.inf, f"optimizer.lr_factors.{name}", value, "0 or more")


def check_metric(key: str, metric: str) -> None:
    """Raise InputError unless every evaluation has the metric."""
    known = re.fullmatch(r"recall@[1248]|mAP@R|R-precision|mAP", metric)
    require(known is not None, key, metric, "recall@1, 2, 4 or 8, mAP@R, R-precision or mAP")


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise InputError, naming the setting and what is expected of it, unless the condition holds."""
    if not condition:
        raise InputError(f"{key} = {value} must be {expected}")
