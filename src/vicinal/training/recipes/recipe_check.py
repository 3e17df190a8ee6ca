"""Messages about invalid recipes: one line with the file, its line, the key and what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from typing import Any, NamedTuple, NoReturn

import yaml

from vicinal.training.recipes.recipe_classes import OfferedClasses, class_and_arguments, import_path, loss_names
from vicinal.training.recipes.recipe_file import RecipeFile, Word, parse_overrides, put_setting
from vicinal.training.recipes.recipe_schema import UNCHECKED, Schema, Setting, arguments_schema, setting_names
from vicinal.utils.arguments import check_plain_values
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.plain_yaml import LimitProblem, compose_yaml, load_yaml, problem_of

STUDY_SECTIONS = {"search": "tune", "grid": "sweep"}
"""The keys of a recipe file under which settings vary, each with the verb that reads it."""


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
        classes: the classes that settings may name.

    Attributes:
        given: the settings, nested; those of the command line override those of the file.

    Raises:
        InputError: the command line has something else than settings, or a setting without a value.
    """

    def __init__(
        self,
        schema: Schema,
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
        for key, value in [*(file.values.items() if file else ()), *parsed]:
            put_setting(self.given, str(key), value)

    def check(self) -> None:
        """Raise InputError at the first key that is unknown or may not have its value.

        This is where classes are checked: after it, no value but that of a class setting can name anything that a
        parser would import, and those name offered classes.
        """
        for mistake in self._wrong_groups(self.given, self.schema, ""):
            self._fail(mistake)
        for mistake in self._mistakes(self.given, self.schema, ""):
            self._fail(mistake)

    def resolved(self) -> dict[str, Any]:
        """The settings for a parser, nested, see :func:`~vicinal.training.recipes.recipe_check.resolved_settings`.

        Only for settings that :meth:`check` has checked.
        """
        return resolved_settings(self.given, self.schema, self.classes)

    def check_loss_name(self) -> None:
        """Raise InputError if the loss is no public name, before the losses are imported, which takes seconds."""
        path, _ = class_and_arguments(self.given.get("loss"))
        known = loss_names()
        if isinstance(path, str) and "." not in path and path not in known:
            self._fail(Mistake("loss", _unknown_name("loss", path, "Loss", known)))

    def fail(self, error: str) -> NoReturn:
        """Raise InputError with the error of a parser or a dataclass, with its file and line."""
        # Messages of Vicinal begin with the key, or with the class of the loss and the name of its argument.
        words = [word.rstrip(":") for word in error.split()[:2]]
        places = self.file.places if self.file else {}
        key = next((key for key in (words[0], f"loss.{words[-1]}") if key in places), "")
        self._fail(Mistake(key, " ".join(error.split())))

    def _fail(self, mistake: Mistake) -> NoReturn:
        raise InputError(self._place(mistake.key) + mistake.message) from None

    def _place(self, key: str) -> str:
        """File and line of a key, or of the nearest key above or below it; empty if the file has none of these."""
        if self.file is None or any(f"{key}.".startswith(f"{each}.") for each in self._overridden):
            return ""
        places, parts = self.file.places, key.split(".")
        above = (".".join(parts[:number]) for number in range(len(parts), 0, -1))
        below = (each for each in places if each.startswith(f"{key}.") and key)
        place = next((places[each] for each in (*above, *below) if each in places), None)
        is_given = key.partition(".")[0] in map(str, self.file.values)
        return f"{place}: " if place else f"{self.file.path}: " if is_given else ""

    def _wrong_groups(self, given: Mapping[Any, Any], schema: Schema, prefix: str) -> Iterator[Mistake]:
        for name, value in given.items():
            key, group = f"{prefix}{name}", schema.get(name)
            if isinstance(group, Mapping) and isinstance(value, Mapping):
                yield from self._wrong_groups(value, group, f"{key}.")
            elif isinstance(group, Mapping):
                yield Mistake(key, f"{key} is a group; write its settings below it, such as {key}.{next(iter(group))}")
            elif value is None and group is not None and group.base_class:
                yield Mistake(key, f"{key} is a group; write its settings below it")

    def _mistakes(self, given: Mapping[Any, Any], schema: Schema, prefix: str) -> Iterator[Mistake]:
        for name, value in given.items():
            key, setting = f"{prefix}{name}", schema.get(name)
            if setting is None:
                yield Mistake(key, f"unknown key {one_line(key, 80)}; {self._hint(str(name), schema, prefix)}")
            elif setting is UNCHECKED:
                continue
            elif not isinstance(setting, Setting):
                yield from self._mistakes(value, setting, f"{key}.")
            elif setting.takes_code and value in (None, _path_of(setting.default)):
                continue  # the default, as a saved recipe has it
            elif setting.takes_code:
                yield Mistake(key, f"{key} takes a function or a class, which a recipe cannot give; leave it out")
            elif setting.base_class is None or value is None:
                yield from self._value_mistakes(key, value, setting)
            elif isinstance(value, list):
                for position, element in enumerate(value):
                    yield from self._class_mistakes(f"{key}[{position}]", element, setting)
            else:
                yield from self._class_mistakes(key, value, setting)

    def _value_mistakes(self, key: str, value: Any, setting: Setting) -> Iterator[Mistake]:
        """The mistakes in a plain value."""
        try:
            _check_text(key, value)
            if setting.is_open:
                check_plain_values(key, value)
        except InputError as error:
            yield Mistake(key, str(error))
        if not setting.accepts(value):
            yield Mistake(key, f"{key} = {one_line(as_yaml(value), 80)} must be {setting}")

    def _class_mistakes(self, key: str, value: Any, setting: Setting) -> Iterator[Mistake]:
        """The mistakes in a class: its name alone, or `class_path` and `init_args`."""
        path, arguments = class_and_arguments(value)
        kind = self.classes.of_setting(setting, path)
        if kind is None:
            yield Mistake(key, self._unknown_class(key, path, setting))
            return
        schema = arguments_schema(kind)
        if not isinstance(arguments, Mapping):
            yield Mistake(key, f"{key}.init_args is {one_line(as_yaml(arguments), 80)}; give the arguments of a class")
            return
        yield from self._mistakes(arguments, schema, f"{key}.")
        missing = [name for name, each in schema.items() if each.default is Parameter.empty and name not in arguments]
        if missing:
            yield Mistake(key, f"{key} = {kind.__name__} needs the arguments {', '.join(missing)}")
        if isinstance(value, Mapping) and path is not None:
            yield from self._arguments_beside(key, value, kind)

    def _arguments_beside(self, key: str, value: Mapping[Any, Any], kind: type) -> Iterator[Mistake]:
        """The arguments of a class that a recipe file has beside `init_args`."""
        for name in value:
            place = f"{key}.{name}"
            if name not in ("class_path", "init_args") and self.file and place in self.file.places:
                yield Mistake(place, f"{place} is an argument of {kind.__name__}; write it below init_args")

    def _unknown_class(self, key: str, path: Any, setting: Setting) -> str:
        base = setting.base_class
        assert base is not None
        known = sorted(self.classes.all(base))
        if path is None:
            return f"{key} needs a class_path, the name of a {base.__name__} class; its classes: {', '.join(known)}"
        return _unknown_name(key, path, base.__name__, known, self._own_class(path))

    def _own_class(self, path: Any) -> str | None:
        """What to do if a name may be that of a class of the user's own."""
        package, _, rest = str(path).partition(".")
        is_path = bool(rest) and all(part.isidentifier() for part in str(path).split("."))
        if not is_path or package in ("vicinal", *self.classes.allow_imports):
            return None
        return f"for a class of your own, add --allow_import {package}"

    def _hint(self, name: str, schema: Schema, prefix: str) -> str:
        if not prefix and name in STUDY_SECTIONS:
            return f"it is for vicinal {STUDY_SECTIONS[name]}"
        near = [f"{prefix}{each}" for each in difflib.get_close_matches(name, schema, n=1)]
        near += sorted((key for key in setting_names(self.schema) if key.endswith(f".{name}")), key=_depth)
        if near:
            return f"did you mean {near[0]}?"
        return f"known here: {', '.join(schema)}" if prefix else f"`vicinal {self.verb} --help_all` lists all keys"


def _depth(key: str) -> int:
    return key.count(".")


def _unknown_name(key: str, path: Any, base: str, known: Sequence[str], own: str | None = None) -> str:
    """The message about a name that is not that of a class; `own` is what to do for a class of the user's own."""
    name = one_line(as_yaml(path), 80)
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
    hint = own or (f"did you mean {near[0]}?" if near else f"its classes: {', '.join(known)}")
    return f"{key} = {name} is not the name of a {base} class; {hint}"


def _check_text(key: str, value: Any) -> None:
    """Raise InputError for text that a parser would read as YAML beyond the limits, or as a class to create."""
    for text in _texts(value):
        try:
            node = compose_yaml(text)
        except LimitProblem as error:
            raise InputError(f"{key} = {one_line(text, 80)}: {problem_of(error)}") from None
        except yaml.YAMLError:
            continue
        if "class_path" in text and isinstance(node, yaml.CollectionNode):
            raise InputError(f"{key} = {one_line(text, 80)}: class_path would create an object; give plain values")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)  # not a Word, which a parser of YAML does not take
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from (*_texts(name), *_texts(each))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def as_yaml(value: Any) -> str:
    """A value in the spelling of YAML: true, false, null, and '' for no text."""
    words = {"None": "null", "True": "true", "False": "false"}
    return words[str(value)] if value is None or isinstance(value, bool) else str(value) or "''"


def _path_of(function: Any) -> str:
    return f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', None)}"


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
