"""The classes that a recipe may name, those of Vicinal and of packages that the user allows, and objects of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import isabstract
from pathlib import Path
from typing import Any

import vicinal
from vicinal.training.recipes.recipe_values import (
    UNCHECKED,
    ClassValue,
    Schema,
    Setting,
    arguments_schema,
    is_plain,
    settings_schema,
)
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.imports import import_module, is_in

LOSS_FILES = (
    "losses/__init__.py",
    "memory.py",
    "correction.py",
    "distillation.py",
    "matryoshka.py",
    "mixing.py",
    "weighting.py",
)
# Losses that are not named ...Loss:
OTHER_LOSSES = (
    "CrossBatchMemory",
    "ForwardCorrection",
    "Matryoshka",
    "S2SD",
    "SiMix",
    "SimilarityRegularizer",
    "WeightedSum",
)
BASE_LOSSES = ("Loss", "CenterBasedLoss", "PairLoss", "RankingLoss", "RowLoss")  # to derive from


class OfferedClasses:
    """Finds classes by the names in recipes. Nothing is imported but the packages or modules that the user allows."""

    def __init__(self, allow_imports: Sequence[str] = ()) -> None:
        self.allow_imports = tuple(allow_imports)
        for name in self.allow_imports:
            import_module(name)

    def all(self, base: type) -> dict[str, type]:
        """The classes of a kind that a recipe may name, by name; abstract ones cannot be created."""
        from vicinal.losses import Loss  # which imports torch

        found: dict[str, type] = {}
        pending, ours = [base], loss_names() if base is Loss else None
        while pending:
            kind = pending.pop(0)
            pending += kind.__subclasses__()
            is_public = ours is None or kind.__name__ in ours or not _is_ours(kind.__module__)
            if is_public and self._offers(kind) and not (kind.__name__.startswith("_") or isabstract(kind)):
                found.setdefault(kind.__name__, kind)
        return found

    def find(self, base: type, path: object) -> type | None:
        """The class of a name, such as `MarginLoss` or `my_losses.MyLoss`; None if a recipe may not name it."""
        if not isinstance(path, str):
            return None
        module, _, name = path.rpartition(".")
        if module and self._is_allowed(module):
            import_module(module)
        classes = self.all(base)
        if not module:
            return classes.get(name)
        kind = getattr(sys.modules.get(module), name, None) if self._is_allowed(module) or _is_ours(module) else None
        is_one = isinstance(kind, type) and issubclass(kind, base) and self._offers(kind)
        return kind if is_one and (kind in classes.values() or not _is_ours(kind.__module__)) else None

    def of_setting(self, setting: Setting, path: object) -> type | None:
        """The class of a name, if a setting may name it; without a name, that of its default."""
        assert setting.base_class is not None
        if path is None:
            default = setting.default.kind if isinstance(setting.default, ClassValue) else type(setting.default)
            return default if issubclass(default, setting.base_class) else None
        return self.find(setting.base_class, path)

    def _offers(self, kind: type) -> bool:
        return _is_ours(kind.__module__) or self._is_allowed(kind.__module__)

    def _is_allowed(self, module: str) -> bool:
        return any(is_in(module, package) for package in self.allow_imports)


def class_and_arguments(value: Any) -> tuple[Any, Any]:
    """The name of a class and its arguments, from a name alone or from `class_path` and `init_args`."""
    if not isinstance(value, Mapping):
        return value, {}
    beside = {name: each for name, each in value.items() if name not in ("class_path", "init_args")}
    inner = value.get("init_args")
    if inner is None or isinstance(inner, Mapping):
        return value.get("class_path"), {**(inner or {}), **beside}
    return value.get("class_path"), inner


def with_defaults(given: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Fill in the defaults of all settings of a schema, in its order, and those of the arguments of classes.

    Settings that a recipe cannot write, such as functions, are left to the constructor.
    """
    return dict(_with_defaults(given, schema))


def _with_defaults(given: Mapping[str, Any], schema: Schema) -> Iterator[tuple[str, Any]]:
    for name, setting in schema.items():
        if isinstance(setting, Schema):
            yield name, with_defaults(given.get(name, {}), setting)
        elif name in given:
            yield name, _completed(given[name])
        elif is_plain(setting.default):
            yield name, setting.default
        elif default := _class_of(setting.default):
            yield name, default


def _completed(value: Any) -> Any:
    if isinstance(value, ClassValue):
        return ClassValue(value.kind, with_defaults(value.arguments, arguments_schema(value.kind)))
    if isinstance(value, Mapping):
        return {name: _completed(each) for name, each in value.items()}
    return type(value)(map(_completed, value)) if type(value) in (list, tuple) else value


def _class_of(default: Any) -> ClassValue | None:
    """The class and the arguments of an object that is a default, if it has the arguments as attributes."""
    kind: type = type(default)
    schema = Schema({}) if kind is type else arguments_schema(kind)
    if not schema or not all(hasattr(default, name) for name in schema):
        return None
    return ClassValue(kind, with_defaults({name: getattr(default, name) for name in schema}, schema))


def plain_values(value: Any) -> Any:
    """A value as a recipe file has it, of numbers, text, lists and mappings."""
    if isinstance(value, ClassValue):
        arguments = {"init_args": plain_values(value.arguments)} if value.arguments else {}
        return {"class_path": import_path(value.kind), **arguments}
    if isinstance(value, Mapping):
        return {name: plain_values(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    plain = (bool, int, float, str)  # and their subclasses, such as numpy.float64
    return next((kind(value) for kind in plain if isinstance(value, kind)), value)


class RefusedArgumentsError(InputError):
    """A constructor refuses its arguments; `key` is the setting that names the class."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def create(value: Any, key: str = "") -> Any:
    """The value of a setting with the objects of its classes; RefusedArgumentsError if one refuses its arguments."""
    if isinstance(value, ClassValue):
        arguments = create(value.arguments, key)
        try:
            return value.kind(**arguments)
        except InputError as error:
            raise RefusedArgumentsError(key, str(error)) from None
        except Exception as error:  # of a class of the user's own
            raise RefusedArgumentsError(key, f"{value.kind.__name__}: {one_line(error)}") from error
    if isinstance(value, Mapping):
        return {name: create(each, f"{key}.{name}") for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(create(each, f"{key}[{position}]") for position, each in enumerate(value))
    return value


def create_settings(values: Mapping[str, Any], schema: Schema) -> Any:
    """The dataclass of a schema with these values."""
    assert schema.kind is not None
    return schema.kind(
        **{
            name: create_settings(values[name], setting) if isinstance(setting, Schema) else create(values[name], name)
            for name, setting in schema.items()
        }
    )


@cache
def loss_names() -> list[str]:
    """The losses that Vicinal offers, read from `__all__` of their modules without importing these."""
    names: list[str] = []
    for file in LOSS_FILES:
        body = ast.parse((Path(vicinal.__file__).parent / file).read_text(encoding="utf-8")).body
        assigned = [each for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"]
        names += [name for each in assigned for name in ast.literal_eval(each.value)]
    return sorted(name for name in names if (name.endswith("Loss") or name in OTHER_LOSSES) and name not in BASE_LOSSES)


def unimported_schema(settings: type, loss: str, model: str, file: str, class_name: str) -> Schema:
    """The schema of a recipe without importing its model and losses, whose values are checked later.

    `model` is the key of the model, `file` and `class_name` are those of its class.
    """
    tree = ast.parse((Path(vicinal.__file__).parent / file).read_text(encoding="utf-8"))
    body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == class_name)
    arguments = next(each.args for each in body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    names = [each.arg for each in (*arguments.args[1:], *arguments.kwonlyargs)]
    defaults = [each for each in (*arguments.defaults, *arguments.kw_defaults) if each is not None]
    own = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    known = dict.fromkeys(names, UNCHECKED)
    known |= {name: UNCHECKED._replace(default=ast.literal_eval(default)) for name, default in own}
    schema = settings_schema(settings)
    schema |= {model: Schema(known), "loss": UNCHECKED._replace(default=loss)}
    return schema


def import_path(kind: type) -> str:
    """The shortest path from which a class can be imported; its module must have it under its name."""
    parts = kind.__module__.split(".")
    parents = (".".join(parts[: number + 1]) for number in range(len(parts)))
    module = next((name for name in parents if getattr(sys.modules.get(name), kind.__name__, None) is kind), None)
    if module is None:
        raise InputError(f"{kind.__name__} of {kind.__module__} must be a class at the top of its module, of this name")
    return f"{module}.{kind.__name__}"


def _is_ours(module: str) -> bool:
    return is_in(module, "vicinal")
