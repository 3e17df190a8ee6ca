"""Recipes: typed settings from YAML and the command line, checked, and saved with every default filled in."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

import vicinal.correction
import vicinal.distillation
import vicinal.matryoshka
import vicinal.memory
import vicinal.mixing
import vicinal.weighting
from vicinal.data import Table
from vicinal.losses import CenterBasedLoss, Loss
from vicinal.models import ContextRefiner, Embedder, default_transform
from vicinal.models.downloads import DownloadError
from vicinal.models.execution import gpu_has_bfloat16
from vicinal.models.initializations import embeds_patches
from vicinal.training.progress import fit_epochs
from vicinal.training.recipes import recipe_classes
from vicinal.training.recipes.base_settings import BaseSettings
from vicinal.training.recipes.recipe_check import RecipeCheck, as_yaml
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_values import ClassValue, Schema, Setting, arguments_schema, settings_schema
from vicinal.training.recipes.refiner_settings import DEFAULT_LOSS as REFINER_LOSS
from vicinal.training.recipes.refiner_settings import RefinerSettings
from vicinal.training.recipes.settings import DEFAULT_LOSS, TrainingSettings
from vicinal.training.training_data import fit_batches
from vicinal.utils.arguments import require
from vicinal.utils.console import condensed_retries, is_main_process, log
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml

LENGTH = ("epochs", "max_steps")
CONTINUED = (*LENGTH, "validation.patience")
"""The settings that may be larger or null where a run is resumed; its schedule is that of the new length."""

MACHINE = (
    "accelerator",
    "devices",
    "num_nodes",
    "strategy",
    "data.num_workers",
    "data.cache",
    "data.augmentation",
    "feature_cache",
    "log_every",
    "checkpoint_minutes",
)
"""The settings of machine and log, which may be changed where a run is resumed: the run goes on as it was trained.

Other devices change rounding, and which process draws which augmentation. Another cache changes pixels a little, but no
crops or random numbers.
"""

AnyRecipe = TypeVar("AnyRecipe", bound="BaseRecipe")
CHOSEN = ("batch_size", "samples_per_class", "epochs", "optimizer.lr", "model.backbone", "precision")
"""The settings whose defaults depend on the data or the machine."""
SMALL_BACKBONE = "mobilenetv4_conv_small"
"""The default backbone without a GPU: on a CPU it trains about ten times as fast as ResNet-50."""
TRANSFORMER_LR = 3e-5
"""The default learning rate of vision transformers, as papers fine-tune them; that of other networks ruins them."""
MANY_CLASSES = 100
MANY_CLASSES_LR = 3e-4
"""The default learning rate of other networks where they train on many classes (docs/findings/defaults.md)."""
_NETWORK = {"backbone", "backbone_args", "head_whitening"}  # settings that name a network or suit only one


class BaseRecipe(ABC):
    """All settings of a training run; subclasses define which.

    Args:
        values: all settings, nested, with every default filled in.
        given: the settings that were given, with dots; the others have their defaults.
        allow_imports: the packages whose classes it may name beside those of Vicinal.

    Attributes:
        settings: all settings except those of the model and the loss.
        model: arguments of the model's constructor.
        config: the recipe as plain nested values, with every default filled in.

    Raises:
        InputError: a setting, or an argument of the loss, is invalid.
    """

    verb: ClassVar[str]  # of the command, for messages
    settings_class: ClassVar[type[BaseSettings]]
    first_settings: ClassVar[frozenset[str]]  # those that come before the model in help and files
    model_class: ClassVar[type]
    model_key: ClassVar[str]
    fixed_arguments: ClassVar[frozenset[str]]  # arguments of the model's constructor that are not settings
    default_loss: ClassVar[str]

    settings: BaseSettings
    model: dict[str, Any]

    def __init__(
        self, values: dict[str, Any], given: frozenset[str] = frozenset(), allow_imports: tuple[str, ...] = ()
    ) -> None:
        self._values, self.given, self.allow_imports = values, given, allow_imports
        self.config: dict[str, Any] = recipe_classes.plain_values(values)
        self.model = recipe_classes.create(values[self.model_key], self.model_key)
        self.settings = recipe_classes.create_settings(values, settings_schema(self.settings_class))
        loss = self.create_loss()
        if self.settings.samples_per_class == 1:
            _check_single_samples(loss)

    @classmethod
    def schema(cls) -> Schema:
        """The names, types and defaults of the settings, the most important ones first."""
        settings = settings_schema(cls.settings_class)
        model = Schema(arguments_schema(cls.model_class), cls.model_class)
        for name in cls.fixed_arguments:
            del model[name]
        first = {name: each for name, each in settings.items() if name in cls.first_settings}
        default = recipe_classes.OfferedClasses().all(Loss)[cls.default_loss]
        loss = Setting(Loss, ClassValue(default, recipe_classes.with_defaults({}, arguments_schema(default))))
        return Schema({**first, cls.model_key: model, "loss": loss, **settings}, cls.settings_class)

    @classmethod
    def load(
        cls: type[AnyRecipe],
        path: str | Path | RecipeFile | None = None,
        overrides: Sequence[str] = (),
        allow_imports: Sequence[str] = (),
    ) -> AnyRecipe:
        """Read a YAML file, and settings that override it.

        A recipe is data: it can name the losses, miners and the like of Vicinal, and nothing else is imported.

        Args:
            path: the file, or one that was read before; None: all settings have their defaults.
            overrides: settings such as `--optimizer.lr=0.1`, with dots for nested keys.
            allow_imports: packages or modules whose classes the recipe may name too, such as `my_losses`.

        Raises:
            InputError: a missing file, an unknown key, a wrong type or an invalid value, with its file and line.
        """
        file = RecipeFile.read(path) if isinstance(path, str | Path) else path
        check = RecipeCheck(cls.schema(), cls.verb, file, overrides, recipe_classes.OfferedClasses(allow_imports))
        given = check.read()
        if given.get("precision") == "auto":
            del given["precision"]
        try:
            defaults = cls._defaults(recipe_classes.with_defaults(given, check.schema), given)
            values = recipe_classes.with_defaults(_merged(defaults, given), check.schema)
            return cls(values, frozenset(_flattened(recipe_classes.plain_values(given))), check.classes.allow_imports)
        except (ImportError, TypeError, ValueError) as error:
            check.fail(error)

    @classmethod
    def of_run(
        cls: type[AnyRecipe], path: Path, given: AnyRecipe | None, allow_imports: Sequence[str] = ()
    ) -> AnyRecipe:
        """Read the recipe of a run that is resumed.

        Args:
            path: the run's recipe file.
            given: the recipe with which the run is resumed, if any; it must be the same, but may be longer, or for
                another machine: see :data:`CONTINUED` and :data:`MACHINE`.
            allow_imports: as for :meth:`load`; a run does not remember it.

        Raises:
            InputError: the recipes differ, or the file is not a recipe.
        """
        own = cls.load(path, allow_imports=allow_imports)
        if given is None:
            return own
        own.check_same(given, continued=True)
        ours, theirs = _flattened(own.config), _flattened(given.config)
        keys = [*CONTINUED, *(key for key in MACHINE if key in given.given)]
        changed = {key: theirs[key] for key in keys if key in ours and theirs[key] != ours[key]}
        changed = {key: value for key, value in changed.items() if key not in CHOSEN or key in given.given}
        if not changed:
            return own
        if changed.keys() & set(LENGTH) and all({**ours, **changed}[key] is None for key in LENGTH):
            raise InputError("epochs = null must be a number without max_steps where a run is resumed")
        log(f"resuming with {', '.join(f'{key} = {as_yaml(value)}' for key, value in changed.items())}")
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changed.items()}
        return cls.load(path, [f"--{key}={text}" for key, text in texts.items()], allow_imports)

    @staticmethod
    def auto_precision(accelerator: str) -> str:
        """The precision that `auto` stands for."""
        return "32"

    @classmethod
    def _defaults(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that depend on other settings or the machine, nested; `values` has the other defaults."""
        return {"precision": cls.auto_precision(values["accelerator"])}

    def fitted(self: AnyRecipe, table: Table) -> AnyRecipe:
        """The recipe with the settings that depend on the training images, such as the batch size; logs the choices."""
        chosen = self._choose_settings(table)
        if not chosen:
            return self
        text = ", ".join(f"{name} = {value:g}" for name, value in _flattened(chosen).items())
        log(f"chosen to suit {len(table):,} training images of {len(table.classes):,} classes: {text}")
        return type(self)(_merged(self._values, chosen), self.given, self.allow_imports)

    def _choose_settings(self, table: Table) -> dict[str, Any]:
        sizes = fit_batches(self.settings, table)._asdict()
        return {name: size for name, size in sizes.items() if getattr(self.settings, name) is None}

    def create_loss(self) -> Loss:
        """Create the loss."""
        loss: Loss = recipe_classes.create(self._values["loss"], "loss")
        return loss

    def save(self, path: str | Path) -> None:
        """Write the recipe as YAML, with every default filled in."""
        write_bytes(path, dump_yaml(self.config).encode())

    def save_changes(self, path: Path) -> None:
        """Write the recipe in the place of a run's, if it differs from that; only the main process writes."""
        content = dump_yaml(self.config).encode()
        if is_main_process() and path.read_bytes() != content:
            write_bytes(path, content)

    def check_same(self, other: BaseRecipe, continued: bool = False) -> None:
        """Raise InputError, naming the first setting that differs, unless the other recipe is the same.

        Args:
            other: the recipe with which the run is resumed.
            continued: whether it may be one of a longer run, or for another machine.
        """
        ours, theirs = _flattened(self.config), _flattened(other.config)
        for key in [*ours, *theirs]:
            own, new = ours.get(key), theirs.get(key)
            is_chosen = key in CHOSEN and (key not in other.given or new is None)
            is_longer = continued and key in CONTINUED and own is not None and (new is None or new > own)
            is_allowed = is_chosen or is_longer or (continued and key in MACHINE)
            if own != new and not is_allowed:
                raise InputError(
                    f"{key} = {as_yaml(theirs.get(key))} differs from the run's own {as_yaml(ours.get(key))}; "
                    "resume with --out and --resume alone, or start a new run"
                )


def _check_single_samples(loss: Loss) -> None:
    """Raise InputError if a loss compares the images of a class in a batch, and nothing else."""
    kinds = CenterBasedLoss, vicinal.memory.CrossBatchMemory
    if not any(isinstance(part, kinds) for part in loss.modules()):
        raise InputError(
            f"samples_per_class = 1 must be 0 or at least 2: {type(loss).__name__} compares images of one class in a "
            "batch; a loss with class centers or a CrossBatchMemory does not"
        )


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **given}
    for name in defaults.keys() & given.keys():
        if isinstance(defaults[name], Mapping):
            merged[name] = _merged(defaults[name], given[name])
    return merged


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


class Recipe(BaseRecipe):
    """The recipe of a training run: data, transform, model, loss, optimizer, schedule and all other settings.

    Without a backbone and without a GPU, it takes a small backbone.

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
        # The small backbone is only for machines without a GPU; weights from a file belong to the default, ResNet-50.
        is_named = bool(_NETWORK & given.get("model", {}).keys())
        is_free = not is_named and isinstance(values["model"]["pretrained"], bool)
        if is_free and not _has_gpu(values["accelerator"]):
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

    def _choose_settings(self, table: Table) -> dict[str, Any]:
        """The batch, the learning rate of many classes, and the number of epochs where nothing limits the run."""
        from vicinal.training.training_data import num_trained_classes, steps_per_epoch  # which reads recipes

        chosen, num_classes = super()._choose_settings(table), num_trained_classes(self.settings, table)
        has_many = num_classes >= MANY_CLASSES and not embeds_patches(self.model["backbone"])
        if has_many and "optimizer.lr" not in self.given:
            chosen["optimizer"] = {"lr": MANY_CLASSES_LR}
        if self.settings.epochs is None and self.settings.max_steps is None:
            steps = steps_per_epoch(self.settings, table)
            chosen["epochs"] = fit_epochs(steps, num_classes if self._overfits_to_few_classes else None)
        return chosen

    @property
    def _overfits_to_few_classes(self) -> bool:
        """Whether the run is of the kind that did (docs/findings/defaults.md); others have the usual length."""
        settings = self.settings
        has_phases = settings.freeze_backbone_epochs or settings.sample_selection.method != "none"
        is_usual = settings.features == "trained" and not has_phases and not settings.schedule.warmup
        return self.is_pretrained and self.has_whitened_head and is_usual

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
        is_possible = model["dim"] is not None and model["hidden"] is None and model["head_whitening"] is None
        is_possible = is_possible and not self.settings.shards_weights
        if wanted == "whitening" and not is_possible:
            expected = "random where model.dim is null, or model.hidden, model.head_whitening or fsdp is given"
            raise InputError(f"head_init = whitening must be {expected}")
        return is_possible and wanted != "random" and (self.is_pretrained or wanted == "whitening")

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
        with torch.device("meta"):
            self.create_refiner(dim=max(1, self.model["num_heads"]))
        neighbors = self.model["neighbors"]
        is_trained = neighbors > 0 or self.model["context"] == "self"
        require(is_trained, "refiner.neighbors", neighbors, "at least 1: without neighbors nothing is trained")

    def create_refiner(self, dim: int) -> ContextRefiner:
        """Create the refiner, with initial weights from the global random generator."""
        try:
            return ContextRefiner(dim, **self.model)
        except InputError as error:
            raise InputError(str(error).replace("ContextRefiner: ", "refiner.", 1)) from None
