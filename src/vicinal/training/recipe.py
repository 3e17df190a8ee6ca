"""The recipe: every setting of a training run, typed, from YAML and the command line, and written back resolved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonargparse
import yaml

import vicinal.memory
import vicinal.mixing
import vicinal.weighting  # noqa: F401 - a recipe names classes, and those that are imported are known
from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.losses import Loss
from vicinal.models import Embedder, default_transform
from vicinal.training.recipe_errors import explain, key_lines
from vicinal.training.settings import Settings


class Recipe:
    """A training run described completely: data, transform, model, loss, optimiser, schedule and the rest.

    Attributes:
        settings: all but model and loss.
        model: arguments of :class:`~vicinal.models.Embedder`.
        config: the whole recipe as plain nested values, every default filled in.

    Example:
        >>> recipe = Recipe.load(overrides=["--data.source=digits", "--optimizer.lr=0.01", "--loss.alpha=4"])
        >>> recipe.settings.optimizer.lr, recipe.loss().alpha
        (0.01, 4.0)
    """

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        self._parser = parser
        self._namespace = namespace
        self.text: str = parser.dump(namespace, skip_unset=False)
        self.config: dict[str, Any] = yaml.safe_load(self.text)
        self.model: dict[str, Any] = namespace.model.as_dict()
        objects = parser.instantiate(namespace)
        self.settings = Settings(**{name: objects[name] for name in Settings.__dataclass_fields__})

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Recipe:
        """Read a recipe and the settings given over it.

        Args:
            path: a YAML file; None: all defaults.
            overrides: such as `--optimizer.lr=0.1`, with dots for nested keys.

        Raises:
            InputError: a missing file, an unknown key, a wrong type or an impossible value, with its file and line.
        """
        parser = recipe_parser()
        lines = key_lines(Path(path)) if path is not None else {}
        arguments = [*(["--recipe", str(path)] if path is not None else []), *overrides]
        try:
            _expect_defaults_of_loss(parser, path, overrides)
            _expect_preprocessing_of_backbone(parser, parser.parse_args(arguments))
            namespace = parser.parse_args(arguments)
            namespace.pop("recipe", None)
            return cls(parser, namespace)
        except (jsonargparse.ArgumentError, InputError, ValueError) as error:
            raise InputError(explain(str(error), parser, path, lines)) from None

    def loss(self) -> Loss:
        """A new instance of the loss."""
        return self._parser.instantiate(self._namespace).loss

    def embedder(self) -> Embedder:
        """A new model with initial weights from the global generator."""
        try:
            return Embedder(**self.model, transform=self.settings.transform)
        except InputError as error:
            raise InputError(f"model: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe as YAML."""
        write_bytes(path, self.text.encode())

    def check_same(self, other: Recipe) -> None:
        """Raise InputError, naming the first setting in which the other recipe differs."""
        ours, theirs = _flattened(self.config), _flattened(other.config)
        for key in [*ours, *theirs]:
            if ours.get(key) != theirs.get(key):
                raise InputError(
                    f"{key} = {theirs.get(key)} differs from the run's own {ours.get(key)}; "
                    "resume with --out and --resume alone, or start a new run"
                )


def recipe_parser() -> jsonargparse.ArgumentParser:
    """The parser of recipes and their overrides; its help is the reference of all settings and of nothing else."""
    parser = jsonargparse.ArgumentParser(
        exit_on_error=False, add_help=False, usage=argparse.SUPPRESS, print_config=None
    )
    parser.add_argument("--recipe", action="config", help=argparse.SUPPRESS)
    parser.add_class_arguments(Settings, None, as_group=False)
    parser.add_class_arguments(Embedder, "model", skip={"transform"}, instantiate=False)
    parser.add_subclass_arguments(Loss, "loss", default={"class_path": "MultiSimilarityLoss"})
    return parser


def _expect_defaults_of_loss(
    parser: jsonargparse.ArgumentParser, path: str | Path | None, overrides: Sequence[str]
) -> None:
    """Make the loss that is named the default before anything is parsed.

    Where a class takes the place of another the parser hands on arguments of the same name, also when they were only
    defaults: a margin loss would have the beta, the miner and the reduction of a multi-similarity loss.
    """
    in_file = yaml.safe_load(Path(path).read_text(encoding="utf-8")).get("loss") if path is not None else None
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--loss", "--loss.class_path", nargs="?")
    override = options.parse_known_args(overrides)[0].loss
    with suppress(ValueError, yaml.YAMLError):  # parsing will say what is wrong, and where
        named = yaml.safe_load(override) if override else in_file
        if isinstance(named, dict):
            named = named.get("class_path")
        if isinstance(named, str):
            parser.set_defaults({"loss": {"class_path": named}})


def _expect_preprocessing_of_backbone(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    """Make size, mean, std and interpolation by default what the chosen backbone's weights were trained with."""
    expected = default_transform(namespace.model.backbone)
    parser.set_defaults({"transform.size": expected.size, "transform.interpolation": expected.interpolation})
    if namespace.transform.channels == len(expected.mean):
        parser.set_defaults({"transform.mean": expected.mean, "transform.std": expected.std})


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
