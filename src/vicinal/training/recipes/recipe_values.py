"""The settings of a checked recipe as the values that a parser takes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

from vicinal.training.recipes.recipe_classes import OfferedClasses, class_and_arguments, import_path
from vicinal.training.recipes.recipe_overrides import Word
from vicinal.training.recipes.recipe_schema import Schema, Setting, arguments_schema
from vicinal.utils.plain_yaml import load_yaml


def resolved_settings(given: Mapping[Any, Any], schema: Schema, classes: OfferedClasses) -> dict[str, Any]:
    """Return the settings for a parser, nested: each class as `class_path` with its module and `init_args`.

    Args:
        given: the settings that a user gave, nested, without mistakes.
        schema: their schema.
        classes: the classes that they may name.
    """
    return {
        name: _resolved_value(value, setting, classes)
        for name, value in given.items()
        if not (isinstance(setting := schema[name], Setting) and setting.takes_code)
    }


def _resolved_value(value: Any, setting: Setting | Schema, classes: OfferedClasses) -> Any:
    if not isinstance(setting, Setting):
        return resolved_settings(value, setting, classes)
    if setting.base_class is None or value is None:
        return _without_words(value, load=setting.is_open)
    if isinstance(value, list):
        return [_resolved_class(each, setting, classes) for each in value]
    return _resolved_class(value, setting, classes)


def _resolved_class(value: Any, setting: Setting, classes: OfferedClasses) -> dict[str, Any]:
    path, arguments = class_and_arguments(value)
    kind = classes.of_setting(setting, path)
    assert kind is not None
    resolved = resolved_settings(arguments, arguments_schema(kind), classes)
    return {"class_path": import_path(kind), "init_args": resolved}


def _without_words(value: Any, load: bool) -> Any:
    """A value with text in place of words; if `load`, with what YAML makes of them."""
    if isinstance(value, Mapping):
        return {name: _without_words(each, load) for name, each in value.items()}
    if not isinstance(value, Word):
        return value
    with suppress(yaml.YAMLError):
        return load_yaml(str(value)) if load else str(value)
    return str(value)
