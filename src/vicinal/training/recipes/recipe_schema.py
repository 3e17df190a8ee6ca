"""The schema of a recipe: the name, type and default of each setting, from the signatures of the classes."""

from __future__ import annotations

import argparse
import collections.abc
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType, NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import jsonargparse

PLAIN_MODULES = ("builtins", "collections.abc", "pathlib", "typing")


class Setting(NamedTuple):
    """The type of a setting, its default, and what to do about a value of another type."""

    type: Any = Any
    default: Any = None
    hint: str = ""

    @property
    def base_class(self) -> type | None:
        """The class whose subclasses the setting takes, such as Miner for `Miner | None`; None for plain values."""
        return _class_of(self.type)

    @property
    def is_open(self) -> bool:
        """Whether the setting takes any plain values, as `dict[str, Any]` does."""
        return any(each in (Any, object) for each in _parts(self.type))

    @property
    def takes_code(self) -> bool:
        """Whether the setting takes functions, classes or modules, which a recipe cannot give."""
        code = (type, ModuleType, collections.abc.Callable)
        return any(each in code or get_origin(each) in code for each in _parts(self.type))

    def accepts(self, value: Any) -> bool:
        """Whether the value, from YAML or as text, is of the type."""
        if value is None:
            return self.type is Any or NoneType in get_args(self.type)
        if self.is_open:
            return isinstance(value, Mapping) or all(get_origin(each) is not dict for each in _parts(self.type))
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--value", type=self.type)
        try:
            parser.parse_args([f"--value={value}"]) if isinstance(value, str) else parser.parse_object({"value": value})
        except (argparse.ArgumentError, ValueError, TypeError, AttributeError):
            return False
        return True

    def __str__(self) -> str:
        return "; ".join(filter(None, [_described(self.type), self.hint]))


UNCHECKED = Setting("checked elsewhere")
"""A setting whose name alone is checked."""

Schema = Mapping[str, "Setting | Schema"]
"""Name -> setting, or the schema of a group of settings."""


def settings_schema(dataclass: Any) -> dict[str, Setting | Schema]:
    """The schema of a dataclass of settings; its fields that are dataclasses are groups."""
    types = get_type_hints(dataclass)
    schema: dict[str, Setting | Schema] = {}
    for field in fields(dataclass):
        kind, hint = types[field.name], field.metadata.get("hint", "")
        schema[field.name] = settings_schema(kind) if is_dataclass(kind) else Setting(kind, hint=hint)
    return schema


def arguments_schema(kind: type) -> dict[str, Setting]:
    """The schema of a class's constructor, with the arguments that it passes on to its base classes."""
    parser = jsonargparse.ArgumentParser()
    names = parser.add_class_arguments(kind, None, as_group=False)
    arguments = {}
    for base in reversed(kind.__mro__):
        constructor = vars(base).get("__init__")
        types = _types(constructor)
        for name, parameter in inspect.signature(constructor).parameters.items() if constructor else ():
            if name in names:
                arguments[name] = Setting(types.get(name, Any), parameter.default)
    return arguments


def setting_names(schema: Schema, prefix: str = "") -> Iterator[str]:
    """The names of all settings and groups, with dots."""
    for name, setting in schema.items():
        yield f"{prefix}{name}"
        if not isinstance(setting, Setting):
            yield from setting_names(setting, f"{prefix}{name}.")


def _types(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function) if function else {}
    except NameError:  # a type that is imported for type checkers only
        return {}


def _class_of(kind: Any) -> type | None:
    """The first class among the parts of a type that is not that of a plain value."""
    classes = (each for each in _parts(kind) if inspect.isclass(each) and get_origin(each) is None)
    return next((each for each in classes if each.__module__ not in PLAIN_MODULES and not issubclass(each, Enum)), None)


def _parts(kind: Any) -> Iterator[Any]:
    """A type and the types within it, such as Miner and None in `Miner | None`; not the values of a Literal."""
    yield kind
    if get_origin(kind) is not Literal:
        for each in get_args(kind):
            yield from _parts(each)


def _described(kind: Any) -> str:
    """A type in words."""
    words = {int: "an integer", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
    if kind in words:
        return words[kind]
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    inner = list(dict.fromkeys(_described(each) for each in get_args(kind) if each is not ...))
    if get_origin(kind) in (list, tuple):
        number = "" if get_origin(kind) is list or ... in get_args(kind) else f" of {len(get_args(kind))}"
        return f"a list{number}, each element {inner[0]}"
    if get_origin(kind) is dict:
        return f"a mapping, each value {inner[-1]}"
    return ", or ".join(inner) or str(kind)
