"""Recipes: typed settings from YAML and the command line, checked, and saved with every default filled in."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import vicinal.correction
import vicinal.distillation
import vicinal.matryoshka
import vicinal.memory
import vicinal.mixing
import vicinal.weighting
from vicinal.data import Table
from vicinal.losses import CenterBasedLoss, Loss
from vicinal.training.recipes.base_settings import BaseSettings
from vicinal.training.recipes.batch_size import fit_batches
from vicinal.training.recipes.recipe_check import RecipeCheck, as_yaml
from vicinal.training.recipes.recipe_classes import (
    ClassValue,
    OfferedClasses,
    create,
    create_settings,
    plain_values,
    with_defaults,
)
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_values import Schema, Setting, arguments_schema, settings_schema
from vicinal.utils.console import is_main_process, log
from vicinal.utils.errors import InputError, one_line
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
"""The settings of machine and log, which may be given anew where a run is resumed: the run goes on as it was trained.

With other devices, numbers are rounded otherwise, and random augmentation is drawn for other processes. With another
cache pixels differ a little, and crops and random numbers do not.
"""

AnyRecipe = TypeVar("AnyRecipe", bound="BaseRecipe")
CHOSEN = ("batch_size", "samples_per_class", "epochs", "model.backbone", "precision")
"""The settings that suit data and machine where they are not given."""


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
        self.config: dict[str, Any] = plain_values(values)
        self.model = create(values[self.model_key])
        self.settings = create_settings(values, settings_schema(self.settings_class))
        loss = self.create_loss()
        if self.settings.samples_per_class == 1:
            _check_single_samples(loss)

    @classmethod
    def schema(cls) -> Schema:
        """The names, types and defaults of the settings, those that are needed most first."""
        settings = settings_schema(cls.settings_class)
        model = Schema(arguments_schema(cls.model_class), cls.model_class)
        for name in cls.fixed_arguments:
            del model[name]
        first = {name: each for name, each in settings.items() if name in cls.first_settings}
        default = OfferedClasses().all(Loss)[cls.default_loss]
        loss = Setting(Loss, ClassValue(default, with_defaults({}, arguments_schema(default))))
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
        check = RecipeCheck(cls.schema(), cls.verb, file, overrides, OfferedClasses(allow_imports))
        given = check.read()
        if given.get("precision") == "auto":
            del given["precision"]
        try:
            defaults = cls._defaults(with_defaults(given, check.schema), given)
            values = with_defaults(_merged(defaults, given), check.schema)
            return cls(values, frozenset(_flattened(plain_values(given))), check.classes.allow_imports)
        except (ImportError, TypeError, ValueError) as error:
            check.fail(one_line(error, 1000))

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
        """The defaults that depend on other settings or the machine, nested.

        Args:
            values: all settings, with the other defaults.
            given: the settings that were given.
        """
        return {"precision": cls.auto_precision(values["accelerator"])}

    def fitted(self: AnyRecipe, table: Table) -> AnyRecipe:
        """The recipe with what it leaves to the training images, such as the batch size; what is chosen is logged."""
        chosen = self._chosen(table)
        if not chosen:
            return self
        text = ", ".join(f"{name} = {size}" for name, size in chosen.items())
        log(f"chosen to suit {len(table):,} training images of {len(table.classes):,} classes: {text}")
        return type(self)({**self._values, **chosen}, self.given, self.allow_imports)

    def _chosen(self, table: Table) -> dict[str, int]:
        """The settings that suit these training images, where they are not given; ``fit_batches`` says how."""
        sizes = fit_batches(self.settings, table)._asdict()
        return {name: size for name, size in sizes.items() if getattr(self.settings, name) is None}

    def create_loss(self) -> Loss:
        """Create the loss."""
        loss: Loss = create(self._values["loss"])
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
    """Nested settings: those given, and defaults of the others."""
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
