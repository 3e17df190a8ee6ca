"""The settings of all training recipes: batches, optimizer, schedule, validation, checkpoints and devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from vicinal.training.progress import RunLength
from vicinal.training.schedule import Schedule
from vicinal.utils.arguments import require, require_left_out
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.launch import Launch

EPOCHS = {"hint": "max_steps ends a run within an epoch"}  # for messages about values such as 0.5


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: highest learning rate of the schedule. The default of `vicinal train` is 0.0002, or 0.0003 with 100 or more
            classes to train on, and 0.00003 for vision transformers.
        weight_decay: L2 penalty (sgd, adam) or decoupled weight decay (adamw).
        loss_weight_decay: weight decay of the loss's parameters, such as class centers; null: `weight_decay`.
        momentum: momentum of sgd; 0 for none.
        betas: coefficients of the running means of the gradient and of its square, for adam and adamw.
        eps: added to the denominator, for adam and adamw. ProxyNCA++ takes 1.0.
        fused: whether a step updates all parameters in one kernel, which is faster for large models; results differ in
            rounding only.
        lr_factors: factors of the learning rate for parts of the module.
    """

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = 1e-4
    weight_decay: float = 1e-4
    loss_weight_decay: float | None = None
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    fused: bool = False
    lr_factors: Any = field(default_factory=SimpleNamespace)  # a dataclass of each subclass's own

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, "optimizer.lr", self.lr, "a positive number")
        require(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", self.weight_decay, "0 or more")
        decay = self.loss_weight_decay
        require(decay is None or 0 <= decay < math.inf, "optimizer.loss_weight_decay", decay, "0 or more, or null")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")
        require(all(0 <= beta < 1 for beta in self.betas), "optimizer.betas", self.betas, "two numbers in [0, 1)")
        require(0 < self.eps < math.inf, "optimizer.eps", self.eps, "a positive number")
        if self.name == "sgd":
            require_left_out(self, "optimizer.", ("betas", "eps"), "optimizer.name is adam or adamw")
        else:
            require_left_out(self, "optimizer.", ("momentum",), "optimizer.name is sgd")
        for name, factor in vars(self.lr_factors).items():
            require(0 <= factor < math.inf, f"optimizer.lr_factors.{name}", factor, "0 or more")

    def lr_factor(self, part: str) -> float:
        """The factor of the learning rate for one part of the module, such as the backbone."""
        return vars(self.lr_factors)[part]


@dataclass(frozen=True)
class Validation:
    """Evaluation on the split `val`, whose classes are not trained on.

    Args:
        metric: the metric that decides which weights are best: recall@K, mAP@K, precision@K or positives_recall@K with
            any K, mAP@R, R-precision, mAP or MRR.
        every: number of epochs between two evaluations.
        patience: stop after this many evaluations without a new best score; null never stops early. Without a split
            `val` there is nothing to stop by.
    """

    metric: str = "mAP@R"
    every: int = 1
    patience: int | None = 10

    def __post_init__(self) -> None:
        if self.metric != Validation.metric:  # the check imports numpy, which the help must not
            check_metric("validation.metric", self.metric)
        require(self.every >= 1, "validation.every", self.every, "at least 1 epoch")
        require(self.patience is None or self.patience >= 1, "validation.patience", self.patience, "at least 1")


@dataclass(frozen=True)
class BaseSettings:
    """The settings that the recipes of embedders and refiners share.

    Args:
        batch_size: number of images per batch, over all processes; null: 128, or fewer where the training split has too
            few classes.
        samples_per_class: number of images of each class in a batch; 0 draws images at random regardless of class;
            null: 4, or fewer where more than a tenth of the classes have fewer.
        class_sampling: how often a class is drawn: "by_size", in proportion to its number of images; "uniform", the
            classes of each batch at random and all equally likely; "exhaustive", in one batch after the other until its
            images are used up, each at most once per epoch.
        small_classes: "drop" leaves out classes with fewer than `samples_per_class` images, "replace" draws their
            images with replacement.
        epochs: number of passes over the training images; null: no limit, where `max_steps` ends the run, or else 4;
            more where these are fewer than 30 steps. With fewer than 30 classes it depends on their number.
        max_steps: number of steps of the optimizer after which the run ends, unless `epochs` ends it before; null: no
            limit. An epoch that it cuts short ends as others do, with validation and checkpoint.
        stop_epoch: number of epochs after which the run ends although its schedule goes on, as `vicinal tune` replays
            the epochs of a search; null: the run ends with its schedule.
        steps_per_epoch: number of steps per epoch; null: about as many as one pass over the training images takes.
        optimizer: the optimizer.
        schedule: the schedule of the learning rate.
        max_grad_value: largest absolute value of each element of the gradient, to which larger ones are clipped, before
            `max_grad_norm` applies; null: no limit.
        max_grad_norm: largest norm of the gradient, to which larger gradients are scaled down; null: no limit.
        accumulate_grad_batches: number of batches whose gradients are averaged before each step of the optimizer.
        ema_decay: decay per step of an exponential moving average of the weights, such as 0.999, which is evaluated and
            saved in their place; in the first steps it is less, (1 + step) / (10 + step). null: no average.
        precision: "32", "bf16-mixed" or "16-mixed"; "auto" is bf16-mixed for an embedder on a GPU that computes in
            bfloat16, else 32, and the run keeps that choice. The loss is always computed in float32.
        validation: evaluation on the split `val`.
        checkpoint_minutes: minutes between two checkpoints within an epoch; one is also written after every epoch.
        log_every: number of steps between two lines of the log.
        seed: seed of the initial weights, the order of the images, augmentation, dropout and the split of the classes.
        accelerator: auto, cpu or gpu.
    """

    batch_size: int | None = None
    samples_per_class: int | None = None
    class_sampling: Literal["by_size", "uniform", "exhaustive"] = "by_size"
    small_classes: Literal["drop", "replace"] = "drop"
    epochs: int | None = field(default=None, metadata=EPOCHS)
    max_steps: int | None = None
    stop_epoch: int | None = None
    steps_per_epoch: int | None = None
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: Schedule = field(default_factory=Schedule)
    max_grad_value: float | None = None
    max_grad_norm: float | None = None
    accumulate_grad_batches: int = 1
    ema_decay: float | None = None
    precision: Literal["auto", "32", "bf16-mixed", "16-mixed"] = "auto"
    validation: Validation = field(default_factory=Validation)
    checkpoint_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"

    @property
    def num_processes(self) -> int:
        """The number of training processes, one per device."""
        return 1

    @property
    def shards_weights(self) -> bool:
        """Whether each of several processes holds a part of the weights, not all of them."""
        return False

    @property
    def launch(self) -> Launch:
        """The launcher of the processes, which must be as many as the settings say."""
        launch = Launch.of()
        if launch.launcher is not None:
            raise InputError(f"{launch.launcher} started {launch.world_size} processes; a refiner is trained by one")
        return launch

    @property
    def length(self) -> RunLength:
        return RunLength(self.epochs, self.max_steps, self.stop_epoch)

    def __post_init__(self) -> None:
        for name in ("accumulate_grad_batches", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("epochs", "max_steps", "stop_epoch", "steps_per_epoch"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1 or null")
        for name in ("seed", "checkpoint_minutes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.seed < 2**63, "seed", self.seed, "below 2**63")
        for name in ("max_grad_value", "max_grad_norm"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, value, "a positive number or null")
        decay = self.ema_decay
        require(decay is None or 0 < decay < 1, "ema_decay", decay, "above 0 and below 1, or null")
        self._check_batches()
        momentum_range, has_momentum = self.schedule.momentum_range, self.optimizer.name != "sgd"
        is_valid = has_momentum or self.optimizer.momentum > 0 or momentum_range is None
        require(is_valid, "schedule.momentum_range", momentum_range, "null with optimizer.momentum = 0")

    def _check_batches(self) -> None:
        batch_size, samples = self.batch_size, self.samples_per_class
        require(batch_size is None or batch_size >= 2, "batch_size", batch_size, "at least 2: a loss compares images")
        require(samples is None or samples >= 0, "samples_per_class", samples, "0 or more")
        if batch_size is not None and samples:
            above = f"above samples_per_class = {samples}, so that a batch has two classes"
            require(samples < batch_size, "batch_size", batch_size, above)
            expected = f"a multiple of samples_per_class = {samples}"
            require(batch_size % samples == 0, "batch_size", batch_size, expected)
        if samples == 0:
            require_left_out(self, "", ("class_sampling",), "samples_per_class is above 0")


def check_metric(key: str, metric: str) -> None:
    from vicinal.evaluation.metrics import metric_by_name  # needs numpy, and the help does not

    with prefixed_errors(f"{key} = {metric}"):
        metric_by_name(metric)
