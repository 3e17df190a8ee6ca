"""The check of the settings that a user gave: values of their types, or one line with file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from inspect import Parameter
from typing import Any, NoReturn, get_args, get_origin

from vicinal.training.recipes import recipe_values
from vicinal.training.recipes.recipe_classes import (
    OfferedClasses,
    RefusedArgumentsError,
    class_and_arguments,
    loss_names,
)
from vicinal.training.recipes.recipe_file import RecipeFile, parse_overrides, put_setting
from vicinal.utils.arguments import check_plain_values
from vicinal.utils.errors import InputError, one_line

STUDY_SECTIONS = {"search": "tune", "grid": "sweep"}
"""The keys of a recipe file under which settings vary, each with the verb that reads it."""


class RecipeCheck:
    """Compares the settings that a user gave with a schema; those of the command line override those of the file."""

    def __init__(
        self,
        schema: recipe_values.Schema,
        verb: str,
        file: RecipeFile | None,
        overrides: Sequence[str],
        classes: OfferedClasses | None = None,
    ) -> None:
        self.schema, self.verb, self.file = schema, verb, file
        self.classes = classes or OfferedClasses()
        self.given: dict[str, Any] = {}
        parsed = list(parse_overrides(overrides))
        self._overridden = [key.replace(".init_args", "").removesuffix("+") for key, _ in parsed]
        own = deepcopy(file.values) if file else {}  # a file may be read once for many recipes
        for key, value in [*own.items(), *parsed]:
            put_setting(self.given, str(key), value)

    def read(self) -> dict[str, Any]:
        """Read the given settings as values of their types, nested; a class is a `ClassValue` with the given arguments.

        Nothing is imported or created: a setting that takes a class can name an offered one only.
        """
        return self._read_group(self.given, self.schema, "")

    def check_loss_name(self) -> None:
        """Raise InputError if the loss is not a public name, before the losses are imported, which takes seconds.

        Whether it is a class of a package of the user is checked later.
        """
        path, _ = class_and_arguments(self.given.get("loss"))
        known = loss_names()
        if isinstance(path, str) and "." not in path and path not in known:
            self._fail("loss", _unknown_name("loss", path, "Loss", known))

    def fail(self, error: Exception) -> NoReturn:
        """Raise InputError with the error of a dataclass or constructor, with its file and line."""
        message = one_line(error, 1000)
        # Messages of Vicinal begin with the key, or with the class that refuses an argument and the argument's name.
        first, second = [word.rstrip(":") for word in f"{message} -".split()[:2]]
        if isinstance(error, RefusedArgumentsError):
            first = f"{error.key}.{second}"
        self._fail(first, message)

    def _fail(self, key: str, message: str) -> NoReturn:
        raise InputError(self._place(key) + message) from None

    def _place(self, key: str) -> str:
        """File and line of a key, or of the nearest key above or below it; empty if the file has none of these."""
        if self.file is None or any(f"{key}.".startswith(f"{each}.") for each in self._overridden):
            return ""
        below = (place for each, place in self.file.places.items() if each.startswith(f"{key}.") and key)
        place = self.file.place_of(key) or next(below, None)
        is_given = key.partition(".")[0] in map(str, self.file.values)
        return f"{place}: " if place else f"{self.file.path}: " if is_given else ""

    def _read_group(self, given: Mapping[Any, Any], schema: recipe_values.Schema, prefix: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in given.items():
            key, setting = f"{prefix}{name}", schema.get(name)
            if setting is None:
                self._fail(key, f"unknown key {one_line(key, 80)}; {self._hint(str(name), schema, prefix)}")
            if isinstance(setting, recipe_values.Schema):
                if not isinstance(value, Mapping):
                    example = f", such as {key}.{next(iter(setting))}"
                    self._fail(key, f"{key} is a group; write its settings below it{example}")
                values[name] = self._read_group(value, setting, f"{key}.")
            elif not setting.takes_code:
                values[name] = self._read_setting(key, value, setting)
            elif value not in (None, _path_of(setting.default)):  # a saved recipe has the path of the default
                self._fail(key, f"{key} takes a function or a class, which a recipe cannot give; leave it out")
        return values

    def _read_setting(self, key: str, value: Any, setting: recipe_values.Setting) -> Any:
        if setting.type == recipe_values.UNCHECKED.type:
            return value
        if setting.base_class is None or value is None:
            return self._read_plain(key, value, setting)
        names_class = isinstance(value, Mapping) and "class_path" in value
        for each in () if names_class else setting.alternatives:
            origin = get_origin(each.type)
            if each.base_class is None:
                with suppress(ValueError):
                    return recipe_values.read_value(each.type, value)
            elif isinstance(value, list) and origin in recipe_values.LISTS:
                return self._read_list(key, value, each)
            elif isinstance(value, Mapping) and origin in recipe_values.MAPPINGS:
                inner = each._replace(type=get_args(each.type)[1])
                return {name: self._read_setting(f"{key}.{name}", part, inner) for name, part in value.items()}
        return self._read_class(key, value, setting)

    def _read_list(self, key: str, values: list[Any], setting: recipe_values.Setting) -> Any:
        try:
            kinds = recipe_values.element_types(setting.type, len(values))
        except ValueError:
            self._fail(key, f"{key} = {one_line(as_yaml(values), 80)} must be {setting}")
        read = [
            self._read_setting(f"{key}[{position}]", each, setting._replace(type=kind))
            for position, (each, kind) in enumerate(zip(values, kinds, strict=True))
        ]
        return tuple(read) if get_origin(setting.type) is tuple else read

    def _read_plain(self, key: str, value: Any, setting: recipe_values.Setting) -> Any:
        try:
            read = recipe_values.read_value(setting.type, value)
            if setting.is_open:
                check_plain_values(key, read)
        except InputError as error:
            self._fail(key, str(error))
        except ValueError:
            self._fail(key, f"{key} = {one_line(as_yaml(value), 80)} must be {setting}")
        return read

    def _read_class(self, key: str, value: Any, setting: recipe_values.Setting) -> recipe_values.ClassValue:
        """Read a class: its name alone, or `class_path` and `init_args`."""
        path, arguments = class_and_arguments(value)
        kind = self.classes.of_setting(setting, path)
        if kind is None:
            self._fail(key, self._unknown_class(key, path, setting))
        schema = recipe_values.arguments_schema(kind)
        if not isinstance(arguments, Mapping):
            self._fail(key, f"{key}.init_args is {one_line(as_yaml(arguments), 80)}; give the arguments of a class")
        read = self._read_group(arguments, schema, f"{key}.")
        settings = {name: each for name, each in schema.items() if isinstance(each, recipe_values.Setting)}
        required = (name for name, each in settings.items() if each.default is Parameter.empty)
        if missing := [name for name in required if name not in arguments]:
            self._fail(key, f"{key} = {kind.__name__} needs the arguments {', '.join(missing)}")
        if isinstance(value, Mapping) and path is not None:
            self._check_beside(key, value, kind)
        return recipe_values.ClassValue(kind, read)

    def _check_beside(self, key: str, value: Mapping[Any, Any], kind: type) -> None:
        for name in value:
            place = f"{key}.{name}"
            if name not in ("class_path", "init_args") and self.file and place in self.file.places:
                self._fail(place, f"{place} is an argument of {kind.__name__}; write it below init_args")

    def _unknown_class(self, key: str, path: Any, setting: recipe_values.Setting) -> str:
        base = setting.base_class
        assert base is not None
        known = sorted(self.classes.all(base))
        if path is None:
            return f"{key} needs a class_path, the name of a {base.__name__} class; its classes: {', '.join(known)}"
        return _unknown_name(key, path, base.__name__, known, self._own_class_hint(path))

    def _own_class_hint(self, path: Any) -> str | None:
        """What to do if a name may be that of a class of the user's own."""
        package, _, rest = str(path).partition(".")
        is_path = bool(rest) and all(part.isidentifier() for part in str(path).split("."))
        if not is_path or package in ("vicinal", *self.classes.allow_imports):
            return None
        return f"for a class of your own, add --allow_import {package}"

    def _hint(self, name: str, schema: recipe_values.Schema, prefix: str) -> str:
        if not prefix and name in STUDY_SECTIONS:
            return f"it is for vicinal {STUDY_SECTIONS[name]}"
        if prefix and "." in name:
            return "write a key with dots in full, at the top of the file"
        near = [f"{prefix}{each}" for each in difflib.get_close_matches(name, schema, n=1)]
        same = (key for key in recipe_values.setting_names(self.schema) if key.endswith(f".{name}"))
        near += sorted(same, key=lambda key: key.count("."))
        if near:
            return f"did you mean {near[0]}?"
        return f"known here: {', '.join(schema)}" if prefix else f"`vicinal {self.verb} --help_all` lists all keys"


def _unknown_name(key: str, path: Any, base: str, known: Sequence[str], own: str | None = None) -> str:
    """The message about a name that no class has; `own` is the advice for a class of the user's own."""
    name = one_line(as_yaml(path), 80)
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
    hint = own or (f"did you mean {near[0]}?" if near else f"its classes: {', '.join(known)}")
    if name.isidentifier():
        hint += f" One of your own is named with its module, such as my_module.{name}"
    return f"{key} = {name} is not the name of a {base} class; {hint}"


def as_yaml(value: Any) -> str:
    """A value in the spelling of YAML: true, false, null, and '' for no text."""
    words = {"None": "null", "True": "true", "False": "false"}
    return words[str(value)] if value is None or isinstance(value, bool) else str(value) or "''"


def _path_of(function: Any) -> str:
    return f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', None)}"
