"""The settings of a refiner's training, except those of the refiner and the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.training.recipes import base_settings
from vicinal.training.schedule import Schedule
from vicinal.utils.arguments import require

NoiseCovariance = Literal["embeddings", "isotropic"]
DEFAULT_LOSS = "SmoothAPLoss"
CLASS_SIZES = (2, 5, 10, 20)  # numbers of images per class for which a refiner is made by default


@dataclass(frozen=True)
class ContextAugmentation:
    """Augmentation of the embeddings and neighbors that the refiner is trained on.

    The embedder was trained with the labels of the training images, so their neighbors are better than those of unseen
    images. Augmentation makes them more alike.

    Args:
        neighbor_dropout: probability that a neighbor is left out, drawn independently for each neighbor in each batch.
        random_num_neighbors: show only the nearest k neighbors, with k drawn uniformly from 1 to all for each batch.
        noise: expected norm of the Gaussian noise that is added to embeddings and neighbors, which have norm 1, before
            they are normalized again; 0 for none. null: the norm at which training images find each other as often as
            those of the split val do without noise, which is logged.
        noise_per: "image" draws the noise of each image again in each epoch, and searches the neighbors among the noisy
            embeddings, so that more are of other classes; "neighbor" keeps the neighbors and draws noise for each
            of them, and for the embedding, in each batch.
        noise_covariance: "embeddings" gives the noise the covariance of the training embeddings, so that images of one
            class come near those of others; "isotropic" the same variance in all directions, which lowers all
            similarities alike.
        class_sizes: numbers of images per class among which neighbors are searched: in each epoch one of them is drawn
            for each class, and that number of its images. null: all images.
    """

    neighbor_dropout: float = 0.0
    random_num_neighbors: bool = False
    noise: float | None = None
    noise_per: Literal["image", "neighbor"] = "image"
    noise_covariance: NoiseCovariance = "embeddings"
    class_sizes: list[int] | None = field(default_factory=lambda: list(CLASS_SIZES))

    @property
    def changes_neighbors(self) -> bool:
        """Whether neighbors differ from epoch to epoch."""
        return (self.noise != 0 and self.noise_per == "image") or self.class_sizes is not None

    def __post_init__(self) -> None:
        dropout, sizes = self.neighbor_dropout, self.class_sizes
        if sizes is not None:
            check_class_sizes("augmentation.class_sizes", sizes)
            require(len(sizes) > 0, "augmentation.class_sizes", sizes, "null or at least one number")
        require(0 <= dropout < 1, "augmentation.neighbor_dropout", dropout, "from 0 to below 1")
        require(
            self.noise is None or 0 <= self.noise < math.inf, "augmentation.noise", self.noise, "0 or more, or null"
        )


def check_class_sizes(key: str, sizes: list[int]) -> None:
    """Raise InputError unless all numbers of images per class are at least 2."""
    require(min(sizes, default=2) >= 2, key, sizes, "numbers of images from 2 up")


@dataclass(frozen=True)
class RefinerLearningRateFactors:
    """Factors of the learning rate for parts of the module; 0 freezes a part.

    Args:
        refiner: factor of the matrices of the refiner's blocks.
        scalars: factor of their gates, temperatures and similarities of the null neighbor, which are single numbers.
        loss: factor of the loss's parameters, such as class centers.
    """

    refiner: float = 1.0
    scalars: float = 100.0
    loss: float = 1.0


@dataclass(frozen=True)
class RefinerOptimizer(base_settings.OptimizerSettings):
    """The optimizer of a refiner and its loss."""

    lr: float = 1e-4
    weight_decay: float = 0.01
    lr_factors: RefinerLearningRateFactors = field(default_factory=RefinerLearningRateFactors)


@dataclass(frozen=True)
class RefinerSettings(base_settings.BaseSettings):
    """All settings of a refiner's training, except those of the refiner and the loss.

    Args:
        embeddings: file of embeddings of labeled images, .parquet or .npy with its table, as `vicinal embed` writes
            it. All rows are used, or those of the splits train and val.
        labels: file of the labels of `embeddings`, .csv, .parquet or .npy, with one row per embedding. null: those in
            the file of embeddings or beside it.
        path_column: name of the column with the image paths in the table of `embeddings`; null: path.
        label_column: name of the column with the labels; null: label.
        run: folder of a training run, instead of `embeddings`: its model embeds its training and validation images.
        embedder_fraction: fraction of the run's training classes on which a new embedder is trained by the run's
            recipe; the refiner is trained on that embedder's embeddings of the other classes, which it never saw. 0:
            the run's own embedder and all training classes.
        val_fraction: fraction of the classes that are used for validation, without a split val; 0, which needs
            `keep: last`: all classes are trained on.
        augmentation: augmentation of embeddings and neighbors.
        label_smoothing: fraction of any loss that is computed with the labels of the batch in random order. For a loss
            that is linear in the target probabilities, such as a softmax over class centers, this is label smoothing
            in expectation: the fraction is divided evenly among the labels of the batch.
        optimizer: the optimizer of the refiner and its loss.
        validation: evaluation on the split val. A refiner that does not improve the metric significantly over the
            embeddings themselves is not saved.
        guardrail_metrics: metrics that must not be lower than those of the embeddings themselves by more than half a
            standard error over the classes; epochs with a lower one are never the best.
        guardrail_class_sizes: numbers of images per class at which these metrics must not be lower either; those for
            which the split val has too few images are left out. The images are random parts of the split val.
        update_factors: factors, from large to small, with which the updates of all blocks are multiplied: in each
            epoch, the first factor that lowers no guardrail metric counts. A smaller step gains less and harms less.
        devices: number of processes that embed the images of `run`, each on a GPU, or on the CPU; null: one. The
            embeddings are those of one process; the refiner is trained by one.
        keep: "best": the weights of the best epoch, and nothing is saved if the refiner does not help; "last": those of
            the last epoch whatever it brings, as in the paper, and `validation.patience` does not apply.
    """

    embeddings: str | None = None
    labels: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    run: str | None = None
    embedder_fraction: float = 0.0
    val_fraction: float = 0.2
    augmentation: ContextAugmentation = field(default_factory=ContextAugmentation)
    label_smoothing: float = 0.0
    epochs: int | None = field(default=15, metadata=base_settings.EPOCHS)
    optimizer: RefinerOptimizer = field(default_factory=RefinerOptimizer)
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup=1.0))
    validation: base_settings.Validation = field(default_factory=lambda: base_settings.Validation("mAP@R", patience=5))
    guardrail_metrics: list[str] = field(default_factory=lambda: ["recall@1", "mAP@R"])
    guardrail_class_sizes: list[int] = field(default_factory=lambda: list(CLASS_SIZES))
    update_factors: list[float] = field(default_factory=lambda: [1.0, 0.5, 0.25])
    devices: int | None = None
    keep: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epochs is not None or self.max_steps is not None, "epochs", "null", "a number without max_steps")
        neither = self.embeddings is None and self.run is None
        require(not neither, "embeddings", self.embeddings, "a file of embeddings, unless run is given")
        both = self.embeddings is not None and self.run is not None
        require(not both, "run", self.run, f"left out where embeddings = {self.embeddings} is given")
        for name in ("labels", "path_column", "label_column"):
            is_used = getattr(self, name) is None or self.embeddings is not None
            require(is_used, name, getattr(self, name), "left out where no file of embeddings is given")
        require(self.devices is None or self.devices >= 1, "devices", self.devices, "at least 1 or null")
        is_needed = self.devices in (None, 1) or self.run is not None
        require(is_needed, "devices", self.devices, "1 without run, whose images several processes embed")
        for metric in self.guardrail_metrics:
            base_settings.check_metric("guardrail_metrics", metric)
        fraction = self.embedder_fraction
        require(0 <= fraction < 1, "embedder_fraction", fraction, "from 0 to below 1")
        has_recipe = fraction == 0 or self.run is not None
        require(has_recipe, "embedder_fraction", fraction, "0 without run, whose recipe trains the new embedder")
        require(0 <= self.val_fraction < 1, "val_fraction", self.val_fraction, "from 0 to below 1")
        require(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "from 0 to below 1")
        check_class_sizes("guardrail_class_sizes", self.guardrail_class_sizes)
        factors = self.update_factors
        is_possible = len(factors) > 0 and all(0 < each < math.inf for each in factors)
        require(is_possible, "update_factors", factors, "one or more numbers above 0")
