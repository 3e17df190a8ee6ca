"""What the training loop must be told, whatever it trains: the settings that recipes have in common."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vicinal.errors import InputError
from vicinal.training.schedule import Schedule


class LoopSettings(Protocol):
    """The settings that every recipe has; what they mean stands in each."""

    @property
    def batch(self) -> int: ...
    @property
    def per_class(self) -> int: ...
    @property
    def classes_with_fewer(self) -> Literal["leave_out", "replace"]: ...
    @property
    def epochs(self) -> int: ...
    @property
    def optimizer(self) -> Any: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def accumulate(self) -> int: ...
    @property
    def precision(self) -> Literal["32", "bf16-mixed", "16-mixed"]: ...
    @property
    def validation(self) -> Validation: ...
    @property
    def checkpoint_minutes(self) -> float: ...
    @property
    def log_every(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def accelerator(self) -> Literal["auto", "cpu", "gpu"]: ...
    @property
    def devices(self) -> int: ...


def check_loop(settings: LoopSettings) -> None:
    """Raise InputError at the first setting that cannot be."""
    for name in ("batch", "epochs", "accumulate", "log_every"):
        require(getattr(settings, name) >= 1, name, getattr(settings, name), "at least 1")
    for name in ("per_class", "seed", "checkpoint_minutes"):
        require(getattr(settings, name) >= 0, name, getattr(settings, name), "0 or more")
    clip, batch, per_class = settings.clip, settings.batch, settings.per_class
    require(clip is None or 0 < clip < math.inf, "clip", clip, "a positive number or null")
    require(batch >= 2, "batch", batch, "at least 2: a loss compares images")
    require(per_class != 1, "per_class", 1, "0 or at least 2: images of a class are compared")
    require(per_class < batch, "batch", batch, f"above per_class = {per_class}: two classes")
    require(settings.seed < 2**63, "seed", settings.seed, "below 2**63")
    divisible = per_class == 0 or batch % per_class == 0
    require(divisible, "batch", batch, f"a multiple of per_class = {per_class}")


@dataclass(frozen=True)
class OptimizerSettings:
    """How gradients change the parameters: what does not depend on what is trained.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: learning rate at its highest.
        weight_decay: L2 penalty (sgd, adam) or decoupled decay (adamw).
        loss_weight_decay: the same for parameters of the loss, such as class centers; null: as for the others.
        momentum: momentum of sgd; 0 is none.
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


@dataclass(frozen=True)
class Validation:
    """How the run is watched on classes it does not train on: the split `val`, if there is one.

    Args:
        metric: what decides which weights are best, such as recall@1, mAP@R, R-precision or mAP.
        every: epochs between evaluations.
        patience: stop after this many evaluations without a new best; null never stops early.
    """

    metric: str = "recall@1"
    every: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        check_metric("validation.metric", self.metric)
        require(self.every >= 1, "validation.every", self.every, "at least 1 epoch")
        require(self.patience is None or self.patience >= 1, "validation.patience", self.patience, "at least 1")


def check_factors(factors: object) -> None:
    """Raise InputError unless all factors of the learning rate are finite and not negative."""
    for name, value in vars(factors).items():
        require(0 <= value < math.inf, f"optimizer.factors.{name}", value, "0 or more")


def check_metric(key: str, metric: str) -> None:
    """Raise InputError unless the metric is one that every evaluation has."""
    known = re.fullmatch(r"recall@[1248]|mAP@R|R-precision|mAP", metric)
    require(known is not None, key, metric, "recall@1, 2, 4 or 8, mAP@R, R-precision or mAP")


def require(holds: bool, key: str, value: object, what: str) -> None:
    """Raise InputError that says what the setting must be, unless it holds."""
    if not holds:
        raise InputError(f"{key} = {value} must be {what}")
