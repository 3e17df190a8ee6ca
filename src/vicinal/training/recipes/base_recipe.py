"""Recipes: typed settings from YAML and the command line, checked, and saved with every default filled in."""

from __future__ import annotations

import argparse
import json
from abc import ABC
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import docstring_parser
import jsonargparse

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
from vicinal.training.recipes.recipe_classes import OfferedClasses
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_schema import Schema, Setting, arguments_schema, settings_schema
from vicinal.utils.console import is_main_process, log
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml

LAST_GROUPS = ("optimizer.lr_factors", "fine_tuning", "sample_selection", "data.noise")  # of the help

CONTINUED = ("epochs", "max_steps", "validation.patience")
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

    Attributes:
        settings: all settings except those of the model and the loss.
        model: arguments of the model's constructor.
        config: the recipe as plain nested values, with every default filled in.
        allow_imports: the packages whose classes it may name beside those of Vicinal.
        given: the settings that were given, with dots; the others have their defaults.
    """

    verb: ClassVar[str]  # of the command, for messages
    settings_class: ClassVar[type[BaseSettings]]
    first_settings: ClassVar[frozenset[str]]  # those that come before the model in help and files
    model_class: ClassVar[type]
    model_key: ClassVar[str]
    fixed_arguments: ClassVar[frozenset[str]]  # arguments of the model's constructor that are not settings
    default_loss: ClassVar[type[Loss]]

    settings: BaseSettings
    model: dict[str, Any]
    allow_imports: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        self._parser = parser
        self._namespace = namespace
        self.config: dict[str, Any] = json.loads(parser.dump(namespace, format="json", skip_unset=False))
        self.model = namespace[self.model_key].as_dict()
        objects = parser.instantiate(namespace)
        names = [field.name for field in fields(self.settings_class)]
        self.settings = self.settings_class(**{name: objects[name] for name in names})
        if self.settings.samples_per_class == 1:
            _check_single_samples(objects.loss)

    @classmethod
    def parser(cls) -> jsonargparse.ArgumentParser:
        """The parser of the settings; its help describes all of them."""
        parser = jsonargparse.ArgumentParser(
            exit_on_error=False, add_help=False, usage=argparse.SUPPRESS, print_config=None
        )
        other_settings = {field.name for field in fields(cls.settings_class)} - cls.first_settings
        parser.add_class_arguments(cls.settings_class, None, as_group=False, skip={*other_settings})
        _add_model_arguments(parser, cls.model_class, cls.model_key, cls.fixed_arguments)
        parser.add_subclass_arguments(Loss, "loss", default={"class_path": cls.default_loss.__name__})
        parser.add_class_arguments(cls.settings_class, None, as_group=False, skip={*cls.first_settings})
        return parser

    @classmethod
    def help(cls) -> str:
        """The description of all settings, beginning with those that are needed most."""
        parser = cls.parser()
        groups = parser.groups or {}
        for action in parser._actions:
            if action.dest in groups and action.dest != "loss":
                action.help = argparse.SUPPRESS  # a group may be read from a file of its own, which is rarely needed
        for name, group in groups.items():
            group.title = f"{name}: {group.title}"
        names = sorted(groups, key=lambda name: name in LAST_GROUPS)
        sections = [groups[name] for name in names]
        ungrouped = parser._action_groups[1]
        ungrouped.title = "training: batches, epochs and devices"
        sections.insert(names.index("loss") + 1 if cls.first_settings <= {*names} else 0, ungrouped)
        parser._action_groups = sections
        return parser.format_help()

    @classmethod
    def schema(cls) -> Schema:
        """The types of the settings, for messages about invalid recipes."""
        model = arguments_schema(cls.model_class)
        model = {name: setting for name, setting in model.items() if name not in cls.fixed_arguments}
        loss = Setting(Loss, cls.default_loss())
        return {**settings_schema(cls.settings_class), cls.model_key: model, "loss": loss}

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
            InputError: a missing file, an unknown key, a wrong type or an impossible value, with its file and line.
        """
        file = RecipeFile.read(path) if isinstance(path, str | Path) else path
        check = RecipeCheck(cls.schema(), cls.verb, file, overrides, OfferedClasses(allow_imports))
        check.check()
        values, parser = check.resolved(), cls.parser()
        try:
            _set_default_loss(parser, values.get("loss"))
            cls._set_defaults(parser, values)
            _set_precision(parser, values, cls.auto_precision)
            recipe = cls(parser, parser.parse_object(deepcopy(values)))
        except (argparse.ArgumentError, ImportError, TypeError, ValueError) as error:
            check.fail(str(error))
        recipe.allow_imports, recipe.given = check.classes.allow_imports, frozenset(_flattened(values))
        return recipe

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
        log(f"resuming with {', '.join(f'{key} = {as_yaml(value)}' for key, value in changed.items())}")
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changed.items()}
        return cls.load(path, [f"--{key}={text}" for key, text in texts.items()], allow_imports)

    @staticmethod
    def auto_precision(accelerator: str) -> str:
        """The precision that `auto` stands for."""
        return "32"

    @classmethod
    def _set_defaults(cls, parser: jsonargparse.ArgumentParser, values: dict[str, Any]) -> None:
        """Set the defaults that depend on other settings."""
        return None

    def fitted(self: AnyRecipe, table: Table) -> AnyRecipe:
        """The recipe with what it leaves to the training images, such as the batch size; what is chosen is logged."""
        chosen = self._chosen(table)
        if not chosen:
            return self
        text = ", ".join(f"{name} = {size}" for name, size in chosen.items())
        log(f"chosen to suit {len(table):,} training images of {len(table.classes):,} classes: {text}")
        namespace = self._namespace.clone()
        for name, size in chosen.items():
            namespace[name] = size
        recipe = type(self)(self._parser, namespace)
        recipe.allow_imports, recipe.given = self.allow_imports, self.given
        return recipe

    def _chosen(self, table: Table) -> dict[str, int]:
        """The settings that suit these training images, where they are not given; ``fit_batches`` says how."""
        sizes = fit_batches(self.settings, table)._asdict()
        return {name: size for name, size in sizes.items() if getattr(self.settings, name) is None}

    def create_loss(self) -> Loss:
        """Create the loss."""
        return self._parser.instantiate(self._namespace).loss

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


def _add_model_arguments(
    parser: jsonargparse.ArgumentParser, kind: type, key: str, fixed_arguments: frozenset[str]
) -> None:
    """Add the arguments of the model's constructor, those with any plain values as they are.

    For a type such as `dict[str, Any]` the parser would create an object of any class that a value names.
    """
    settings = {name: each for name, each in arguments_schema(kind).items() if each.is_open}
    parser.add_class_arguments(kind, key, skip={*fixed_arguments, *settings}, instantiate=False)
    texts = {each.arg_name: each.description for each in docstring_parser.parse(kind.__doc__ or "").params}
    for name in settings.keys() - fixed_arguments:
        group = (parser.groups or {})[key]
        group.add_argument(f"--{key}.{name}", type=_PlainMapping(), default=settings[name].default, help=texts[name])


class _PlainMapping:
    """The type of a setting that takes any plain values; they are checked before and stay as they are."""

    __name__ = "dict"

    def __call__(self, value: Any) -> Any:
        return value

    def __repr__(self) -> str:
        return self.__name__


def _set_default_loss(parser: jsonargparse.ArgumentParser, loss: dict[str, Any] | None) -> None:
    """Make the class of a recipe's loss the parser's default.

    When one class replaces another, the parser keeps arguments of the same name, even defaults: a margin loss would
    get the beta, the miner and the reduction of a multi-similarity loss.
    """
    default = parser.get_default("loss")["class_path"].rpartition(".")[2]  # this one has its arguments already
    if loss is not None and loss["class_path"].rpartition(".")[2] != default:
        parser.set_defaults({"loss": {"class_path": loss["class_path"]}})


def _set_precision(
    parser: jsonargparse.ArgumentParser, values: dict[str, Any], auto_precision: Callable[[str], str]
) -> None:
    """Make what `auto` stands for the default, so that a recipe has the precision that is used."""
    if values.get("precision", "auto") == "auto":
        values.pop("precision", None)
        parser.set_defaults({"precision": auto_precision(values.get("accelerator", "auto"))})


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
