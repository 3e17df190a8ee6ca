"""The settings of training a context refiner, beside the refiner itself and its loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.training.loop_settings import (
    OptimizerSettings,
    Validation,
    check_factors,
    check_loop,
    check_metric,
    require,
)
from vicinal.training.schedule import Schedule


@dataclass(frozen=True)
class Neighborhood:
    """What of the context of a training sample is shown to the refiner.

    The neighbours of a training image look better than those of an unseen one, for the embedder knew their labels.
    Less of them is nearer to what comes later.

    Args:
        dropout: share of the neighbours that is left out, each for itself and anew in every batch.
        random_size: show only the nearest 1, 2, ... or all, a number drawn anew for every batch.
    """

    dropout: float = 0.0
    random_size: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.dropout < 1, "neighborhood.dropout", self.dropout, "from 0 to below 1")


@dataclass(frozen=True)
class RefinerFactors:
    """Factors of the learning rate for parts of what is trained; 0 keeps a part as it is.

    Args:
        refiner: the blocks.
        loss: parameters of the loss, such as class centers.
    """

    refiner: float = 1.0
    loss: float = 1.0

    def __post_init__(self) -> None:
        check_factors(self)


@dataclass(frozen=True)
class RefinerOptimizer(OptimizerSettings):
    """How gradients change the parameters of a refiner.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: learning rate at its highest.
        weight_decay: L2 penalty (sgd, adam) or decoupled decay (adamw).
        loss_weight_decay: the same for parameters of the loss, such as class centers; null: as for the others.
        momentum: momentum of sgd; 0 is none.
        factors: learning-rate factors for parts of what is trained.
    """

    lr: float = 3e-4
    weight_decay: float = 0.01
    factors: RefinerFactors = field(default_factory=RefinerFactors)


@dataclass(frozen=True)
class RefinerSettings:
    """All settings of training a refiner beside the refiner and the loss.

    Args:
        embeddings: a file of embeddings of labelled images, .parquet or .npy with its table, as `vicinal embed` writes
            them: all, or those of the splits train and val, are used.
        run: in the place of embeddings, the folder of a training run: its training and validation images are embedded
            by its model.
        cross_fit: share of the run's training classes that an embedder of its own is trained on, as the run was; the
            refiner learns from that embedder's embeddings of the other classes, which it never saw. 0: the run's own
            embedder, and all its training classes.
        val_share: share of the classes that the refiner is judged by and not trained on, where there is no split val.
        neighborhood: what of the context of a training sample is shown to the refiner.
        noise: length of random vectors that are added to training embeddings and their neighbours, which have length
            1, before they are normalised again: so that the refiner does not learn the training images by heart.
        batch: embeddings a step.
        per_class: embeddings of each class in a batch; 0 draws them at random whatever their class.
        classes_with_fewer: "leave_out" classes with fewer than `per_class` images, or "replace": draw them with
            replacement.
        epochs: passes over the training embeddings.
        optimizer: how gradients change the parameters.
        schedule: how the learning rate changes over the epochs.
        clip: largest norm of the gradient; null does not clip.
        accumulate: batches whose gradients are averaged before a step.
        precision: "32", "bf16-mixed" or "16-mixed"; the loss is always computed in float32.
        validation: how the training is watched. A refiner that is not better than the embeddings as they come, beyond
            chance, is not written.
        never_below: metrics that must not be lower than those of the embeddings as they come for an epoch to count.
        checkpoint_minutes: a checkpoint is written after every epoch and, in long epochs, after so many minutes.
        log_every: steps between two lines of the log.
        seed: fixes initial weights, order of embeddings, neighbours shown, dropout, and how classes are divided.
        accelerator: auto, cpu or gpu.
    """

    embeddings: str | None = None
    run: str | None = None
    cross_fit: float = 0.0
    val_share: float = 0.2
    neighborhood: Neighborhood = field(default_factory=Neighborhood)
    noise: float = 1.0
    batch: int = 128
    per_class: int = 4
    classes_with_fewer: Literal["leave_out", "replace"] = "leave_out"
    epochs: int = 15
    optimizer: RefinerOptimizer = field(default_factory=RefinerOptimizer)
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup=1.0))
    clip: float | None = None
    accumulate: int = 1
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    validation: Validation = field(default_factory=lambda: Validation("mAP@R", patience=5))
    never_below: list[str] = field(default_factory=lambda: ["recall@1"])
    checkpoint_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"

    def __post_init__(self) -> None:
        check_loop(self)
        neither = self.embeddings is None and self.run is None
        require(not neither, "embeddings", self.embeddings, "a file of embeddings, unless run = the folder of a run")
        both = self.embeddings is not None and self.run is not None
        require(not both, "run", self.run, f"left out, for embeddings = {self.embeddings} are given")
        for metric in self.never_below:
            check_metric("never_below", metric)
        require(0 <= self.cross_fit < 1, "cross_fit", self.cross_fit, "from 0 to below 1")
        alone = self.cross_fit == 0 or self.run is not None
        require(alone, "cross_fit", self.cross_fit, "0 without run, whose recipe the new embedder is trained by")
        require(0 <= self.noise < math.inf, "noise", self.noise, "0 or more")
        require(0 < self.val_share < 1, "val_share", self.val_share, "between 0 and 1")

    @property
    def devices(self) -> int:
        """A refiner is small: one process trains it."""
        return 1
