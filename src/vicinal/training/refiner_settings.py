"""The settings of a refiner's training, except those of the refiner and the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vicinal.training.base_settings import (
    EPOCHS,
    BaseSettings,
    OptimizerSettings,
    Validation,
    check_lr_factors,
    check_metric,
)
from vicinal.training.checks import require
from vicinal.training.schedule import Schedule


@dataclass(frozen=True)
class ContextAugmentation:
    """Augmentation of the embeddings and neighbors that the refiner is trained on.

    The embedder was trained with the labels of the training images, so their neighbors are better than those of unseen
    images. Augmentation makes them more alike.

    Args:
        neighbor_dropout: probability that a neighbor is left out, drawn independently for each neighbor in each batch.
        random_num_neighbors: show only the nearest k neighbors, with k drawn uniformly from 1 to all for each batch.
        noise: expected norm of the Gaussian noise that is added to embeddings and neighbors, which have norm 1, before
            they are normalized again.
    """

    neighbor_dropout: float = 0.0
    random_num_neighbors: bool = False
    noise: float = 1.0

    def __post_init__(self) -> None:
        dropout = self.neighbor_dropout
        require(0 <= dropout < 1, "augmentation.neighbor_dropout", dropout, "from 0 to below 1")
        require(0 <= self.noise < math.inf, "augmentation.noise", self.noise, "0 or more")


@dataclass(frozen=True)
class RefinerLearningRateFactors:
    """Factors of the learning rate for parts of the module; 0 freezes a part.

    Args:
        refiner: factor of the refiner's blocks.
        loss: factor of the loss's parameters, such as class centers.
    """

    refiner: float = 1.0
    loss: float = 1.0

    def __post_init__(self) -> None:
        check_lr_factors(self)


@dataclass(frozen=True)
class RefinerOptimizer(OptimizerSettings):
    """The optimizer of a refiner and its loss.

    Args:
        lr_factors: factors of the learning rate for parts of the module.
    """

    lr: float = 3e-4
    weight_decay: float = 0.01
    lr_factors: RefinerLearningRateFactors = field(default_factory=RefinerLearningRateFactors)

    def lr_factor(self, part: str) -> float:
        return vars(self.lr_factors)[part]


@dataclass(frozen=True)
class RefinerSettings(BaseSettings):
    """All settings of a refiner's training, except those of the refiner and the loss.

    Args:
        embeddings: file of embeddings of labeled images, .parquet or .npy with its table, as `vicinal embed` writes
            it. All rows are used, or those of the splits train and val.
        run: folder of a training run, instead of `embeddings`: its model embeds its training and validation images.
        embedder_fraction: fraction of the run's training classes on which a new embedder is trained by the run's
            recipe; the refiner is trained on that embedder's embeddings of the other classes, which it never saw. 0:
            the run's own embedder and all training classes.
        val_fraction: fraction of the classes that are used for validation, where there is no split val.
        augmentation: augmentation of embeddings and neighbors.
        optimizer: the optimizer of the refiner and its loss.
        validation: evaluation on the split val. A refiner that does not improve the metric significantly over the
            embeddings themselves is not saved.
        guardrail_metrics: metrics that must not be lower than those of the embeddings themselves; epochs with a lower
            one are never the best.
    """

    embeddings: str | None = None
    run: str | None = None
    embedder_fraction: float = 0.0
    val_fraction: float = 0.2
    augmentation: ContextAugmentation = field(default_factory=ContextAugmentation)
    epochs: int | None = field(default=15, metadata=EPOCHS)
    optimizer: RefinerOptimizer = field(default_factory=RefinerOptimizer)
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup=1.0))
    validation: Validation = field(default_factory=lambda: Validation("mAP@R", patience=5))
    guardrail_metrics: list[str] = field(default_factory=lambda: ["recall@1"])

    def __post_init__(self) -> None:
        super().__post_init__()
        neither = self.embeddings is None and self.run is None
        require(not neither, "embeddings", self.embeddings, "a file of embeddings, unless run is given")
        both = self.embeddings is not None and self.run is not None
        require(not both, "run", self.run, f"left out where embeddings = {self.embeddings} is given")
        for metric in self.guardrail_metrics:
            check_metric("guardrail_metrics", metric)
        fraction = self.embedder_fraction
        require(0 <= fraction < 1, "embedder_fraction", fraction, "from 0 to below 1")
        has_recipe = fraction == 0 or self.run is not None
        require(has_recipe, "embedder_fraction", fraction, "0 without run, whose recipe trains the new embedder")
        require(0 < self.val_fraction < 1, "val_fraction", self.val_fraction, "between 0 and 1")
