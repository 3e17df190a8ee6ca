"""Flags: the parser of a verb, and flags generated from dataclasses of settings and their docstrings."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from vicinal.utils.arguments import argument_texts
from vicinal.utils.console import is_main_process, printable

Settings = TypeVar("Settings")
Arguments = argparse.Namespace
Flags = argparse._ActionsContainer
"""A parser, or a group of its flags."""

SEPARATOR = "--_"  # between the values of a flag and positional arguments
CHANGING = ("--overwrite",)  # flags that are never suggested in place of others
CLEARLY_LIKE = 0.75  # similarity of an unknown flag and the one that is suggested


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line and takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self.first: tuple[str, ...] = ()

    def show_first(self, *names: str) -> None:
        """Let `--help` show these flags only, and `--help_all` the others too."""
        self.add_argument("--help_all", action=_HelpAll, nargs=0, help="show all flags and exit")
        self.first = (*names, "help", "help_all")

    def format_help(self) -> str:
        """The help, without flags that are not among the first ones."""
        hidden = [action for action in self._actions if self._is_hidden(action)]
        texts, descriptions = [action.help for action in hidden], [group.description for group in self._action_groups]
        for action in hidden:
            action.help = argparse.SUPPRESS
        for group in self._action_groups:
            if all(action.help == argparse.SUPPRESS for action in group._group_actions):
                group.description = None
        try:
            more = f"\n`{self.prog} --help_all` shows {len(hidden)} more flags.\n" if hidden else ""
            return super().format_help() + more
        finally:
            for action, text in zip(hidden, texts, strict=True):
                action.help = text
            for group, description in zip(self._action_groups, descriptions, strict=True):
                group.description = description

    def _is_hidden(self, action: argparse.Action) -> bool:
        is_first = action.dest in self.first or not action.option_strings
        return bool(self.first) and not is_first and action.help != argparse.SUPPRESS

    def error(self, message: str) -> NoReturn:
        sys.exit(fail(self.prog, f"{message}; `{self.prog} --help` explains", 2))

    def separated(self, words: Sequence[str]) -> list[str]:
        """Separate flags from positional arguments that follow them and cannot be their values.

        A flag with any number of values takes all words up to the next flag: without a separator, `--intervals run`
        would be an interval called run. Words after `--` are ignored.
        """
        self.add_argument(SEPARATOR, action="store_true", help=argparse.SUPPRESS)
        result: list[str] = []
        taker: argparse.Action | None = None  # the flag that may take the next word
        for position, word in enumerate(words):
            if word == "--":
                return result + list(words[position:])
            if word.startswith("-"):
                action = self._option_string_actions.get(word)
                taker = action if action is not None and action.nargs in ("?", "*", "+") else None
            elif taker is not None:
                is_first = result[-1] in taker.option_strings
                if not _fits(taker, word) and not (is_first and taker.nargs == "+"):  # which argparse says is wrong
                    result.append(SEPARATOR)
                    taker = None
                elif taker.nargs == "?":
                    taker = None
            result.append(word)
        return result

    def reject(self, word: str) -> NoReturn:
        """Report an unknown argument, with the flag that is most like it, unless that changes or deletes something."""
        known = [each for each in self._option_string_actions if each not in (*CHANGING, SEPARATOR)]
        near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=CLEARLY_LIKE)
        self.error(f"unknown argument {word}" + (f", did you mean {near[0]}?" if near else ""))


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.first = ()
        parser.print_help()
        parser.exit()


def _fits(action: argparse.Action, word: str) -> bool:
    """Whether a word can be a value of a flag."""
    try:
        value = action.type(word) if callable(action.type) else word
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        return False
    return action.choices is None or value in action.choices


def fail(name: str, message: str, status: int) -> int:
    """Print an error in one line, and return the exit status."""
    # Every process prints its errors: the one that failed need not be the main one.
    print(printable(f"{name}: error: {' '.join(message.split())}"), file=sys.stderr)
    return status


def print_result(result: Any) -> None:
    """Print a result to stdout: text as it is, anything else as JSON.

    On a terminal, characters that would control it are escaped; so are characters that its encoding does not have.
    """
    if is_main_process():
        text = result if isinstance(result, str) else json.dumps(result, indent=2)
        text = printable(text) if sys.stdout.isatty() else text
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding))


def with_underscores(word: str) -> str:
    """A word of the command line with underscores in place of the dashes in a flag's name.

    Example:
        >>> with_underscores("--data.on-error=skip-it"), with_underscores("-k"), with_underscores("my-photos")
        ('--data.on_error=skip-it', '-k', 'my-photos')
    """
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


def with_dashes_replaced(words: Sequence[str]) -> list[str]:
    """The words of a command line, with :func:`with_underscores` of those before `--`."""
    end = words.index("--") if "--" in words else len(words)
    return [*map(with_underscores, words[:end]), *words[end:]]


def integer_from(minimum: int) -> Callable[[str], int]:
    """The type of a flag for integers that are not below a minimum."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text} is not an integer from {minimum} up")
        return int(text)

    return read


def add_settings(flags: Flags, settings: type, skip: Collection[str] = (), prefix: str = "") -> None:
    """Add one flag per field of a dataclass, with the field's name, type and default and its help in the docstring."""
    types = get_type_hints(settings)
    texts = argument_texts(settings)
    for field in fields(settings):
        if field.name not in skip:
            text = _help_text(texts[field.name], field)
            flags.add_argument(
                f"--{prefix}{field.name}", default=argparse.SUPPRESS, help=text, **_reading(types[field.name])
            )


def read_settings(settings: type[Settings], arguments: Arguments, prefix: str = "", **values: Any) -> Settings:
    """Create a dataclass of settings from the flags that were given, and from further values."""
    names = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    given = {name: getattr(arguments, f"{prefix}{name}") for name in names if hasattr(arguments, f"{prefix}{name}")}
    return settings(**{**given, **values})


def _reading(kind: Any) -> dict[str, Any]:
    full = kind
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is dict:
        return {"type": partial(_read_yaml, full), "metavar": "YAML"}
    if get_origin(kind) in (list, tuple, Sequence):
        kind = get_args(kind)[0]
        return {"type": flag_type(kind), "metavar": kind.__name__.upper(), "nargs": "+"}
    return {"type": flag_type(kind), "metavar": kind.__name__.upper()}


def flag_type(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of a flag whose values are text or numbers, with a message in words for other values."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is not {'an integer' if kind is int else 'a number'}") from None

    return read


def _read_yaml(kind: Any, text: str) -> Any:
    from vicinal.training.recipes.recipe_values import Setting, read_value

    with suppress(yaml.YAMLError, ValueError):
        return read_value(kind, yaml.safe_load(text))
    raise argparse.ArgumentTypeError(f"{text} must be {Setting(kind)}")


def _help_text(text: str, field: Field[Any]) -> str:
    """The description of a field with its default; None stands for a flag that is not given."""
    text = text.rstrip(".").replace("%", "%%")
    if field.default is None:
        return re.sub(r"\bNone\b", "the default", re.sub(r"(?<=\.)(\s+)None\b", r"\1The default", text))
    is_shown = field.default is not False and field.default not in (MISSING, ())
    return f"{text} (default: {field.default})" if is_shown else text
