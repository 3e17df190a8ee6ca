"""The settings of a training run except those of its model and loss: types, defaults, bounds and descriptions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from vicinal.data.images.transforms import ImageTransform
from vicinal.data.settings import DataSettings
from vicinal.training.fine_tuning import FineTuning
from vicinal.training.recipes.base_settings import BaseSettings, OptimizerSettings, Validation
from vicinal.utils.arguments import require, require_left_out
from vicinal.utils.launch import Launch, check_launch

DEFAULT_LOSS = "NTXentLoss"
NO_AUGMENTATION: dict[str, Any] = {
    "scale": (1.0, 1.0),
    "ratio": (1.0, 1.0),
    "flip": 0.0,
    "color_jitter": 0.0,
    "rotation": 0.0,
}


@dataclass(frozen=True)
class LearningRateFactors:
    """Factors of the learning rate for parts of the module; 0 freezes a part.

    Args:
        backbone: factor of the network below the pooling.
        pooling: factor of the learned exponent of GeM pooling, which has no weight decay; 10 in the published code of
            its paper.
        head: factor of norm and linear layer.
        projector: factor of the projector, which is used in training only.
        loss: factor of the loss's parameters, such as class centers.
    """

    backbone: float = 1.0
    pooling: float = 1.0
    head: float = 1.0
    projector: float = 1.0
    loss: float = 1.0


@dataclass(frozen=True)
class EmbedderOptimizer(OptimizerSettings):
    """The optimizer of an embedder and its loss.

    Args:
        layer_decay: ratio of the learning rate of each block of the backbone to that of the next, such as 0.75; it
            applies once to the last block, most often to the stem.
    """

    lr: float = 2e-4
    lr_factors: LearningRateFactors = field(default_factory=LearningRateFactors)
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.layer_decay <= 1, "optimizer.layer_decay", self.layer_decay, "above 0 and at most 1")


@dataclass(frozen=True)
class EmbedderValidation(Validation):
    """Evaluation on the split `val`, whose classes are not trained on, and on training images.

    Args:
        train_images: largest number of training images whose recall@1 is logged at each evaluation too: always the
            same, whole classes or a part of large ones; null: a twentieth of the images, at least 200 and at most
            2,000; 0: none.
    """

    train_images: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        number = self.train_images
        require(number is None or number >= 0, "validation.train_images", number, "0 or more, or null")


@dataclass(frozen=True)
class SampleSelection:
    """Training with noisy labels: in each batch, the samples whose labels are probably noisy are left out.

    Args:
        method: "none"; "prism" leaves out samples that are unlike the past samples of their class, kept in a memory
            (Liu et al., CVPR 2021); "co-teaching" trains two models, each on the samples with the smallest loss of the
            other (Han et al., NeurIPS 2018), and needs a loss that has a value for each sample; "co-teaching+" does so
            among the samples that the two classify differently (Yu et al., ICML 2019), and needs a loss with class
            probabilities.
        noise_rate: assumed fraction of noisy labels among the training images.
        warmup_epochs: number of epochs before prism leaves out any samples, or over which the fraction that co-teaching
            leaves out rises to `noise_rate`.
        memory_size: number of embeddings in the memory of prism; null: the number of training images.
        window: number of batches over which the threshold of prism is averaged.
        co_teaching_epochs: number of first epochs of co-teaching, before co-teaching+ leaves out samples that the two
            models classify alike.
    """

    method: Literal["none", "prism", "co-teaching", "co-teaching+"] = "none"
    noise_rate: float = 0.2
    warmup_epochs: int = 1
    memory_size: int | None = None
    window: int = 10
    co_teaching_epochs: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.noise_rate < 1, "sample_selection.noise_rate", self.noise_rate, "from 0 to below 1")
        require(self.warmup_epochs >= 0, "sample_selection.warmup_epochs", self.warmup_epochs, "0 or more")
        require(self.window >= 1, "sample_selection.window", self.window, "at least 1")
        epochs = self.co_teaching_epochs
        require(epochs >= 0, "sample_selection.co_teaching_epochs", epochs, "0 or more")
        size = self.memory_size
        require(size is None or size >= 1, "sample_selection.memory_size", size, "at least 1 or null")
        self._require_method(("prism",), "memory_size", "window")
        self._require_method(("co-teaching+",), "co_teaching_epochs")
        self._require_method(("prism", "co-teaching", "co-teaching+"), "noise_rate", "warmup_epochs")

    def _require_method(self, methods: tuple[str, ...], *names: str) -> None:
        unchanged = all(getattr(self, name) == getattr(SampleSelection, name) for name in names)
        given = " or ".join(f"sample_selection.{name}" for name in names)
        expected = f"{' or '.join(methods)} where {given} is given"
        require(unchanged or self.method in methods, "sample_selection.method", self.method, expected)


@dataclass(frozen=True)
class TransitionSettings:
    """The transition matrix of the loss ForwardCorrection: how probable each label is for each true class.

    Args:
        source: a .csv file with the columns label, confused_with and probability, one pair of classes per line; or the
            folder of a run on the same noisy labels, whose loss has class probabilities and is not corrected: the
            matrix is estimated from them (Patrini et al., CVPR 2017, Eq. 12 and 13).
        quantile: the row of a class is the class probabilities of the image at this quantile of the probability of the
            class; 1: the image with the highest probability, which is right for many classes.
    """

    source: str | None = None
    quantile: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.quantile <= 1, "transition.quantile", self.quantile, "from 0 to 1")
        is_valid = self.quantile == 1 or self.source is not None
        require(is_valid, "transition.quantile", self.quantile, "left out without transition.source")


@dataclass(frozen=True)
class TrainingSettings(BaseSettings):
    """All settings of a training run, except those of the model and the loss.

    Args:
        data: source of the images and the split of their classes.
        transform: preprocessing of the images, in training and evaluation.
        optimizer: the optimizer of the embedder and its loss.
        validation: evaluation on the split `val`, and on training images.
        micro_batch_size: number of images per forward and backward pass on each process, for batches that do not fit
            into memory; the gradient stays that of the whole batch, and a step takes a third longer. null: the whole
            batch at once.
        coarse_classes_per_batch: number of coarse classes per batch, each with equally many images (balanced
            hierarchical sampling); 0 draws classes whatever their coarse class.
        coarse_sampling: how often a coarse class is drawn: "by_size", in proportion to its number of images, or
            "uniform", equally often. Within it, classes are drawn as `class_sampling` says, which cannot be exhaustive.
        coarse_column: column of the table with the coarse labels: coarse, coarse_2, ...
        head_init: initial weights of the linear layer after the features: "whitening", a whitening of a quarter of the
            strength that is estimated from training images, which is better than the pretrained network's own
            embeddings; or "random"; null: whitening where the backbone is pretrained and the head has one linear layer
            that no file initializes.
        centers: initial class centers of a center-based loss: "random"; "class_means", the means of the training
            images' embeddings by the untrained model; or the folder of a run, whose centers are copied by class name,
            while classes that it does not have get random centers.
        sample_selection: training with noisy labels.
        transition: the transition matrix of the loss ForwardCorrection.
        compatible_with: the run or model folder of an old model, of the same dimension: the new embeddings are also
            trained to be near the old ones of their class, so that new queries can be compared with gallery vectors of
            the old model (Shen et al., CVPR 2020); null: none.
        compatible_weight: weight of that term of the loss.
        freeze_backbone_epochs: number of first epochs in which the backbone is frozen.
        fine_tuning: which parameters of the backbone are trained.
        gradient_checkpointing: whether the activations within each block of the backbone are computed again in the
            backward pass, not kept: less memory, a third more time.
        compile: whether the backbone is compiled by torch.compile, at its first use in training and in evaluation.
        features: "trained"; or "frozen": every image is passed once through backbone and pooling, without augmentation,
            and the head alone is trained, on these features.
        feature_cache: folder in which frozen features, and those of the model of compatible_with, are kept, for all
            runs with the same backbone and images; null: the folder features in VICINAL_DATA, else in ~/.cache/vicinal.
        feature_dtype: type of the kept numbers, float32 or float16.
        devices: number of devices of a node, with one training process each; null: as many as torchrun or SLURM started
            processes on each node, or else 1.
        num_nodes: number of nodes, each with these devices, on which torchrun or SLURM started the command; null: as
            many as they are.
        strategy: how several processes hold weights, gradients and state of the optimizer: "ddp", each has all of them;
            "fsdp", each has a part, for models that do not fit on one device, with more messages in each step.
    """

    data: DataSettings = field(default_factory=DataSettings)
    transform: ImageTransform = field(default_factory=ImageTransform)
    optimizer: EmbedderOptimizer = field(default_factory=EmbedderOptimizer)
    validation: EmbedderValidation = field(default_factory=EmbedderValidation)
    micro_batch_size: int | None = None
    coarse_classes_per_batch: int = 0
    coarse_sampling: Literal["by_size", "uniform"] = "by_size"
    coarse_column: str = "coarse"
    head_init: Literal["whitening", "random"] | None = None
    centers: str = "random"
    sample_selection: SampleSelection = field(default_factory=SampleSelection)
    transition: TransitionSettings = field(default_factory=TransitionSettings)
    compatible_with: str | None = None
    compatible_weight: float = 1.0
    freeze_backbone_epochs: int = 0
    fine_tuning: FineTuning = field(default_factory=FineTuning)
    gradient_checkpointing: bool = False
    compile: bool = False
    features: Literal["trained", "frozen"] = "trained"
    feature_cache: str | None = None
    feature_dtype: Literal["float32", "float16"] = "float32"
    devices: int | None = None
    num_nodes: int | None = None
    strategy: Literal["ddp", "fsdp"] = "ddp"

    def __post_init__(self) -> None:
        from vicinal.data.columns import is_coarse_column  # needs pandas, and the help does not

        super().__post_init__()
        for name in ("coarse_classes_per_batch", "freeze_backbone_epochs"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("devices", "num_nodes"):
            number = getattr(self, name)
            require(number is None or number >= 1, name, number, "at least 1 or null")
        size = self.micro_batch_size
        require(size is None or size >= 1, "micro_batch_size", size, "at least 1 or null")
        is_valid = size == 1 or self.transform.longest is None or self.features == "frozen"
        require(is_valid, "micro_batch_size", size, "1 with transform.longest, as whole images differ in size")
        require(is_coarse_column(self.coarse_column), "coarse_column", self.coarse_column, "coarse, coarse_2, ...")
        require(0 < self.compatible_weight < math.inf, "compatible_weight", self.compatible_weight, "above 0, finite")
        if self.compatible_with is None:
            require_left_out(self, "", ("compatible_weight",), "compatible_with is given")
        self._check_hierarchy()
        self._check_strategy()
        check_frozen_settings(self)

    def _check_hierarchy(self) -> None:
        number, samples = self.coarse_classes_per_batch, self.samples_per_class
        if number == 0:
            names = ("coarse_sampling", "coarse_column")
            return require_left_out(self, "", names, "coarse_classes_per_batch is above 0")
        expected = "by_size or uniform with coarse_classes_per_batch"
        require(self.class_sampling != "exhaustive", "class_sampling", self.class_sampling, expected)
        expected = "0 with samples_per_class = 0, which draws images at random"
        require(samples != 0, "coarse_classes_per_batch", number, expected)
        if self.batch_size is not None and samples:
            expected = f"a multiple of samples_per_class = {samples} times coarse_classes_per_batch = {number}"
            require(self.batch_size % (samples * number) == 0, "batch_size", self.batch_size, expected)

    def _check_strategy(self) -> None:
        """Raise InputError if weights are sharded with settings that do not support it."""
        if self.shards_weights:
            require(self.precision != "16-mixed", "precision", self.precision, "32 or bf16-mixed with strategy = fsdp")
            require(not self.compile, "compile", "true", "false with strategy = fsdp")
            has_shards = not self.optimizer.fused or self.optimizer.name != "sgd"
            require(has_shards, "optimizer.fused", "true", "false for sgd with strategy = fsdp, which torch lacks")

    @property
    def shards_weights(self) -> bool:
        return self.strategy == "fsdp"

    @property
    def num_processes(self) -> int:
        return Launch.of().num_processes(self.devices, self.num_nodes)

    @property
    def launch(self) -> Launch:
        return check_launch(self.devices, self.num_nodes)


def check_frozen_settings(settings: TrainingSettings) -> None:
    """Raise InputError if a setting of a run has no effect with its `features`."""
    if settings.features == "trained":
        if settings.compatible_with is None:
            require_left_out(settings, "", ("feature_cache",), "features is frozen or compatible_with is given")
        return require_left_out(settings, "", ("feature_dtype",), "features is frozen")
    require_left_out(settings, "", ("freeze_backbone_epochs",), "features is trained: frozen is frozen throughout")
    unless = "features is trained: frozen trains the head only"
    require_left_out(settings.optimizer.lr_factors, "optimizer.lr_factors.", ("backbone", "pooling"), unless)
    require_left_out(settings, "", ("fine_tuning", "gradient_checkpointing", "compile", "strategy"), unless)
    require_left_out(settings.optimizer, "optimizer.", ("layer_decay",), unless)
    unless = "features is trained: frozen embeds each image once, without augmentation"
    require_left_out(settings.data, "data.", ("augmentation",), unless)
    for name, none in NO_AUGMENTATION.items():
        value = getattr(settings.transform, name)
        is_valid = value in (none, getattr(ImageTransform, name))
        require(is_valid, f"transform.{name}", value, "left out with features = frozen, which embeds each image once")
