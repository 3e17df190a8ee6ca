"""The settings of a recipe: their types and defaults, values of these types, and their description for the help."""

from __future__ import annotations

import argparse
import collections.abc
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import Parameter
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from vicinal.training.recipes.recipe_file import Word
from vicinal.utils.arguments import argument_texts, first_paragraph
from vicinal.utils.plain_yaml import load_yaml

PLAIN_MODULES = ("builtins", "collections.abc", "pathlib", "typing")
PLAIN_TYPES: dict[Any, tuple[type, ...]] = {
    NoneType: (NoneType,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    Path: (str, Path),
}
"""Type -> the types of its values in YAML."""

LISTS, MAPPINGS = (list, tuple, collections.abc.Sequence), (dict, collections.abc.Mapping)
LAST_GROUPS = ("optimizer.lr_factors", "fine_tuning", "sample_selection", "data.noise")
LOSS = (
    "the loss: `class_path`, a class of `vicinal.losses`, or your own with `--allow_import`, and `init_args`; on the "
    "command line its name, and its arguments below it, such as --loss.margin"
)


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
    def alternatives(self) -> list[Setting]:
        """The setting of each part of a union."""
        is_union = get_origin(self.type) in (Union, UnionType)
        return [self._replace(type=each) for each in (get_args(self.type) if is_union else (self.type,))]

    @property
    def is_open(self) -> bool:
        """Whether the setting takes any plain values, as `dict[str, Any]` does."""
        return any(each in (Any, object) for each in _parts(self.type))

    @property
    def takes_code(self) -> bool:
        """Whether the setting takes functions, classes or modules, which a recipe cannot give."""
        code = (type, ModuleType, collections.abc.Callable)
        return any(each in code or get_origin(each) in code for each in _parts(self.type))

    def __str__(self) -> str:
        return "; ".join(filter(None, [_described(self.type), self.hint]))


UNCHECKED = Setting("checked elsewhere")  # a setting whose name alone is checked


class Schema(dict[str, "Setting | Schema"]):
    """Name -> setting, or the schema of a group of settings; the docstring of `kind` describes them."""

    def __init__(self, settings: Mapping[str, Setting | Schema], kind: type | None = None) -> None:
        super().__init__(settings)
        self.kind = kind


class ClassValue(NamedTuple):
    """The value of a setting that takes a class: the class, and the arguments with which an object is created."""

    kind: type
    arguments: dict[str, Any]


def is_plain(value: Any) -> bool:
    """Whether a recipe can have the value as it is."""
    return isinstance(value, (NoneType, str, int, float, list, tuple, dict, Path, ClassValue))


@cache
def _field_types(dataclass: Any) -> dict[str, Any]:
    return get_type_hints(dataclass)


def settings_schema(dataclass: Any, defaults: Any = None) -> Schema:
    """The schema of a dataclass of settings, with its defaults or an instance's; inner dataclasses are groups."""
    types = _field_types(dataclass)
    schema = Schema({}, dataclass)
    for field in fields(dataclass):
        kind, hint = types[field.name], field.metadata.get("hint", "")
        default = getattr(defaults, field.name) if defaults is not None else field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        schema[field.name] = settings_schema(kind, default) if is_dataclass(kind) else Setting(kind, default, hint)
    return schema


@cache
def arguments_schema(kind: Any) -> Schema:
    """The schema of a class's constructor, with the arguments that it passes on to its base classes."""
    schema = Schema({}, kind)
    for base in kind.__mro__:
        constructor = vars(base).get("__init__")
        parameters = list(inspect.signature(constructor).parameters.values())[1:] if constructor else []
        types = _types(constructor) if parameters else {}
        for each in parameters:
            if each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                schema.setdefault(each.name, Setting(types.get(each.name, Any), each.default))
        if constructor and all(each.kind is not Parameter.VAR_KEYWORD for each in parameters):
            break
    return schema


def setting_names(schema: Mapping[str, Setting | Schema], prefix: str = "") -> Iterator[str]:
    for name, setting in schema.items():
        yield f"{prefix}{name}"
        if isinstance(setting, Schema):
            yield from setting_names(setting, f"{prefix}{name}.")


def setting_of(schema: Schema, key: str) -> Setting:
    """The setting of a key with dots."""
    *groups, name = key.split(".")
    for group in groups:
        inner = schema[group]
        assert isinstance(inner, Schema)
        schema = inner
    setting = schema[name]
    assert isinstance(setting, Setting)
    return setting


def read_value(kind: Any, value: Any) -> Any:
    """A value of YAML, or a word of the command line, as a value of a type without classes; else ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_first(inner, value)
    if origin is Literal:
        return _read_choice(inner, value)
    if kind in (str, Path) and isinstance(value, str):
        return kind(str(value))
    if isinstance(value, Word):
        value = _parsed(value)
    if kind in (Any, object):
        return value
    if kind in PLAIN_TYPES:
        return _read_plain(kind, value)
    if isinstance(value, list) and origin in LISTS:
        return _read_list(kind, value)
    if isinstance(value, Mapping) and origin in MAPPINGS:
        return {name: read_value(inner[1], each) for name, each in value.items()}
    if isinstance(value, Mapping) and kind is dict:
        return dict(value)
    raise ValueError(str(value))


def _read_first(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        with suppress(ValueError):
            return read_value(kind, value)
    raise ValueError(str(value))


def _read_choice(choices: tuple[Any, ...], value: Any) -> Any:
    for each in choices:
        if str(each) == str(value) and not isinstance(value, bool):
            return each
    raise ValueError(str(value))


def _read_plain(kind: Any, value: Any) -> Any:
    if not isinstance(value, PLAIN_TYPES[kind]) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(str(value))
    try:
        return None if value is None else kind(value)
    except OverflowError:  # an integer that is too large for a float
        raise ValueError(str(value)) from None


def _read_list(kind: Any, values: list[Any]) -> Any:
    read = [read_value(inner, each) for inner, each in zip(element_types(kind, len(values)), values, strict=True)]
    return tuple(read) if get_origin(kind) is tuple else read


def element_types(kind: Any, number: int) -> tuple[Any, ...]:
    """The types of the elements of a type such as `list[int]`; ValueError if it has another number of elements."""
    inner = get_args(kind)
    if get_origin(kind) is not tuple or ... in inner:
        return number * inner[:1]
    if len(inner) != number:
        raise ValueError(f"{number} elements")
    return inner


def _parsed(word: Word) -> Any:
    with suppress(yaml.YAMLError):
        return load_yaml(str(word))
    return str(word)


def _types(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # a type that is imported for type checkers only
        return {}


def _class_of(kind: Any) -> type | None:
    classes = (each for each in _parts(kind) if inspect.isclass(each) and get_origin(each) is None)
    return next((each for each in classes if each.__module__ not in PLAIN_MODULES), None)


def _parts(kind: Any) -> Iterator[Any]:
    """A type and the types within it, such as Miner and None in `Miner | None`; not the values of a Literal."""
    yield kind
    if get_origin(kind) is not Literal:
        for each in get_args(kind):
            yield from _parts(each)


def _described(kind: Any) -> str:
    words = {int: "an integer", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
    if kind in words:
        return words[kind]
    if inspect.isclass(kind) and kind.__module__ not in PLAIN_MODULES:
        return f"the name of a {kind.__name__} class"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    inner = list(dict.fromkeys(_described(each) for each in get_args(kind) if each is not ...))
    if get_origin(kind) in LISTS:
        number = f" of {len(get_args(kind))}" if get_origin(kind) is tuple and ... not in get_args(kind) else ""
        return f"a list{number}, each element {inner[0]}"
    if get_origin(kind) is dict:
        return f"a mapping, each value {inner[-1]}"
    return ", or ".join(inner) or str(kind)


class SettingText(NamedTuple):
    """The key of a setting with dots, its type, default and description."""

    key: str
    type: str
    default: str
    description: str


class SettingGroup(NamedTuple):
    """A group of settings; the name of those in no group is empty."""

    name: str
    title: str
    settings: list[SettingText]


def setting_groups(schema: Schema) -> list[SettingGroup]:
    """The groups of a schema, the most important ones first."""
    groups = list(_groups("", schema))
    return sorted(groups, key=lambda group: group.name in LAST_GROUPS)


def settings_help(groups: list[SettingGroup]) -> str:
    parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    for name, title, settings in groups:
        group = parser.add_argument_group(f"{name}: {title}".removeprefix(": ").replace("%", "%%"))
        for key, kind, default, description in settings:
            known = ", ".join(filter(None, [f"type: {kind}", f"default: {default}" if default else ""]))
            text = f"{description} ({known})".replace("%", "%%")
            group.add_argument(f"--{key}", metavar=key.rpartition(".")[2].upper(), help=text)
    return parser.format_help().lstrip()


def class_help(key: str, schema: Schema) -> str:
    """The help of the arguments of a class that a setting names, such as a loss."""
    return settings_help([*_groups(key, schema)])


def _groups(name: str, schema: Schema) -> Iterator[SettingGroup]:
    assert schema.kind is not None
    texts, prefix = {"loss": LOSS, **argument_texts(schema.kind)}, f"{name}." if name else ""
    title = first_paragraph(schema.kind).rstrip(".,:") if name else "training: batches, epochs and devices"
    own = SettingGroup(name, title, [])
    for key, each in schema.items():
        if isinstance(each, Schema):
            yield from _groups(f"{prefix}{key}", each)
            continue
        if not own.settings:
            yield own
        text = texts.get(key, "").rstrip(".")
        own.settings.append(SettingText(f"{prefix}{key}", type_name(each.type), default_text(each.default), text))


def type_name(kind: Any) -> str:
    """A type as it is written in code, without module names, such as `tuple[float, float] | null`."""
    if kind is ... or kind is NoneType:
        return "..." if kind is ... else "null"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        return " | ".join(map(str if origin is Literal else type_name, arguments))
    name = getattr(origin or kind, "__name__", str(kind))
    return f"{name}[{', '.join(map(type_name, arguments))}]" if arguments else name


def default_text(value: Any) -> str:
    """A default as it is written in a recipe; that of a class is its name."""
    if isinstance(value, ClassValue):
        return value.kind.__name__
    if not is_plain(value):
        return "" if isinstance(value, type) else type(value).__name__
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
