"""The settings of a recipe in words: their types, defaults and descriptions, for the help and the reference."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml

from vicinal.training.recipes.recipe_classes import ClassValue, is_plain
from vicinal.training.recipes.recipe_values import Schema
from vicinal.utils.docstrings import argument_texts, first_paragraph

LAST_GROUPS = ("optimizer.lr_factors", "fine_tuning", "sample_selection", "data.noise")
LOSS = (
    "the loss: `class_path`, a class of `vicinal.losses`, or your own with `--allow_import`, and `init_args`; on the "
    "command line its name, and its arguments below it, such as --loss.margin"
)


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
    """The groups of a schema, beginning with those that are needed most."""
    groups = list(_groups("", schema))
    return sorted(groups, key=lambda group: group.name in LAST_GROUPS)


def settings_help(groups: list[SettingGroup]) -> str:
    """The help of groups of settings."""
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
    """A type as it is written in code, without module names; null is None.

    Example:
        >>> type_name(tuple[float, float] | None)
        'tuple[float, float] | null'
    """
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
