"""The types and defaults of settings, read from dataclasses and constructors, and values of these types."""

from __future__ import annotations

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
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is Parameter.empty

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


UNCHECKED = Setting("checked elsewhere")
"""A setting whose name alone is checked."""


class Schema(dict[str, "Setting | Schema"]):
    """Name -> setting, or the schema of a group of settings.

    Args:
        settings: the mapping itself.
        kind: the class whose docstring describes the settings.
    """

    def __init__(self, settings: Mapping[str, Setting | Schema], kind: type | None = None) -> None:
        super().__init__(settings)
        self.kind = kind


def settings_schema(dataclass: Any, defaults: Any = None) -> Schema:
    """The schema of a dataclass of settings; its fields that are dataclasses are groups.

    Args:
        dataclass: the class.
        defaults: an instance whose values are the defaults; None: those of the class.

    Example:
        >>> from vicinal.training.schedule import Schedule
        >>> settings_schema(Schedule)["decay"]
        Setting(type=<class 'float'>, default=0.3, hint='')
    """
    types = get_type_hints(dataclass)
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
    """The names of all settings and groups, with dots."""
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
    """A value of YAML, or a word of the command line, as a value of a type without classes.

    Raises:
        ValueError: it is not of the type.

    Example:
        >>> read_value(float, 1), read_value(tuple[int, ...], [1, 2]), read_value(float | None, Word("1e-3"))
        (1.0, (1, 2), 0.001)
        >>> read_value(int, 0.5)
        Traceback (most recent call last):
        ValueError: 0.5
    """
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
    """The types of the elements of a list of a type such as `list[int]`.

    Raises:
        ValueError: the list must have another number of elements.
    """
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
    """The first class among the parts of a type that is not that of a plain value."""
    classes = (each for each in _parts(kind) if inspect.isclass(each) and get_origin(each) is None)
    return next((each for each in classes if each.__module__ not in PLAIN_MODULES), None)


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
