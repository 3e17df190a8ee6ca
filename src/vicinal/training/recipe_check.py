"""Messages about invalid recipes: one line with the file, its line, the key and what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from typing import Any, NamedTuple, NoReturn

import yaml

from vicinal.training.recipe_file import RecipeFile
from vicinal.training.recipe_schema import Schema, Setting, arguments_schema, setting_names, subclasses
from vicinal.utils.errors import InputError


class Mistake(NamedTuple):
    """The key of an invalid setting, with dots, and a message about it."""

    key: str
    message: str


class RecipeCheck:
    """Compares the settings that a user gave with a schema.

    Args:
        schema: the schema of the recipe.
        verb: the verb of the command, for messages.
        file: the recipe file, if there is one.
        overrides: the settings of the command line, such as `--optimizer.lr=0.1`.

    Attributes:
        given: the settings, nested; those of the command line override those of the file.

    Raises:
        InputError: the command line has something else than settings, or a setting without a value.
    """

    def __init__(self, schema: Schema, verb: str, file: RecipeFile | None, overrides: Sequence[str]) -> None:
        self.schema, self.verb, self.file = schema, verb, file
        self.given: dict[str, Any] = {}
        for key, value in [*(file.values.items() if file else ()), *parse_overrides(overrides)]:
            _put(self.given, str(key), value)

    def check_keys(self) -> None:
        """Raise InputError at the first unknown key, and at a group of settings that is a single value."""
        for mistake in self._wrong_groups(self.given, self.schema, ""):
            self._fail(mistake)
        for mistake in self._mistakes(self.given, self.schema, "", only_keys=True):
            self._fail(mistake)

    def fail(self, error: str) -> NoReturn:
        """Raise InputError for the first invalid setting; with the error itself if each is valid on its own."""
        for mistake in self._mistakes(self.given, self.schema, "", only_keys=False):
            self._fail(mistake)
        # Messages of Vicinal begin with the key, or with the class of the loss and the name of its argument.
        words = [word.rstrip(":") for word in error.split()[:2]]
        lines = self.file.lines if self.file else {}
        key = next((key for key in (words[0], f"loss.{words[-1]}") if key in lines), "")
        self._fail(Mistake(key, " ".join(error.split())))

    def _fail(self, mistake: Mistake) -> NoReturn:
        is_in_file = self.file is not None and mistake.key in self.file.lines
        place = f"{self.file.path}:{self.file.lines[mistake.key]}: " if self.file and is_in_file else ""
        raise InputError(place + mistake.message) from None

    def _wrong_groups(self, given: Mapping[Any, Any], schema: Schema, prefix: str) -> Iterator[Mistake]:
        for name, value in given.items():
            key, group = f"{prefix}{name}", schema.get(name)
            if isinstance(group, Mapping) and isinstance(value, Mapping):
                yield from self._wrong_groups(value, group, f"{key}.")
            elif isinstance(group, Mapping) or (value is None and group is not None and group.base_class):
                yield Mistake(key, f"{key} is a group; write its settings below it")

    def _mistakes(self, given: Mapping[Any, Any], schema: Schema, prefix: str, only_keys: bool) -> Iterator[Mistake]:
        for name, value in given.items():
            key, setting = f"{prefix}{name}", schema.get(name)
            if setting is None:
                yield Mistake(key, f"unknown key {key}; {self._hint(str(name), schema, prefix)}")
            elif not isinstance(setting, Setting):
                yield from self._mistakes(value, setting, f"{key}.", only_keys)
            elif setting.base_class is None or value is None:
                if not only_keys and not setting.accepts(value):
                    yield Mistake(key, f"{key} = {value} must be {setting}")
            elif isinstance(value, list):
                for position, element in enumerate(value):
                    yield from self._class_mistakes(f"{key}[{position}]", element, setting, only_keys)
            else:
                yield from self._class_mistakes(key, value, setting, only_keys)

    def _class_mistakes(self, key: str, value: Any, setting: Setting, only_keys: bool) -> Iterator[Mistake]:
        """The mistakes in a class: its name alone, or `class_path` and `init_args`."""
        given = dict(value) if isinstance(value, Mapping) else {"class_path": value}
        path, arguments = given.pop("class_path", None), given.pop("init_args", None) or {}
        assert setting.base_class is not None
        known = subclasses(setting.base_class)
        kind = type(setting.default) if path is None else known.get(str(path).rpartition(".")[2])
        if kind is None or not issubclass(kind, setting.base_class):
            if not only_keys:  # else it may be a class that is not imported yet
                near = difflib.get_close_matches(str(path), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"its classes: {', '.join(sorted(known))}"
                yield Mistake(key, f"{key} = {path} is not the name of a {setting.base_class.__name__} class; {hint}")
            return
        schema, arguments = arguments_schema(kind), {**arguments, **given}
        yield from self._mistakes(arguments, schema, f"{key}.", only_keys)
        missing = [name for name, each in schema.items() if each.default is Parameter.empty and name not in arguments]
        if missing and not only_keys:
            yield Mistake(key, f"{key} = {kind.__name__} needs the arguments {', '.join(missing)}")
        for name in given if path is not None and self.file else ():
            if self.file and f"{key}.{name}" in self.file.lines:
                message = f"{key}.{name} is an argument of {kind.__name__}; write it below init_args"
                yield Mistake(f"{key}.{name}", message)

    def _hint(self, name: str, schema: Schema, prefix: str) -> str:
        near = [f"{prefix}{each}" for each in difflib.get_close_matches(name, schema, n=1)]
        near += [key for key in setting_names(self.schema) if key.endswith(f".{name}")]
        if near:
            return f"did you mean {near[0]}?"
        return f"known here: {', '.join(schema)}" if prefix else f"`vicinal {self.verb} --help_all` lists all keys"


def parse_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Key and value of each setting on the command line, `--key=value` or `--key value`.

    Raises:
        InputError: a word is not a setting, or a setting has no value.
    """
    words = list(overrides)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise InputError(f"unknown argument {word}; a recipe comes first, then settings such as --epochs 3")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"--{key} needs a value")
            value = words.pop(0)
        with suppress(yaml.YAMLError):
            yield key, yaml.safe_load(value) if value[:1] in ("{", "[") else value


def _put(given: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into nested settings; the name of a class stands for its `class_path`."""
    *groups, name = [part for part in key.removesuffix("+").split(".") if part != "init_args"]
    for group in groups:
        given = _arguments(given)
        inner = given.get(group)
        given[group] = inner if isinstance(inner, dict) else {} if inner is None else {"class_path": inner}
        given = given[group]
    given = given if name == "class_path" else _arguments(given)
    given[name] = {**given[name], **value} if isinstance(given.get(name), dict) and isinstance(value, dict) else value


def _arguments(group: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class, where the group names one by its `class_path`; else the settings of the group."""
    if "class_path" not in group:
        return group
    group["init_args"] = group.get("init_args") or {}
    return group["init_args"]
