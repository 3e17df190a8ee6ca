"""The recipes of an embedder and of a refiner: every setting of their training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vicinal.data import Table
from vicinal.models import ContextRefiner, Embedder, default_transform
from vicinal.models.downloads import DownloadError
from vicinal.models.execution import gpu_has_bfloat16
from vicinal.models.initializations import embeds_patches
from vicinal.training.progress import fit_epochs
from vicinal.training.recipes.base_recipe import BaseRecipe
from vicinal.training.recipes.refiner_settings import DEFAULT_LOSS as REFINER_LOSS
from vicinal.training.recipes.refiner_settings import RefinerSettings
from vicinal.training.recipes.settings import DEFAULT_LOSS, TrainingSettings
from vicinal.utils.arguments import require
from vicinal.utils.console import condensed_retries
from vicinal.utils.errors import InputError

SMALL_BACKBONE = "mobilenetv4_conv_small"
"""The default backbone without a GPU: on a CPU it trains about ten times as fast as ResNet-50."""

TRANSFORMER_LR = 3e-5
"""The default learning rate of vision transformers, as papers fine-tune them; that of other networks ruins them."""

_NETWORK = {"backbone", "backbone_args", "head_whitening"}  # settings that name a network or suit only one


class Recipe(BaseRecipe):
    """The recipe of a training run: data, transform, model, loss, optimizer, schedule and all other settings.

    Where it names no backbone and there is no GPU, the backbone is a small one.

    Attributes:
        settings: all settings except those of the model and the loss.
        model: arguments of :class:`~vicinal.models.Embedder`.
        config: the recipe as plain nested values, with every default filled in.

    Example:
        >>> recipe = Recipe.load(overrides=["--data.source=digits", "--optimizer.lr=0.01", "--loss.temperature=0.2"])
        >>> recipe.settings.optimizer.lr, recipe.create_loss().temperature
        (0.01, 0.2)
    """

    verb = "train"
    settings_class = TrainingSettings
    first_settings = frozenset({"data", "transform"})
    model_class, model_key = Embedder, "model"
    fixed_arguments = frozenset({"transform"})
    default_loss = DEFAULT_LOSS

    settings: TrainingSettings

    @classmethod
    def _defaults(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that depend on machine and backbone: its learning rate, and the transform of its weights."""
        defaults = super()._defaults(values, given)
        backbone = values["model"]["backbone"]
        if cls._may_be_small(values, given.get("model", {})):
            backbone = SMALL_BACKBONE
            defaults["model"] = {"backbone": backbone}
        try:
            weights = default_transform(backbone)
        except InputError as error:
            raise InputError(f"model.{error}") from None
        defaults["transform"] = {"size": weights.size, "interpolation": weights.interpolation}
        if values["transform"]["channels"] == len(weights.mean):
            defaults["transform"] |= {"mean": weights.mean, "std": weights.std}
        if embeds_patches(backbone):
            defaults["optimizer"] = {"lr": TRANSFORMER_LR}
        return defaults

    @staticmethod
    def _may_be_small(values: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
        """Whether the backbone is left to the machine, which has no GPU; weights of a file are those of ResNet-50."""
        is_named = bool(_NETWORK & given.keys()) or not isinstance(values["model"]["pretrained"], bool)
        return not is_named and not _has_gpu(values["accelerator"])

    def _chosen(self, table: Table) -> dict[str, int]:
        """The batch, and the number of epochs where neither epochs nor steps are limited; ``fit_epochs`` says how."""
        from vicinal.training.training_data import steps_per_epoch  # which reads recipes

        chosen = super()._chosen(table)
        if self.settings.epochs is None and self.settings.max_steps is None:
            chosen["epochs"] = fit_epochs(steps_per_epoch(self.settings, table))
        return chosen

    @staticmethod
    def auto_precision(accelerator: str) -> str:
        return "bf16-mixed" if accelerator != "cpu" and gpu_has_bfloat16() else "32"

    @property
    def has_small_backbone(self) -> bool:
        """Whether the backbone is the default of a machine without a GPU."""
        return "model.backbone" not in self.given and self.model["backbone"] == SMALL_BACKBONE

    @property
    def is_pretrained(self) -> bool:
        """Whether training starts from pretrained weights."""
        return self.model["pretrained"] is not False

    @property
    def has_whitened_head(self) -> bool:
        """Whether the linear layer starts as a whitening of the features.

        Raises:
            InputError: The setting asks for it, and the head has no such layer.
        """
        model, wanted = self.model, self.settings.head_init
        fits = model["dim"] is not None and model["hidden"] is None and model["head_whitening"] is None
        fits = fits and not self.settings.shards_weights
        if wanted == "whitening" and not fits:
            expected = "random where model.dim is null, or model.hidden, model.head_whitening or fsdp is given"
            raise InputError(f"head_init = whitening must be {expected}")
        return fits and wanted != "random" and (self.is_pretrained or wanted == "whitening")

    def create_zero_shot_embedder(self) -> Embedder:
        """The pretrained network as it is: its own pooling, or that of frozen features, and no layer after it."""
        pooling = self.model["pooling"]
        if self.settings.features == "trained" and pooling != "projection":
            pooling = "backbone"
        own = {name: self.model[name] for name in ("backbone", "backbone_args", "pretrained")}
        return Embedder(**own, dim=None, pooling=pooling, norm="none", transform=self.settings.transform)

    def create_embedder(self) -> Embedder:
        """Create the model, with initial weights from the global random generator."""
        try:
            with condensed_retries():
                return Embedder(**self.model, transform=self.settings.transform)
        except DownloadError as error:
            flags = "--model.pretrained path/to/model.safetensors, --model.pretrained false (random weights)"
            raise InputError(f"model: {error.problem}; use {flags}, or {error.place}") from None
        except InputError as error:
            raise InputError(f"model: {str(error).replace('pretrained=false', 'model.pretrained: false')}") from None


def _has_gpu(accelerator: str) -> bool:
    """Whether a run trains on a GPU, as far as that is known before it starts."""
    return accelerator != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())


class RefinerRecipe(BaseRecipe):
    """The recipe of a context refiner's training.

    Attributes:
        settings: all settings except those of the refiner and the loss.
        model: arguments of :class:`~vicinal.models.ContextRefiner`, without `dim`.
        config: the recipe as plain nested values, with every default filled in.

    Example:
        >>> recipe = RefinerRecipe.load(overrides=["--embeddings=e.parquet", "--refiner.depth=4", "--loss=MarginLoss"])
        >>> recipe.settings.embeddings, recipe.create_refiner(dim=64).depth
        ('e.parquet', 4)
    """

    verb = "refine"
    settings_class = RefinerSettings
    first_settings = frozenset({"embeddings", "run"})
    model_class, model_key = ContextRefiner, "refiner"
    fixed_arguments = frozenset({"dim"})
    default_loss = REFINER_LOSS

    settings: RefinerSettings

    def __init__(
        self, values: dict[str, Any], given: frozenset[str] = frozenset(), allow_imports: tuple[str, ...] = ()
    ) -> None:
        super().__init__(values, given, allow_imports)
        self._check_refiner()

    def create_refiner(self, dim: int) -> ContextRefiner:
        """Create the refiner, with initial weights from the global random generator."""
        try:
            return ContextRefiner(dim, **self.model)
        except InputError as error:
            raise InputError(str(error).replace("ContextRefiner: ", "refiner.", 1)) from None

    def _check_refiner(self) -> None:
        """Raise InputError if an argument is invalid for every dimension, or leaves nothing to train."""
        with torch.device("meta"):
            self.create_refiner(dim=max(1, self.model["num_heads"]))
        trainable = self.model["neighbors"] > 0 or self.model["context"] == "self"
        require(
            trainable, "refiner.neighbors", self.model["neighbors"], "at least 1: without neighbors nothing is trained"
        )
