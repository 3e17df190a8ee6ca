"""A typed config: settings from YAML and the command line, checked, and written back with every default filled in."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import jsonargparse
import yaml

import vicinal.memory
import vicinal.mixing
import vicinal.weighting  # noqa: F401 - a config names classes, and those that are imported are known
from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.losses import Loss
from vicinal.training.recipe_errors import explain, key_lines

AnyConfig = TypeVar("AnyConfig", bound="Config")


class Config(ABC):
    """All settings of a job that has a loss; which ones is said by what is derived from it.

    Attributes:
        config: the settings as plain nested values, every default filled in.
    """

    verb: str  # of the command, for messages

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        self._parser = parser
        self._namespace = namespace
        self.text: str = parser.dump(namespace, skip_unset=False)
        self.config: dict[str, Any] = yaml.safe_load(self.text)

    @staticmethod
    @abstractmethod
    def parser() -> jsonargparse.ArgumentParser:
        """The parser of these settings; its help is their reference."""

    @classmethod
    def load(cls: type[AnyConfig], path: str | Path | None = None, overrides: Sequence[str] = ()) -> AnyConfig:
        """Read a YAML file and the settings given over it.

        Args:
            path: the file; None: all defaults.
            overrides: such as `--optimizer.lr=0.1`, with dots for nested keys.

        Raises:
            InputError: a missing file, an unknown key, a wrong type or an impossible value, with its file and line.
        """
        parser = cls.parser()
        lines = key_lines(Path(path)) if path is not None else {}
        arguments = [*(["--recipe", str(path)] if path is not None else []), *overrides]
        try:
            _expect_defaults_of_loss(parser, path, overrides)
            cls._expect(parser, arguments)
            namespace = parser.parse_args(arguments)
            namespace.pop("recipe", None)
            return cls(parser, namespace)
        except (jsonargparse.ArgumentError, InputError, ValueError) as error:
            raise InputError(explain(str(error), parser, path, lines, cls.verb)) from None

    @classmethod
    def of_run(cls: type[AnyConfig], path: Path, given: AnyConfig | None) -> AnyConfig:
        """The settings that a run to be resumed has; those given for it, if any, must be the same.

        Raises:
            InputError: they differ, or the file is no such config.
        """
        own = cls.load(path)
        if given is not None:
            own.check_same(given)
        return own

    @classmethod
    def _expect(cls, parser: jsonargparse.ArgumentParser, arguments: list[str]) -> None:
        """Set defaults that depend on other settings."""
        return None

    def loss(self) -> Loss:
        """A new instance of the loss."""
        return self._parser.instantiate(self._namespace).loss

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe as YAML."""
        write_bytes(path, self.text.encode())

    def check_same(self, other: Config) -> None:
        """Raise InputError, naming the first setting in which the other recipe differs."""
        ours, theirs = _flattened(self.config), _flattened(other.config)
        for key in [*ours, *theirs]:
            if ours.get(key) != theirs.get(key):
                raise InputError(
                    f"{key} = {theirs.get(key)} differs from the run's own {ours.get(key)}; "
                    "resume with --out and --resume alone, or start a new run"
                )


def empty_parser() -> jsonargparse.ArgumentParser:
    """A parser that knows of a YAML file and of nothing else."""
    parser = jsonargparse.ArgumentParser(
        exit_on_error=False, add_help=False, usage=argparse.SUPPRESS, print_config=None
    )
    parser.add_argument("--recipe", action="config", help=argparse.SUPPRESS)
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
        default = parser.get_default("loss")["class_path"].rpartition(".")[2]  # has its arguments already
        if isinstance(named, str) and named.rpartition(".")[2] != default:
            parser.set_defaults({"loss": {"class_path": named}})


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
